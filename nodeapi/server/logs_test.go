package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func newTLS(t *testing.T, host string, c *tls.Config) (net.Conn, error) {
	t.Helper()
	return (&tls.Dialer{Config: c}).DialContext(t.Context(), "tcp", host)
}

func TestContainerLogsAcceptsKubeletParameters(t *testing.T) {
	t.Parallel()
	var got LogRequest
	var outs [2]bool
	w := serve(t, func(o *Options) {
		o.Handlers.Logs = func(_ context.Context, req LogRequest, out, errs io.Writer) error {
			got, outs = req, [2]bool{out != nil, errs != nil}
			switch req.Pod {
			case "torn":
				_, _ = io.WriteString(out, strings.Repeat("x", 10<<10))
				return errors.New("disk I/O error")
			case "bad":
				return errors.New("disk I/O error")
			}
			return nil
		}
	})
	c := w.master(t)
	code, body := request(
		t,
		c,
		"GET",
		w.url+"/containerLogs/ns/p/c?follow=true&previous=1&timestamps=true&tailLines=7"+
			"&limitBytes=8&sinceSeconds=9&stream=Stderr",
	)
	if code != 200 || body != "" || !got.Follow || !got.Previous || !got.Timestamps || *got.Tail != 7 ||
		*got.LimitBytes != 8 ||
		got.Since != 9*time.Second || got.Namespace != "ns" || got.Pod != "p" ||
		got.Container != "c" ||
		outs != [2]bool{false, true} {
		t.Errorf("%d %q: %+v %v", code, body, got, outs)
	}
	if request(
		t, c, "GET", w.url+"/containerLogs/ns/p/c?sinceTime=2026-01-02T03:04:05Z",
	); got.SinceTime.Unix() != 1767323045 ||
		outs != [2]bool{true, true} {
		t.Errorf("%+v %v", got, outs)
	}
	for query, want := range map[string]string{
		"tailLines=-1": "tailLines: must be greater than or equal to 0",
		"limitBytes=0": "limitBytes: must be greater than or equal to 1",
		"sinceSeconds=1&sinceTime=2026-01-02T03:04:05Z": "at most one of `sinceTime` or `sinceSeconds` may " +
			"be specified",
		"follow=perhaps": "follow: ", "stream=Both": `stream: "Both" must be one of`,
		"sinceTime=yesterday": "sinceTime: ",
	} {
		if code, body := request(t, c, "GET", w.url+"/containerLogs/ns/p/c?"+query); code != 422 ||
			!strings.Contains(body, want) {
			t.Errorf("%s: %d %s", query, code, body)
		}
	}
	if code, body := request(t, c, "GET", w.url+"/containerLogs/ns/bad/c"); code != 500 ||
		!strings.Contains(body, "disk I/O error") {
		t.Errorf("%d %s", code, body)
	}
	resp, err := c.Get(w.url + "/containerLogs/ns/torn/c")
	if err == nil {
		_, err = io.ReadAll(resp.Body)
		_ = resp.Body.Close()
	}
	if err == nil {
		t.Error("an interrupted log stream ended without error")
	}
}

// TestHostLogsServesNothingOutsideDirectory (K3): no file outside the directory is served.
func TestHostLogsServesNothingOutsideDirectory(t *testing.T) {
	t.Parallel()
	outside, logs := t.TempDir(), t.TempDir()
	put := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := func(target, name string) {
		t.Helper()
		if err := os.Symlink(target, filepath.Join(logs, name)); err != nil {
			t.Fatal(err)
		}
	}
	put(filepath.Join(outside, "shadow"), "secret")
	put(filepath.Join(logs, "syslog"), "a line")
	put(filepath.Join(logs, "pods/p/0.log"), "of a pod")
	link(filepath.Join(logs, "pods/p/0.log"), "container.log") // absolute, as in /var/log/containers
	link("pods/p/0.log", "near.log")
	link(filepath.Join(outside, "shadow"), "abs")
	rel, err := filepath.Rel(logs, filepath.Join(outside, "shadow"))
	if err != nil {
		t.Fatal(err)
	}
	link(rel, "rel")
	link(outside, "dir")
	link("/proc/self/root", "root")
	link(logs+"/../"+filepath.Base(outside)+"/shadow", "dots")
	link(filepath.Join(logs, "twice"), "twice") // a loop
	link(filepath.Join(logs, "abs"), "chain")
	if err := unix.Mkfifo(filepath.Join(logs, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := serve(t, func(o *Options) { o.Handlers.SystemLogDir = logs })
	for path, want := range map[string]string{
		"syslog": "a line", "pods/p/0.log": "of a pod", "container.log": "of a pod", "near.log": "of a pod",
	} {
		if code, body := request(t, w.master(t), "GET", w.url+"/logs/"+path); code != 200 || body != want {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
	if code, body := request(t, w.master(t), "GET", w.url+"/logs/"); code != 200 || !strings.Contains(body, "syslog") ||
		!strings.Contains(body, "pods/") {
		t.Errorf("directory: %d %q", code, body)
	}
	shadow := filepath.Base(outside) + "/shadow"
	for _, path := range []string{
		"abs", "rel", "dir/shadow", "root/etc/passwd", "dots", "twice", "chain", "pipe", "none",
		"../" + shadow, "..%2f" + strings.ReplaceAll(shadow, "/", "%2f"), "%2e%2e/" + shadow, "pods/../../" + shadow,
		"..%2f..%2f..%2f..%2f..%2f..%2fetc%2fpasswd", "%2fetc%2fpasswd", "/etc/passwd", "//etc/passwd", "dir%00/shadow",
		"..\\" + shadow,
	} {
		for _, head := range []string{"GET", "HEAD"} {
			code, body := raw(t, w, head, "/logs/"+path)
			if code < 300 || strings.Contains(body, "secret") || strings.Contains(body, "root:") {
				t.Errorf("%s %s: %d %q", head, path, code, body)
			}
		}
	}
}

// raw sends a path unmodified, including dot segments.
func raw(t *testing.T, w *testServer, method, path string) (code int, body string) {
	t.Helper()
	conn := upgradeTLS(t, w)
	_, _ = fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", method, path)
	all, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(string(all), "HTTP/1.1 %d", &code); err != nil {
		t.Fatalf("%q: %v", all, err)
	}
	_, body, _ = strings.Cut(string(all), "\r\n\r\n")
	return code, body
}
