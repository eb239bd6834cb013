package audit

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Modes in which a backend gets events.
const (
	// ModeBatch collects events and writes them in the background. Events are lost if the buffer is full.
	ModeBatch = "batch"
	// ModeBlocking writes an event before the response is sent.
	ModeBlocking = "blocking"
	// ModeBlockingStrict also rejects a request if its event of the stage RequestReceived cannot be written.
	ModeBlockingStrict = "blocking-strict"
)

// Modes returns all modes.
func Modes() []string { return []string{ModeBatch, ModeBlocking, ModeBlockingStrict} }

// Options configure the audit log. DefaultOptions returns the defaults.
type Options struct {
	// PolicyFile is a file of kind Policy (audit.k8s.io/v1). If empty, DefaultPolicy applies.
	PolicyFile string
	Log        LogOptions
	Webhook    WebhookOptions
}

// LogOptions configure the log file.
type LogOptions struct {
	// Path is the log file. A relative path is below the data directory. "-" is the standard output. If
	// empty, no log is written.
	Path string
	// MaxAge is the number of days after which a rotated file is removed. 0: regardless of its age.
	MaxAge int
	// MaxBackups is the number of rotated files to keep. 0: all.
	MaxBackups int
	// MaxSize is the size in MiB at which the file is rotated. 0: never.
	MaxSize int
	// Mode is one of Modes.
	Mode string
}

// WebhookOptions configure the webhook.
type WebhookOptions struct {
	// ConfigFile is a kubeconfig with the URL and the credentials of the webhook. If empty, there is none.
	ConfigFile string
	// InitialBackoff is the delay before the first retry of a failed request.
	InitialBackoff time.Duration
	// Mode is one of Modes.
	Mode string
	// BufferSize is the number of events that wait for a batch. BatchMaxSize and BatchMaxWait limit the
	// number of events in a batch and how long it waits for more. Only for ModeBatch.
	BufferSize, BatchMaxSize int
	BatchMaxWait             time.Duration
}

// defaultBufferSize is the number of events that wait for a batch.
const defaultBufferSize = 10_000

// DefaultOptions returns the defaults: a log file of at most 64 MiB with its rotated files, and no webhook.
func DefaultOptions() Options {
	return Options{
		Log: LogOptions{Path: "audit.log", MaxBackups: 3, MaxSize: 16, Mode: ModeBlocking},
		Webhook: WebhookOptions{
			InitialBackoff: 10 * time.Second, Mode: ModeBatch, BufferSize: defaultBufferSize, BatchMaxSize: 400,
			BatchMaxWait: 30 * time.Second,
		},
	}
}

// Validate checks the options. The error names the flag.
func (o *Options) Validate() error {
	notNegative := func(flag string, value int) error {
		if value < 0 {
			return fmt.Errorf("%s: %d: must not be negative", flag, value)
		}
		return nil
	}
	positive := func(flag string, value int) error {
		if value <= 0 {
			return fmt.Errorf("%s: %d: must be greater than 0", flag, value)
		}
		return nil
	}
	mode := func(flag, value string) error {
		if !slices.Contains(Modes(), value) {
			return fmt.Errorf("%s: %q: must be one of %s", flag, value, strings.Join(Modes(), ", "))
		}
		return nil
	}
	w := o.Webhook
	errs := []error{
		notNegative("audit-log-maxage", o.Log.MaxAge),
		notNegative("audit-log-maxbackup", o.Log.MaxBackups),
		notNegative("audit-log-maxsize", o.Log.MaxSize),
		mode("audit-log-mode", o.Log.Mode),
		mode("audit-webhook-mode", w.Mode),
		positive("audit-webhook-batch-buffer-size", w.BufferSize),
		positive("audit-webhook-batch-max-size", w.BatchMaxSize),
	}
	if w.InitialBackoff <= 0 {
		errs = append(errs, fmt.Errorf("audit-webhook-initial-backoff: %s: must be greater than 0", w.InitialBackoff))
	}
	if w.BatchMaxWait <= 0 {
		errs = append(errs, fmt.Errorf("audit-webhook-batch-max-wait: %s: must be greater than 0", w.BatchMaxWait))
	}
	return errors.Join(errs...)
}
