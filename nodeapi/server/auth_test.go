package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"

	"berth/nodeapi"
)

// everything is an agent that implements all endpoints.
func everything(t *testing.T) Handlers {
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	logs := t.TempDir()
	if err := os.WriteFile(filepath.Join(logs, "syslog"), []byte("line"), 0o600); err != nil {
		t.Fatal(err)
	}
	none := func(context.Context) (*corev1.PodList, error) { return &corev1.PodList{}, nil }
	errReached := errors.New("reached")
	return Handlers{
		Pods: none, RunningPods: none, Metrics: ok, Probes: ok, Health: ok, SystemLogDir: logs,
		Logs: func(_ context.Context, _ LogRequest, out, _ io.Writer) error {
			_, err := io.WriteString(out, "output")
			return err
		},
		Exec:           func(context.Context, StreamRequest) (string, error) { return "", errReached },
		Attach:         func(context.Context, StreamRequest) (string, error) { return "", errReached },
		CheckReachable: func(context.Context, PodRef) error { return errReached },
		DialPort:       func(context.Context, PodRef, uint16) (nodeapi.Stream, error) { return nil, errReached },
		Stats:          func(context.Context, bool) (Stats, error) { return Stats{}, nil },
		Why: func(context.Context, string, string) (nodeapi.PodExplanation, error) {
			return nodeapi.PodExplanation{}, nil
		},
		Timeline: func(_ context.Context, _, name string) (nodeapi.Timeline, error) {
			return nodeapi.Timeline{}, nodeapi.NotFound(name)
		},
		Checkpoint:   func(context.Context, CheckpointRequest) (string, error) { return "", errReached },
		SetVerbosity: func(int) {},
		Config:       func() any { return map[string]int{"maxPods": 110} },
	}
}

// paths are all endpoints with the permissions that each accepts, as "verb subresource". wantCode is the
// status code for an authorized request.
var paths = []struct {
	method, path string
	permissions  []string
	wantCode     int
}{
	{"GET", "/healthz", []string{"get healthz", "get proxy"}, 200},
	{"GET", "/healthz/loops", []string{"get healthz", "get proxy"}, 200},
	{"GET", "/pods", []string{"get pods", "get proxy"}, 200},
	{"GET", "/runningpods/", []string{"get pods", "get proxy"}, 200},
	{"GET", "/runningpods", []string{"get pods", "get proxy"}, 200},
	{"GET", "/configz", []string{"get configz", "get proxy"}, 200},
	{"GET", "/metrics", []string{"get metrics"}, 200},
	{"GET", "/metrics/probes", []string{"get metrics"}, 200},
	{"GET", "/metrics/resource", []string{"get metrics"}, 200},
	{"GET", "/metrics/cadvisor", []string{"get metrics"}, 200},
	{"GET", "/stats/summary", []string{"get stats"}, 200},
	{"GET", "/logs/", []string{"get log"}, 200},
	{"GET", "/logs/syslog", []string{"get log"}, 200},
	{"GET", "/containerLogs/ns/p/c", []string{"get proxy"}, 200},
	{"GET", "/podWhy/ns/p", []string{"get proxy"}, 200},
	{"GET", "/podTimeline/ns/p", []string{"get proxy"}, 404},
	{"POST", "/checkpoint/ns/p/c", []string{"create checkpoint"}, 500},
	{"GET", "/checkpoint/ns/p/c", []string{"get checkpoint"}, 404},
	{"GET", "/debug/pprof/", []string{"get proxy"}, 200},
	{"GET", "/debug/pprof/goroutine", []string{"get proxy"}, 200},
	{"PUT", "/debug/flags/v", []string{"update proxy"}, 400},
	{"POST", "/exec/ns/p/c?command=x&output=1", []string{"create proxy"}, 400},
	{"GET", "/exec/ns/p/c?command=x&output=1", []string{"create proxy"}, 400}, // a WebSocket handshake
	{"POST", "/exec/ns/p/uid/c?command=x&output=1", []string{"create proxy"}, 400},
	{"GET", "/attach/ns/p/c?output=1", []string{"create proxy"}, 400},
	{"POST", "/attach/ns/p/uid/c?output=1", []string{"create proxy"}, 400},
	{"POST", "/run/ns/p/c?cmd=x", []string{"create proxy"}, 500},
	{"GET", "/run/ns/p/uid/c?cmd=x", []string{"create proxy"}, 500},
	{"POST", "/portForward/ns/p", []string{"create proxy"}, 400},
	{"GET", "/portForward/ns/p/uid", []string{"create proxy"}, 400},
	{"GET", "/nothing", []string{"get proxy"}, 404},
	{"POST", "/pods", []string{"create proxy"}, 404},
	{"DELETE", "/pods", []string{"delete proxy"}, 404},
	{"PUT", "/", []string{"update proxy"}, 404},
}

