package main

import (
	"strings"

	"github.com/spf13/pflag"

	"berth/control"
	"berth/control/audit"
)

// requestFlags defines the flags that limit requests.
func requestFlags(f *pflag.FlagSet, c *control.Config) {
	f.IntVar(
		&c.MaxRequestsInFlight,
		"max-requests-inflight",
		c.MaxRequestsInFlight,
		"this and --max-mutating-requests-inflight are summed to the number of requests that the server executes at "+
			"the same time; API Priority and Fairness divides it among the priority levels",
	)
	f.IntVar(
		&c.MaxMutatingRequestsInFlight,
		"max-mutating-requests-inflight",
		c.MaxMutatingRequestsInFlight,
		"see --max-requests-inflight",
	)
}

// auditFlags defines the flags of the audit log.
func auditFlags(f *pflag.FlagSet, o *audit.Options) {
	modes := "one of " + strings.Join(audit.Modes(), ", ")
	f.StringVar(&o.PolicyFile, "audit-policy-file", o.PolicyFile,
		"file of kind Policy (audit.k8s.io/v1) that selects what is recorded (default: the metadata of writes)")
	l := &o.Log
	f.StringVar(&l.Path, "audit-log-path", l.Path,
		"file for audit events; a relative path is below the data directory, '-' is the standard output, and an "+
			"empty value disables the log")
	f.IntVar(&l.MaxAge, "audit-log-maxage", l.MaxAge,
		"days after which a rotated file is removed; 0: regardless of its age")
	f.IntVar(&l.MaxBackups, "audit-log-maxbackup", l.MaxBackups, "number of rotated files to keep; 0: all")
	f.IntVar(&l.MaxSize, "audit-log-maxsize", l.MaxSize, "size in MiB at which the file is rotated; 0: never")
	f.StringVar(&l.Mode, "audit-log-mode", l.Mode, "when events are written: "+modes)
	w := &o.Webhook
	f.StringVar(&w.ConfigFile, "audit-webhook-config-file", w.ConfigFile,
		"kubeconfig with the URL and the credentials of a webhook for audit events")
	f.DurationVar(&w.InitialBackoff, "audit-webhook-initial-backoff", w.InitialBackoff,
		"delay before the first retry of a failed request to the webhook")
	f.StringVar(&w.Mode, "audit-webhook-mode", w.Mode, "when events are sent: "+modes)
	f.IntVar(&w.BufferSize, "audit-webhook-batch-buffer-size", w.BufferSize,
		"number of events that wait for a batch; further ones are lost")
	f.IntVar(&w.BatchMaxSize, "audit-webhook-batch-max-size", w.BatchMaxSize, "number of events in a batch")
	f.DurationVar(&w.BatchMaxWait, "audit-webhook-batch-max-wait", w.BatchMaxWait,
		"how long an event waits for more events of its batch")
}
