package audit

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/audit/buffered"
	auditlog "k8s.io/apiserver/plugin/pkg/audit/log"
	"k8s.io/apiserver/plugin/pkg/audit/truncate"
	auditwebhook "k8s.io/apiserver/plugin/pkg/audit/webhook"
)

const (
	// maxEventSize is the size of an encoded event above which its request and response bodies are removed.
	// maxBatchSize is the size of a request to the webhook. Both are the defaults of kube-apiserver.
	maxEventSize, maxBatchSize = 100 << 10, 10 << 20
	// Limits of the requests to the webhook, as in kube-apiserver.
	batchesPerSecond, burstOfBatches = 10, 15
	// standardOutput is the path for events on the standard output.
	standardOutput = "-"
)

// Auditor holds the policy and the backends of a server. The API server runs the backends and shuts them
// down when all requests are done. Close must be called afterwards.
type Auditor struct {
	// Evaluator applies the policy to a request.
	Evaluator audit.PolicyRuleEvaluator
	// Backend is nil if neither a log file nor a webhook is configured.
	Backend audit.Backend

	file io.Closer // nil: no file
}

// Open loads the policy and opens the backends. Relative paths of log files are below dir. A backend whose
// shutdown takes longer than the limit loses its last events. Errors name the flag.
func Open(o Options, dir string, shutdownLimit time.Duration, log *slog.Logger) (*Auditor, error) {
	rules := DefaultPolicy()
	if o.PolicyFile != "" {
		var err error
		if rules, err = LoadPolicy(o.PolicyFile); err != nil {
			return nil, fmt.Errorf("audit-policy-file: %w", err)
		}
	}
	a := &Auditor{Evaluator: policy.NewPolicyRuleEvaluator(rules)}
	var backends []audit.Backend
	if o.Webhook.ConfigFile != "" {
		sender, err := newWebhook(o.Webhook)
		if err != nil {
			return nil, fmt.Errorf("audit-webhook-config-file: %w", err)
		}
		backends = append(backends, &boundedShutdown{sender, shutdownLimit, log})
	}
	if o.Log.Path != "" {
		writer, err := a.openLog(o.Log, dir)
		if err != nil {
			return nil, fmt.Errorf("audit-log-path: %w", err)
		}
		lines := auditlog.NewBackend(writer, auditlog.FormatJson, auditv1.SchemeGroupVersion)
		backends = append(backends, withMode(lines, o.Log.Mode,
			buffered.BatchConfig{BufferSize: defaultBufferSize, MaxBatchSize: 1}))
	}
	if len(backends) > 0 {
		a.Backend = truncated(audit.Union(backends...)) // before events are buffered
	}
	return a, nil
}

// truncated returns a backend that gets no larger events and batches than the limits.
func truncated(b audit.Backend) audit.Backend {
	limits := truncate.Config{MaxEventSize: maxEventSize, MaxBatchSize: maxBatchSize}
	return truncate.NewBackend(b, limits, auditv1.SchemeGroupVersion)
}

func (a *Auditor) openLog(o LogOptions, dir string) (io.Writer, error) {
	if o.Path == standardOutput {
		return os.Stdout, nil
	}
	path := o.Path
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	f, err := openRotatingFile(o, path, time.Now)
	if err != nil {
		return nil, err
	}
	a.file = f
	return f, nil
}

// Close closes the log file. The backends must not be running.
func (a *Auditor) Close() error {
	if a.file == nil {
		return nil
	}
	return a.file.Close()
}

func newWebhook(o WebhookOptions) (audit.Backend, error) {
	sender, err := auditwebhook.NewBackend(o.ConfigFile, auditv1.SchemeGroupVersion,
		webhook.DefaultRetryBackoffWithInitialDelay(o.InitialBackoff), nil)
	if err != nil {
		return nil, err
	}
	return withMode(truncated(sender), o.Mode, buffered.BatchConfig{
		BufferSize: o.BufferSize, MaxBatchSize: o.BatchMaxSize, MaxBatchWait: o.BatchMaxWait,
		ThrottleEnable: true, ThrottleQPS: batchesPerSecond, ThrottleBurst: burstOfBatches, AsyncDelegate: true,
	}), nil
}

// withMode returns a backend that gets events in the given mode.
func withMode(b audit.Backend, mode string, batches buffered.BatchConfig) audit.Backend {
	switch mode {
	case ModeBatch:
		return buffered.NewBackend(b, batches)
	case ModeBlockingStrict:
		return b
	default:
		return ignoringErrors{b}
	}
}

// ignoringErrors is a backend whose failures do not reject requests. The backend counts and logs them.
type ignoringErrors struct{ audit.Backend }

// ProcessEvents handles events and reports success.
func (i ignoringErrors) ProcessEvents(events ...*auditinternal.Event) bool {
	i.Backend.ProcessEvents(events...)
	return true
}

// boundedShutdown limits the duration of a shutdown. The webhook backend retries for minutes if the
// receiver does not respond, and cannot be canceled.
type boundedShutdown struct {
	audit.Backend

	limit time.Duration
	log   *slog.Logger
}

// Shutdown waits for the delivery of all events, but not longer than the limit. The process exits then.
func (b *boundedShutdown) Shutdown() {
	done := make(chan struct{})
	go func() { // ends with the last retry, or with the process
		defer close(done)
		b.Backend.Shutdown()
	}()
	timer := time.NewTimer(b.limit)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		b.log.Warn("audit events not delivered before the shutdown", "backend", b.String(), "after", b.limit)
	}
}
