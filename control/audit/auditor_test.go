package audit

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
)

func TestOptionsValidateNamesFlag(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		want   string
		change func(*Options)
	}{
		{"audit-log-maxage: -1", func(o *Options) { o.Log.MaxAge = -1 }},
		{"audit-log-maxbackup: -1", func(o *Options) { o.Log.MaxBackups = -1 }},
		{"audit-log-maxsize: -1", func(o *Options) { o.Log.MaxSize = -1 }},
		{`audit-log-mode: "async"`, func(o *Options) { o.Log.Mode = "async" }},
		{`audit-webhook-mode: ""`, func(o *Options) { o.Webhook.Mode = "" }},
		{"audit-webhook-batch-max-size: 0", func(o *Options) { o.Webhook.BatchMaxSize = 0 }},
		{"audit-webhook-batch-buffer-size: 0", func(o *Options) { o.Webhook.BufferSize = 0 }},
		{"audit-webhook-batch-max-wait: 0s", func(o *Options) { o.Webhook.BatchMaxWait = 0 }},
		{"audit-webhook-initial-backoff: 0s", func(o *Options) { o.Webhook.InitialBackoff = 0 }},
	} {
		o := DefaultOptions()
		c.change(&o)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
	o := DefaultOptions()
	if err := o.Validate(); err != nil {
		t.Errorf("defaults: %v", err)
	}
}

func TestOpenErrorsNameFlag(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		want   string
		change func(*Options)
	}{
		{"audit-policy-file:", func(o *Options) { o.PolicyFile = "/missing" }},
		{"audit-webhook-config-file:", func(o *Options) { o.Webhook.ConfigFile = "/missing" }},
		{"audit-log-path:", func(o *Options) { o.Log.Path = "/dev/null/audit.log" }},
	} {
		o := DefaultOptions()
		c.change(&o)
		if _, err := Open(o, t.TempDir(), time.Second, slog.Default()); err == nil ||
			!strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}

// TestLargeEventsLoseBodies writes an event with a large body in the modes blocking and batch. All events
// are in the file after the shutdown.
func TestLargeEventsLoseBodies(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{ModeBlocking, ModeBlockingStrict, ModeBatch} {
		dir := t.TempDir()
		o := DefaultOptions()
		o.Log.Mode = mode
		a, err := Open(o, dir, time.Minute, slog.Default())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		if err := a.Backend.Run(ctx.Done()); err != nil {
			t.Fatal(err)
		}
		a.Backend.ProcessEvents(
			&auditinternal.Event{Level: auditinternal.LevelRequest, AuditID: "large", RequestObject: &runtime.Unknown{
				Raw: []byte(`"` + strings.Repeat("x", maxEventSize) + `"`), ContentType: runtime.ContentTypeJSON}},
			&auditinternal.Event{Level: auditinternal.LevelRequest, AuditID: "small", RequestObject: &runtime.Unknown{
				Raw: []byte(`"body"`), ContentType: runtime.ContentTypeJSON}},
		)
		cancel()
		a.Backend.Shutdown()
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(dir, "audit.log"))
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		if len(lines) != 2 || !strings.Contains(lines[0], `"large"`) ||
			!strings.Contains(lines[0], `"audit.k8s.io/truncated":"true"`) || strings.Contains(lines[0], "xxx") ||
			!strings.Contains(lines[1], `"requestObject":"body"`) {
			t.Errorf("mode %s: got %d lines: %.2000s", mode, len(lines), text)
		}
		info, err := os.Stat(filepath.Join(dir, "audit.log"))
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("mode %s: got %v, %v", mode, info.Mode(), err)
		}
	}
}

// TestNoBackend disables the log file.
func TestNoBackend(t *testing.T) {
	t.Parallel()
	o := DefaultOptions()
	o.Log.Path = ""
	dir := t.TempDir()
	a, err := Open(o, dir, time.Second, slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	if a.Backend != nil || len(logFiles(t, dir)) != 0 {
		t.Errorf("got backend %v and files %v", a.Backend, logFiles(t, dir))
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}