// TestEveryRouteRequiresItsPermission (K2): each user has one permission and has access exactly to the
// routes that accept it.
func TestEveryRouteRequiresItsPermission(t *testing.T) {
	t.Parallel()
	var all []string
	for _, verb := range []string{"get", "create", "update", "patch", "delete", "list", "*"} {
		for _, sub := range []string{"healthz", "pods", "configz", "metrics", "stats", "log", "checkpoint", "proxy",
			"spec", "status", ""} {
			all = append(all, verb+" "+sub)
		}
	}
	users, permissions := map[string]authenticationv1.UserInfo{}, map[string][]string{}
	for i, r := range all {
		name := fmt.Sprintf("user%d", i)
		users["token-"+name] = authenticationv1.UserInfo{Username: name, Groups: []string{"system:authenticated"}}
		permissions[name] = []string{r}
	}
	w := serve(t, func(o *Options) {
		o.Handlers, o.AuthorizationMode, o.Reviews = everything(t), ModeWebhook, reviews(users, permissions)
		o.EnableProfiling, o.EnableDebugFlags = true, true
	})
	for i, r := range all {
		c := w.caller(t, nil, fmt.Sprintf("token-user%d", i))
		for _, p := range paths {
			want := http.StatusForbidden
			for _, need := range p.permissions {
				if need == r {
					want = p.wantCode
				}
			}
			if code, body := request(t, c, p.method, w.url+p.path); code != want {
				t.Errorf("%s %s with %q: %d %s, want %d", p.method, p.path, r, code, body, want)
			}
		}
	}
}

// TestUnauthenticatedRequestsAreRejected (K1): a request without valid credentials gets 401 on every route.
func TestUnauthenticatedRequestsAreRejected(t *testing.T) {
	t.Parallel()
	other := newAuthority(t)
	w := serve(t, func(o *Options) {
		o.Handlers, o.AuthorizationMode = everything(t), ModeAlwaysAllow
		o.Reviews = reviews(map[string]authenticationv1.UserInfo{"good": {Username: "u"}, "nameless": {}}, nil)
	})
	bad := map[string]*http.Client{
		"without credentials":         w.caller(t, nil, ""),
		"with an unknown token":       w.caller(t, nil, "bad"),
		"with a token without a user": w.caller(t, nil, "nameless"),
		"certificate of another CA":   w.caller(t, other.sign("admin", []string{masters}, nil), ""),
		"expired certificate": w.caller(
			t,
			w.clients.sign("admin", nil, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }),
			"",
		),
		"certificate not yet valid": w.caller(
			t,
			w.clients.sign("admin", nil, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }),
			"",
		),
		"server certificate": w.caller(
			t,
			w.clients.sign(
				"admin",
				nil,
				func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} },
			),
			"",
		),
		"certificate without common name": w.caller(t, w.clients.sign("", []string{masters}, nil), ""),
	}
	for who, c := range bad {
		for _, p := range paths {
			if code, body := request(t, c, p.method, w.url+p.path); code != http.StatusUnauthorized ||
				strings.TrimSpace(body) != "Unauthorized" {
				t.Errorf("%s %s %s: %d %s", who, p.method, p.path, code, body)
			}
		}
	}
	for who, c := range map[string]*http.Client{
		"token": w.caller(t, nil, "good"), "certificate": w.caller(t, w.clients.sign("anyone", nil, nil), ""),
		"token besides an invalid certificate": w.caller(t, other.sign("admin", nil, nil), "good"),
	} {
		if code, body := request(t, c, "GET", w.url+"/pods"); code != 200 {
			t.Errorf("%s: %d %s", who, code, body)
		}
	}
}

