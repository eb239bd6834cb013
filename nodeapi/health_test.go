package nodeapi

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
)

func TestHealthPort(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	fine := HealthCheck{Name: "store", Check: func(context.Context) error { return nil }}
	nonFatal := HealthCheck{Name: "disk", NonFatal: true, Check: func(context.Context) error {
		return errors.New("full")
	}}
	broken := HealthCheck{Name: "runtime", Check: func(ctx context.Context) error {
		if _, bounded := ctx.Deadline(); !bounded {
			t.Error("check without a deadline")
		}
		return errors.New("no answer")
	}}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() {
		stopped <- ServeHealth(ctx, ln, Health{Live: []HealthCheck{fine, nonFatal}, Ready: []HealthCheck{fine, broken},
			Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, "up 1\n")
			})})
	}()
	for _, tt := range []struct {
		name, path string
		code       int
		want       string
	}{
		{"short response", "/healthz", 200, "ok"},
		{"verbose response", "/healthz?verbose", 200, "[+]store ok\n[!]disk: full\nhealthz check passed\n"},
		{"a non-fatal check fails when requested by name", "/healthz/disk", 500,
			"[-]disk failed: full\nhealthz check failed: disk\n"},
		{
			"a failed check is always reported", "/readyz", 500,
			"[+]store ok\n[-]runtime failed: no answer\nreadyz check failed: runtime\n",
		},
		{
			"a check can be excluded", "/readyz?exclude=runtime&verbose", 200,
			"[+]store ok\n[+]runtime excluded: ok\nreadyz check passed\n",
		},
		{"a check can be requested by name", "/readyz/store", 200, "ok"},
		{"a failed check requested by name", "/readyz/runtime", 500,
			"[-]runtime failed: no answer\nreadyz check failed: runtime\n"},
		{"an unknown check is not found", "/readyz/moon", 404, "check \"moon\" not found\n"},
		{"metrics", "/metrics", 200, "up 1\n"},
		{"profiles are not served", "/debug/pprof/", 404, "404 page not found\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			resp, err := http.Get("http://" + ln.Addr().String() + tt.path)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != tt.code || string(body) != tt.want {
				t.Errorf("got %d %q, want %d %q", resp.StatusCode, body, tt.code, tt.want)
			}
		})
	}
	cancel()
	if err := <-stopped; err != nil {
		t.Errorf("ServeHealth: %v", err)
	}
	if _, err := http.Get("http://" + ln.Addr().String() + "/healthz"); err == nil { //nolint:bodyclose // no response
		t.Error("health port responds after it was stopped")
	}
}
