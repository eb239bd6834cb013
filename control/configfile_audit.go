package control

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/control/audit"
)

// auditFields is the section audit of a configuration file.
type auditFields struct {
	PolicyFile string             `json:"policyFile,omitempty"`
	Log        auditLogFields     `json:"log,omitzero"`
	Webhook    auditWebhookFields `json:"webhook,omitzero"`
}

type auditLogFields struct {
	// Path is a file, "-" for the standard output, or "" for no log.
	Path      *string `json:"path,omitempty"`
	MaxAge    *int    `json:"maxAge,omitempty"`
	MaxBackup *int    `json:"maxBackup,omitempty"`
	MaxSize   *int    `json:"maxSize,omitempty"` // in MiB
	Mode      *string `json:"mode,omitempty"`
}

type auditWebhookFields struct {
	ConfigFile      string           `json:"configFile,omitempty"`
	InitialBackoff  *metav1.Duration `json:"initialBackoff,omitempty"`
	Mode            *string          `json:"mode,omitempty"`
	BatchBufferSize *int             `json:"batchBufferSize,omitempty"`
	BatchMaxSize    *int             `json:"batchMaxSize,omitempty"`
	BatchMaxWait    *metav1.Duration `json:"batchMaxWait,omitempty"`
}

// applyTo copies the settings of the file, except those for which a flag is set.
func (f *auditFields) applyTo(o *audit.Options, isSet func(flag string) bool) {
	file := func(flag string, to *string, from string) {
		if from != "" {
			setIfGiven(isSet, flag, to, &from)
		}
	}
	duration := func(flag string, to *time.Duration, from *metav1.Duration) {
		if from != nil {
			setIfGiven(isSet, flag, to, &from.Duration)
		}
	}
	file("audit-policy-file", &o.PolicyFile, f.PolicyFile)
	file("audit-webhook-config-file", &o.Webhook.ConfigFile, f.Webhook.ConfigFile)
	setIfGiven(isSet, "audit-log-path", &o.Log.Path, f.Log.Path)
	setIfGiven(isSet, "audit-log-maxage", &o.Log.MaxAge, f.Log.MaxAge)
	setIfGiven(isSet, "audit-log-maxbackup", &o.Log.MaxBackups, f.Log.MaxBackup)
	setIfGiven(isSet, "audit-log-maxsize", &o.Log.MaxSize, f.Log.MaxSize)
	setIfGiven(isSet, "audit-log-mode", &o.Log.Mode, f.Log.Mode)
	setIfGiven(isSet, "audit-webhook-mode", &o.Webhook.Mode, f.Webhook.Mode)
	setIfGiven(isSet, "audit-webhook-batch-buffer-size", &o.Webhook.BufferSize, f.Webhook.BatchBufferSize)
	setIfGiven(isSet, "audit-webhook-batch-max-size", &o.Webhook.BatchMaxSize, f.Webhook.BatchMaxSize)
	duration("audit-webhook-initial-backoff", &o.Webhook.InitialBackoff, f.Webhook.InitialBackoff)
	duration("audit-webhook-batch-max-wait", &o.Webhook.BatchMaxWait, f.Webhook.BatchMaxWait)
}

// setIfGiven copies a setting that the file has, unless its flag is set.
func setIfGiven[T any](isSet func(flag string) bool, flag string, to, from *T) {
	if from != nil && !isSet(flag) {
		*to = *from
	}
}