func TestStandaloneServerAllowsOnlyMasters(t *testing.T) {
	t.Parallel()
	w := serve(t, func(o *Options) { o.Handlers = everything(t) })
	if code, _ := request(t, w.master(t), "GET", w.url+"/pods"); code != 200 {
		t.Errorf("member of system:masters: got %d", code)
	}
	code, body := request(t, w.caller(t, w.clients.sign("jane", []string{"dev"}, nil), ""), "GET", w.url+"/pods")
	if code != 403 ||
		!strings.Contains(body, "Forbidden (user=jane, verb=get, resource=nodes, subresource(s)=[pods proxy])") {
		t.Errorf("other user: got %d %s", code, body)
	}
	if code, _ := request(t, w.caller(t, nil, "any"), "GET", w.url+"/pods"); code != 401 {
		t.Errorf("token without TokenReview: got %d", code)
	}
}

func TestDebuggingHandlersCanBeDisabled(t *testing.T) {
	t.Parallel()
	w := serve(t, func(o *Options) { o.Handlers, o.EnableDebuggingHandlers = everything(t), false })
	c := w.master(t)
	for path, want := range map[string]int{
		"/pods": 200, "/healthz": 200, "/metrics": 200, "/stats/summary": 200,
		"/containerLogs/ns/p/c": 405, "/exec/ns/p/c": 405, "/logs/": 405, "/runningpods/": 405, "/configz": 405,
		"/portForward/ns/p": 405,
	} {
		if code, body := request(t, c, "GET", w.url+path); code != want {
			t.Errorf("%s: %d %s, want %d", path, code, body, want)
		}
	}
}

func TestServerUsesConfiguredTLSVersion(t *testing.T) {
	t.Parallel()
	w := serve(t, func(o *Options) { o.Handlers, o.MinVersion = everything(t), tls.VersionTLS13 })
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}}
	conn, err := d.DialContext(t.Context(), "tcp", strings.TrimPrefix(w.url, "https://"))
	if err == nil {
		_ = conn.Close()
		t.Error("TLS 1.2 was accepted")
	}
}

// TestServerRejectsWeakCipherSuites tries suites of TLS 1.2 with the default settings.
func TestServerRejectsWeakCipherSuites(t *testing.T) {
	t.Parallel()
	w := serve(t, func(o *Options) { o.Handlers = everything(t) })
	for suite, accepted := range map[uint16]bool{
		tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA: false, tls.TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA: false,
		tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256: true,
	} {
		client := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12,
			CipherSuites: []uint16{suite}}}
		conn, err := client.DialContext(t.Context(), "tcp", strings.TrimPrefix(w.url, "https://"))
		if (err == nil) != accepted {
			t.Errorf("%s: got %v, want accepted %t", tls.CipherSuiteName(suite), err, accepted)
		}
		if err == nil {
			_ = conn.Close()
		}
	}
}

