package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestProfilesAreServed(t *testing.T) {
	t.Parallel()
	on := serve(t, func(o *Options) { o.EnableProfiling = true })
	off := serve(t, nil)
	noDebug := serve(t, func(o *Options) { o.EnableProfiling, o.EnableDebuggingHandlers = true, false })
	for name, c := range map[string]struct {
		server *testServer
		path   string
		code   int
		want   string
	}{
		"index":      {on, "/debug/pprof/", 200, "full goroutine stack dump"},
		"goroutines": {on, "/debug/pprof/goroutine?debug=1", 200, "goroutine profile: total"},
		"command":    {on, "/debug/pprof/cmdline", 200, "server.test"},
		"symbols":    {on, "/debug/pprof/symbol", 200, "num_symbols"},
		"trace":      {on, "/debug/pprof/trace?seconds=0.01", 200, "go 1."},
		"unknown":    {on, "/debug/pprof/none", 404, "Unknown profile"},
		"disabled":   {off, "/debug/pprof/", 405, "profiling endpoint is disabled."},
		"no debug":   {noDebug, "/debug/pprof/", 405, "Debug endpoints are disabled."},
	} {
		code, body := request(t, c.server.master(t), http.MethodGet, c.server.url+c.path)
		if code != c.code || !strings.Contains(body, c.want) {
			t.Errorf("%s: got %d %.200q, want %d %q", name, code, body, c.code, c.want)
		}
	}
}

// send sends a request with a body.
func send(t *testing.T, w *testServer, method, path, text string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, w.url+path, bytes.NewBufferString(text))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := w.master(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestLogVerbosityIsChanged(t *testing.T) {
	t.Parallel()
	levels := make(chan int, 10)
	w := serve(t, func(o *Options) {
		o.EnableDebugFlags, o.Handlers.SetVerbosity = true, func(v int) { levels <- v }
	})
	if code, body := send(t, w, "PUT", "/debug/flags/v", "4\n"); code != 200 ||
		body != "successfully set klog.logging.verbosity to 4" || <-levels != 4 {
		t.Errorf("got %d %q", code, body)
	}
	for _, text := range []string{"", "x", "-1", "11"} {
		if code, body := send(t, w, "PUT", "/debug/flags/v", text); code != 400 || len(levels) != 0 {
			t.Errorf("%q: got %d %q", text, code, body)
		}
	}
	off := serve(t, func(o *Options) { o.Handlers.SetVerbosity = func(v int) { levels <- v } })
	if code, _ := send(t, off, "PUT", "/debug/flags/v", "4"); code != 405 || len(levels) != 0 {
		t.Errorf("disabled: got %d", code)
	}
}

func TestCheckpointRespondsWithTheArchive(t *testing.T) {
	t.Parallel()
	var asked CheckpointRequest
	w := serve(t, func(o *Options) {
		o.Handlers.Checkpoint = func(_ context.Context, req CheckpointRequest) (string, error) {
			asked = req
			switch req.Container {
			case "gone":
				return "", apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "p")
			case "unsupported":
				return "", errors.New("checkpoint container c1: unknown method CheckpointContainer")
			}
			return "/var/lib/kubelet/checkpoints/a.tar", nil
		}
	})
	for path, want := range map[string]struct {
		code int
		body string
	}{
		"ns/p/c?timeout=7":   {200, `{"items":["/var/lib/kubelet/checkpoints/a.tar"]}`},
		"ns/p/gone":          {404, `checkpointing of ns/p/gone failed (pods "p" not found)`},
		"ns/p/unsupported":   {500, "checkpointing of ns/p/unsupported failed (checkpoint container c1: unknown"},
		"ns/p/c?timeout=7s":  {400, `timeout "7s": must be a number of seconds`},
		"ns/p/c?timeout=-10": {400, "must be a number of seconds"},
	} {
		if code, body := send(t, w, "POST", "/checkpoint/"+path, ""); code != want.code ||
			!strings.Contains(body, want.body) {
			t.Errorf("%s: got %d %q, want %d %q", path, code, body, want.code, want.body)
		}
		if strings.HasSuffix(path, "=7") && (asked.Timeout != 7*time.Second || asked.Namespace != "ns" ||
			asked.Name != "p" || asked.Container != "c") {
			t.Errorf("got request %+v", asked)
		}
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	if got := CheckpointName("ns", "web", "c", at); got != "checkpoint-web_ns-c-2026-01-02T03:04:05Z.tar" {
		t.Errorf("got name %s", got)
	}
}