// TestServerUsesOnlyConfiguredCipherSuites includes suites without support for HTTP/2.
func TestServerUsesOnlyConfiguredCipherSuites(t *testing.T) {
	t.Parallel()
	const named = tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
	for protocol, suites := range map[string][]uint16{
		"HTTP/1.1": {named},
		"HTTP/2.0": {named, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256},
	} {
		w := serve(t, func(o *Options) { o.Handlers, o.CipherSuites = everything(t), suites })
		resp, err := w.caller(t, nil, "").Get(w.url + "/healthz")
		if err != nil {
			t.Errorf("%s: %v", protocol, err)
			continue
		}
		_ = resp.Body.Close()
		if resp.Proto != protocol {
			t.Errorf("protocol %s, want %s", resp.Proto, protocol)
		}
		other := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12,
			CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256}}}
		if conn, err := other.DialContext(t.Context(), "tcp", strings.TrimPrefix(w.url, "https://")); err == nil {
			_ = conn.Close()
			t.Errorf("%s: another cipher suite was accepted", protocol)
		}
	}
}

func TestReviewCacheExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reviewCalls atomic.Int64
		fail := errors.New("API server unavailable")
		var down atomic.Bool
		d := newAuth(
			Options{
				NodeName:        "node1",
				AuthorizedTTL:   time.Minute,
				UnauthorizedTTL: time.Second,
				TokenTTL:        time.Minute,
				Reviews: Reviews{
					SubjectAccess: func(
						_ context.Context, q authorizationv1.SubjectAccessReviewSpec,
					) (st authorizationv1.SubjectAccessReviewStatus, err error) {
						reviewCalls.Add(1)
						time.Sleep(10 * time.Millisecond)
						if down.Load() {
							return st, fail
						}
						st.Allowed = q.User == "good"
						return st, nil
					},
				},
			},
		)
		allowed := func(name string) bool {
			ok, err := d.authorize(t.Context(), user{name: name}, permMetrics, "GET")
			if err != nil && !errors.Is(err, fail) {
				t.Error(err)
			}
			return ok
		}
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if !allowed("good") {
					t.Error("denied an allowed user")
				}
			})
		}
		wg.Wait()
		if n := reviewCalls.Load(); n != 1 {
			t.Errorf("20 concurrent requests: got %d reviews, want 1", n)
		}
		for range 2 {
			if allowed("bad") {
				t.Error("allowed a denied user")
			}
		}
		if n := reviewCalls.Load(); n != 2 {
			t.Errorf("got %d reviews, want 2", n)
		}
		time.Sleep(2 * time.Second)
		if allowed("bad"); reviewCalls.Load() != 3 {
			t.Errorf("after the TTL of a denial: got %d reviews, want 3", reviewCalls.Load())
		}
		down.Store(true)
		if !allowed("good") { // not expired
			t.Error("a valid result was not cached")
		}
		time.Sleep(time.Minute)
		if allowed("good") {
			t.Error("allowed although the review failed")
		}
		down.Store(false)
		if !allowed("good") {
			t.Error("an error was cached")
		}
	})
}

func TestReviewCacheIsBounded(t *testing.T) {
	t.Parallel()
	a := newReviewCache[int, int](make(chan struct{}, 1))
	for i := range 3 * maxCachedReviews {
		if v, err := a.get(
			t.Context(), i, func(context.Context) (int, time.Duration, error) { return i, time.Hour, nil },
		); v != i ||
			err != nil {
			t.Fatal(v, err)
		}
	}
	if len(a.cached) > maxCachedReviews {
		t.Errorf("got %d cached results", len(a.cached))
	}
}

func TestAuthorizationModeOfNode(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		alwaysAllow, standalone bool
		want                    AuthorizationMode
	}{
		{true, true, ModeAlwaysAllow}, {true, false, ModeAlwaysAllow}, {false, true, ModeMastersOnly},
		{false, false, ModeWebhook},
	} {
		if got := ModeFor(row.alwaysAllow, row.standalone); got != row.want {
			t.Errorf("always allow %t, standalone %t: got %d", row.alwaysAllow, row.standalone, got)
		}
	}
}
