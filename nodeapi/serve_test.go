package nodeapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/cis"
)

// agent serves the local API on a real socket until the test ends.
type agent struct {
	client  *Client
	path    string
	stop    context.CancelFunc
	stopped chan struct{} // closed when Serve has returned
	err     *error        // result of Serve
}

func startAgent(t *testing.T, h Handlers) agent {
	t.Helper()
	path := filepath.Join(t.TempDir(), "berth.sock")
	ln, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	return startAgentOn(t, ln, path, h)
}

func startAgentOn(t *testing.T, ln net.Listener, path string, h Handlers) agent {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	a := agent{path: path, stop: cancel, stopped: make(chan struct{}), err: new(error)}
	go func() { defer close(a.stopped); *a.err = Serve(ctx, ln, h) }()
	client, err := Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	a.client = client
	t.Cleanup(func() {
		client.Close()
		cancel()
		if <-a.stopped; *a.err != nil {
			t.Errorf("Serve: %v", *a.err)
		}
	})
	return a
}

func pod(namespace, name, labels string) corev1.Pod {
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + "-" + name)},
	}
	if key, value, ok := strings.Cut(labels, "="); ok {
		p.Labels = map[string]string{key: value}
	}
	return p
}

func TestEveryEndpointCallsItsHandler(t *testing.T) {
	when := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	h := Handlers{
		Version: func(context.Context) (Version, error) { return Version{Version: "v1"}, nil },
		Node: func(context.Context) (NodeSummary, error) {
			return NodeSummary{
				Name:             "n",
				InvalidManifests: []InvalidManifest{{Path: "/a.yaml", Line: 3, Since: when}},
			}, nil
		},
		Check: func(context.Context) (CheckReport, error) {
			return CheckReport{Items: []CheckItem{{Name: "cni", Essential: true}}}, nil
		},
		CIS: func(context.Context) (cis.Report, error) {
			return cis.Report{Benchmark: "b", Summary: map[cis.Verdict]int{cis.Pass: 1}, Results: []cis.Result{
				{Control: cis.Control{ID: "4.1.1"}, Finding: cis.Passed("e")},
			}}, nil
		},
		Drain: func(context.Context) (DrainResult, error) {
			return DrainResult{Pods: 2, NotTerminated: []string{"a/b"}}, nil
		},
		Images: func(context.Context) (Images, error) {
			return Images{
				Images:   []Image{{ID: "sha256:1", Names: []string{"a:1"}, Size: 1, Pinned: "why"}},
				Archives: []Archive{{Path: "/a.tar", State: "imported"}},
			}, nil
		},
		Eviction: func(_ context.Context, signal string) (EvictionPreview, error) {
			return EvictionPreview{
				Signals: []EvictionSignal{{Signal: signal, Order: []EvictionRank{{Name: "p", Used: 1, UsedText: "1"}}}},
			}, nil
		},
		Plan: func(_ context.Context, m []byte) (PlanResult, error) {
			return PlanResult{Pods: []PodPlan{{Name: string(m), Change: Create}}}, nil
		},
		Describe: func(_ context.Context, ns, n string) (Description, error) {
			p := pod(ns, n, "")
			return Description{Pod: &p, Source: "/a.yaml"}, nil
		},
		Why: func(_ context.Context, ns, n string) (PodExplanation, error) {
			return PodExplanation{
				Namespace:  ns,
				Name:       n,
				WaitingFor: []WaitReason{{Reason: "BackOff", Until: when}},
			}, nil
		},
		Probes: func(_ context.Context, ns, n string) (PodProbes, error) {
			return PodProbes{
				Namespace: ns,
				Name:      n,
				Now:       when,
				Probes:    []Probe{{Kind: "liveness", NextRun: when, Recent: []ProbeRun{{At: when, Seconds: 0.25}}}},
			}, nil
		},
		Timeline: func(_ context.Context, ns, n string) (Timeline, error) {
			return Timeline{Namespace: ns, Name: n, Spans: []Span{{ID: 1, Start: when}}}, nil
		},
		Events: func(_ context.Context, r EventsRequest) (*corev1.EventList, error) {
			return &corev1.EventList{Items: []corev1.Event{{Message: r.Namespace + "/" + r.Pod}}}, nil
		},
		ExecURL: func(_ context.Context, r ExecRequest) (string, error) {
			return fmt.Sprintf(
				"http://x/%s/%s/%s/%q/%t/%t",
				r.Namespace,
				r.Pod,
				r.Container,
				r.Command,
				r.Stdin,
				r.TTY,
			), nil
		},
	}
	c, ctx := startAgent(t, h).client, t.Context()
	for _, tt := range []struct {
		verb string
		call func() (any, error)
		want string // JSON
	}{
		{"version", func() (any, error) { return c.Version(ctx) }, `{"version":"v1","go":"","platform":""}`},
		{"node", func() (any, error) { return c.Node(ctx) },
			`{"name":"n","invalidManifests":[{"path":"/a.yaml","line":3,"message":"",` +
				`"since":"2026-05-04T03:02:01Z"}]}`},
		{"check", func() (any, error) {
			return c.Check(ctx)
		}, `{"items":[{"name":"cni","ok":false,"essential":true}]}`},
		{"cis", func() (any, error) { return c.CIS(ctx) }, `{"benchmark":"b","summary":{"PASS":1},"results":[` +
			`{"id":"4.1.1","title":"","assessment":"","verdict":"PASS","evidence":"e"}]}`},
		{"plan", func() (any, error) { return c.Plan(ctx, []byte("a: b")) },
			`{"pods":[{"namespace":"","name":"a: b","change":"create","stages":null}]}`},
		{"drain", func() (any, error) { return c.Drain(ctx) }, `{"pods":2,"notTerminated":["a/b"],"duration":0}`},
		{"images", func() (any, error) { return c.Images(ctx) },
			`{"images":[{"id":"sha256:1","names":["a:1"],"size":1,"pinned":"why","inUse":false}],` +
				`"archives":[{"path":"/a.tar","state":"imported"}]}`},
		{"eviction", func() (any, error) { return c.Eviction(ctx, "a&b=c") },
			`{"signals":[{"signal":"a\u0026b=c","message":"","underPressure":false,"resource":"","requestable":false,` +
				`"order":[{"namespace":"","name":"p","uid":"","known":false,` +
				`"used":1,"requested":0,"usedText":"1","requestedText":"","exceedsRequest":false,"priority":0}]}]}`},
		{"why", func() (any, error) { return c.Why(ctx, "default", "web") },
			`{"namespace":"default","name":"web","uid":"","phase":"","summary":"",` +
				`"waitingFor":[{"reason":"BackOff","message":"","until":"2026-05-04T03:02:01Z"}],"syncs":0}`},
		{"probes", func() (any, error) { return c.Probes(ctx, "a/b", "%2f?") },
			`{"namespace":"a/b","name":"%2f?","uid":"","now":"2026-05-04T03:02:01Z",` +
				`"probes":[{"container":"","kind":"liveness","action":"","initialDelaySeconds":0,` +
				`"timeoutSeconds":0,"periodSeconds":0,"successThreshold":0,"failureThreshold":0,` +
				`"state":"","nextRun":"2026-05-04T03:02:01Z",` +
				`"recent":[{"at":"2026-05-04T03:02:01Z","seconds":0.25,"result":"","countsTowardThreshold":false}]}]}`},
		{"timeline", func() (any, error) { return c.Timeline(ctx, "a/b", "%2f?") },
			`{"namespace":"a/b","name":"%2f?","uid":"","now":"0001-01-01T00:00:00Z",` +
				`"spans":[{"id":1,"kind":"","name":"","start":"2026-05-04T03:02:01Z"}]}`},
		{"describe", func() (any, error) {
			d, err := c.Describe(ctx, "ns", "web")
			return d.Pod.Namespace + d.Pod.Name + d.Source, err
		}, `"nsweb/a.yaml"`},
		{"events", func() (any, error) {
			l, err := c.Events(ctx, EventsRequest{Namespace: "ns", Pod: "web"})
			return l.Items[0].Message, err
		}, `"ns/web"`},
		{"exec", func() (any, error) {
			return c.ExecURL(
				ctx, ExecRequest{Namespace: "ns", Pod: "web", Container: "c", Command: []string{"ls", "-l a"},
					TTY: true},
			)
		}, `"http://x/ns/web/c/[\"ls\" \"-l a\"]/false/true"`},
	} {
		t.Run(tt.verb, func(t *testing.T) {
			v, err := tt.call()
			if err != nil {
				t.Fatal(err)
			}
			got, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestPodsAreSelectedByNamespaceLabelsAndName(t *testing.T) {
	terminating := pod("default", "web", "app=old")
	terminating.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	all := corev1.PodList{
		Items: []corev1.Pod{terminating, pod("default", "web", "app=web"), pod("kube-system", "dns", "app=dns")},
	}
	c := startAgent(t, Handlers{Pods: func(context.Context) (*corev1.PodList, error) { return &all, nil }}).client
	for _, tt := range []struct {
		name string
		req  PodsRequest
		want int
	}{
		{"all without a filter", PodsRequest{}, 3},
		{"by namespace", PodsRequest{Namespace: "default"}, 2},
		{"by labels", PodsRequest{Selector: "app in (web,dns)"}, 2},
		{"by namespace and labels", PodsRequest{Namespace: "default", Selector: "app=web"}, 1},
		{"unknown namespace", PodsRequest{Namespace: "nope"}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, err := c.Pods(t.Context(), tt.req)
			if err != nil {
				t.Fatal(err)
			}
			if len(l.Items) != tt.want {
				t.Errorf("%d pods, want %d", len(l.Items), tt.want)
			}
			for _, p := range l.Items {
				if p.Kind != "Pod" || p.APIVersion != "v1" {
					t.Errorf("pod %s: got kind %q, apiVersion %q", p.Name, p.Kind, p.APIVersion)
				}
			}
		})
	}
	if all.Items[0].Kind != "" {
		t.Error("the list of the agent was modified")
	}
	p, err := c.Pod(t.Context(), "default", "web")
	if err != nil || p.DeletionTimestamp != nil {
		t.Errorf("got the terminating one of two pods with the same name: %v", err)
	}
	if _, err := c.Pod(t.Context(), "default", "nope"); !apierrors.IsNotFound(err) ||
		err.Error() != `pods "nope" not found` {
		t.Errorf("unknown pod: got %v", err)
	}
	if _, err := c.Pods(t.Context(), PodsRequest{Selector: "a b"}); !apierrors.IsBadRequest(err) {
		t.Errorf("invalid selector: got %v", err)
	}
}

// asUID calls do on a separate thread that runs as user uid.
func asUID(t *testing.T, uid int, do func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0))
		if errno != 0 {
			done <- errno
			return
		}
		do()
		done <- nil
	}()
	if err := <-done; err != nil {
		t.Fatalf("cannot change the user ID: %v", err)
	}
}

func TestSocketRejectsOtherUsers(t *testing.T) { // N1
	// An abstract socket has no mode: only the peer check is left.
	name := "@berth-n1-" + filepath.Base(filepath.Dir(t.TempDir())) + fmt.Sprint(os.Getpid())
	ln, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	called := false
	a := startAgentOn(t, ln, name, Handlers{Version: func(context.Context) (Version, error) {
		called = true
		return Version{}, nil
	}})
	asUID(t, 65534, func() {
		conn, err := net.Dial("unix", name)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = io.WriteString(conn, "GET /v1/version HTTP/1.0\r\n\r\n")
		response, err := io.ReadAll(conn)
		if err != nil {
			t.Error(err)
		}
		if !strings.Contains(string(response), " 403 ") || !strings.Contains(string(response), "only root") {
			t.Errorf("other user: got\n%s", response)
		}
	})
	if called {
		t.Error("request of another user reached the agent")
	}
	if _, err := a.client.Version(t.Context()); err != nil || !called {
		t.Errorf("root: %v", err)
	}
}

func TestConnectionWithoutCredentialsIsRejected(t *testing.T) { // N1
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- Serve(ctx, ln, Handlers{}) }()
	defer func() { cancel(); <-stopped }()
	resp, err := http.Get("http://" + ln.Addr().String() + "/v1/version")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("TCP: got %s", resp.Status)
	}
}

func TestActiveSocketIsNeverReplaced(t *testing.T) { // N2
	dir := t.TempDir()
	path := filepath.Join(dir, "sub", "berth.sock")
	first, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if _, err := Listen(path); err == nil || !strings.Contains(err.Error(), "another berth is listening on "+path) {
		t.Fatalf("second agent: %v", err)
	}
	// A stale socket: the file without a listener.
	first.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := Listen(path)
	if err != nil {
		t.Fatalf("stale socket was not replaced: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("socket still exists after its listener was closed: %v", err)
	}
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path); err == nil || !strings.Contains(err.Error(), "is not a socket") {
		t.Errorf("existing file: %v", err)
	}
	if body, err := os.ReadFile(path); err != nil || string(body) != "precious" {
		t.Errorf("existing file was changed: %q, %v", body, err)
	}
}

func TestOneOfConcurrentListenersWins(t *testing.T) { // N2
	for range 50 { // without the lock, a single round may pass by chance
		if n := listeners(t, filepath.Join(t.TempDir(), "berth.sock")); n != 1 {
			t.Fatalf("got %d listeners, want 1", n)
		}
	}
}

// listeners starts many agents concurrently on a stale socket and returns how many listen.
func listeners(t *testing.T, path string) int {
	t.Helper()
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	_ = stale.Close()
	const agents = 16
	start, got := make(chan struct{}), make(chan net.Listener, agents)
	for range agents {
		go func() {
			<-start
			ln, err := Listen(path)
			if err != nil {
				ln = nil
			}
			got <- ln
		}()
	}
	close(start)
	count := 0
	var open []net.Listener
	for range agents {
		if ln := <-got; ln != nil {
			count++
			open = append(open, ln)
		}
	}
	for _, ln := range open {
		_ = ln.Close()
	}
	return count
}

func TestEveryErrorIsAStatus(t *testing.T) { // N3
	h := Handlers{
		Why: func(_ context.Context, _, name string) (PodExplanation, error) {
			return PodExplanation{}, fmt.Errorf("find: %w", NotFound(name))
		},
		Check:   func(context.Context) (CheckReport, error) { return CheckReport{}, errors.New("the disk\nis full") },
		Node:    func(context.Context) (NodeSummary, error) { return NodeSummary{}, context.DeadlineExceeded },
		Plan:    func(context.Context, []byte) (PlanResult, error) { return PlanResult{}, nil },
		ExecURL: func(context.Context, ExecRequest) (string, error) { return "", nil },
		Logs: func(context.Context, LogRequest, io.Writer, io.Writer) error {
			return apierrors.NewBadRequest("no log")
		},
		WatchPods: func(context.Context, func(PodEvent) error) error {
			return apierrors.NewTooManyRequests("later", 1)
		},
	}
	a := startAgent(t, h)
	c, ctx := a.client, t.Context()
	for _, tt := range []struct {
		name    string
		call    func() error
		code    int32
		reason  metav1.StatusReason
		message string
	}{
		{
			"a reason of the agent is kept", func() error { _, err := c.Why(ctx, "default", "x"); return err }, 404,
			metav1.StatusReasonNotFound, `find: pods "x" not found`,
		},
		{
			"an error without a reason is an internal error", func() error { _, err := c.Check(ctx); return err }, 500,
			metav1.StatusReasonInternalError, "the disk\nis full",
		},
		{
			"a deadline is a timeout", func() error {
				_, err := c.Node(ctx)
				return err
			}, 504, metav1.StatusReasonTimeout,
			"context deadline exceeded",
		},
		{
			"an endpoint without a handler is not implemented", func() error {
				_, err := c.Version(ctx)
				return err
			}, 501,
			metav1.StatusReasonMethodNotAllowed, "this agent does not implement /v1/version",
		},
		{"an unknown endpoint is not found", func() error {
			_, err := c.do(ctx, request{method: "GET", path: "/v1/moon"}) //nolint:bodyclose // there is none
			return err
		}, 404, metav1.StatusReasonNotFound, "unknown endpoint GET /v1/moon: the command may be newer than the agent"},
		{
			"a manifest that is too large is rejected",
			func() error { _, err := c.Plan(ctx, make([]byte, maxManifest+1)); return err }, 413,
			metav1.StatusReasonRequestEntityTooLarge, "",
		},
		{
			"a command is required",
			func() error { _, err := c.ExecURL(ctx, ExecRequest{Namespace: "a", Pod: "b"}); return err }, 400,
			metav1.StatusReasonBadRequest, "command: required",
		},
		{"a body must be JSON", func() error {
			//nolint:bodyclose // there is none
			_, err := c.do(ctx, request{method: "POST", path: podPath("a", "b", "/exec"), body: []byte("{")})
			return err
		}, 400, metav1.StatusReasonBadRequest, "decode request: unexpected EOF"},
		{"a log that cannot start returns a reason", func() error {
			return c.Logs(ctx, LogRequest{Namespace: "a", Pod: "b", Container: "c"}, io.Discard, io.Discard)
		}, 400, metav1.StatusReasonBadRequest, "no log"},
		{
			"a log requires a container",
			func() error { return c.Logs(ctx, LogRequest{Namespace: "a", Pod: "b"}, io.Discard, io.Discard) }, 400,
			metav1.StatusReasonBadRequest, "container: required",
		},
		{
			"a watch that cannot start returns a reason", func() error {
				return c.WatchPods(ctx, PodsRequest{}, nil)
			}, 429,
			metav1.StatusReasonTooManyRequests, "later",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.call()
			st, ok := errors.AsType[*apierrors.StatusError](err)
			if !ok {
				t.Fatalf("%v (%T) is no Status", err, err)
			}
			if s := st.ErrStatus; s.Code != tt.code || s.Reason != tt.reason ||
				(tt.message != "" && s.Message != tt.message) {
				t.Errorf("got %d %s %q, want %d %s %q", s.Code, s.Reason, s.Message, tt.code, tt.reason, tt.message)
			}
		})
	}
}

func TestActiveRequestsFinishAndStreamsStop(t *testing.T) { // N4
	started, respond := make(chan struct{}), make(chan struct{})
	h := Handlers{
		Version: func(context.Context) (Version, error) {
			close(started)
			<-respond
			return Version{Version: "late"}, nil
		},
		WatchPods: func(ctx context.Context, send func(PodEvent) error) error {
			if err := send(PodEvent{Type: Synced}); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		},
	}
	a := startAgent(t, h)
	requested, watched, synced := make(chan error, 1), make(chan error, 1), make(chan struct{})
	go func() {
		v, err := a.client.Version(t.Context())
		if err == nil && v.Version != "late" {
			err = fmt.Errorf("got %+v", v)
		}
		requested <- err
	}()
	go func() {
		watched <- a.client.WatchPods(t.Context(), PodsRequest{}, func(PodEvent) error { close(synced); return nil })
	}()
	<-started
	<-synced
	a.stop()
	if err := <-watched; err != nil {
		t.Errorf("watch: %v", err)
	}
	select {
	case <-a.stopped:
		t.Errorf("Serve returned %v while a request was in progress", *a.err)
	default:
	}
	close(respond)
	if err := <-requested; err != nil {
		t.Errorf("request in progress: %v", err)
	}
	<-a.stopped // the cleanup checks its error
}

func TestWatchFiltersPods(t *testing.T) {
	web, other := pod("default", "web", "app=web"), pod("default", "db", "app=db")
	relabeled := pod("default", "web", "app=none")
	steps := []PodEvent{
		{Added, &web}, {Added, &other}, {Type: Synced},
		{Modified, &web}, {Modified, &other}, {Deleted, &other},
		{Modified, &relabeled}, {Modified, &relabeled}, {Modified, &web}, {Deleted, &web},
	}
	c := startAgent(t, Handlers{WatchPods: func(_ context.Context, send func(PodEvent) error) error {
		for _, e := range steps {
			if err := send(e); err != nil {
				return err
			}
		}
		return errors.New("the agent failed")
	}}).client
	var got []string
	err := c.WatchPods(t.Context(), PodsRequest{Selector: "app=web"}, func(e PodEvent) error {
		got = append(got, string(e.Type))
		if (e.Pod == nil) != (e.Type == Synced) || (e.Pod != nil && e.Pod.Name != "web") {
			t.Errorf("%s of %v", e.Type, e.Pod)
		}
		return nil
	})
	if want := "ADDED BOOKMARK MODIFIED DELETED ADDED DELETED"; strings.Join(got, " ") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, " "), want)
	}
	if err == nil || err.Error() != "the agent failed" || !apierrors.IsInternalError(err) {
		t.Errorf("watch: %v", err)
	}
}

func TestLogsPassOptionsAndStreams(t *testing.T) {
	tail, limit := int64(0), int64(99)
	want := LogRequest{Namespace: "default", Pod: "web", Container: "c", Follow: true, Previous: true, Timestamps: true,
		Tail: &tail, Since: 90 * time.Second, SinceTime: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC),
		LimitBytes: &limit}
	long := bytes.Repeat([]byte("x"), 3*maxFrame+1)
	c := startAgent(t, Handlers{Logs: func(_ context.Context, q LogRequest, stdout, stderr io.Writer) error {
		if fmt.Sprint(*q.Tail, *q.LimitBytes) != "0 99" {
			t.Errorf("tail %d, limit %d", *q.Tail, *q.LimitBytes)
		}
		q.Tail, q.LimitBytes = want.Tail, want.LimitBytes
		if q != want {
			t.Errorf("got request %+v, want %+v", q, want)
		}
		_, _ = stdout.Write(long)
		_, _ = io.WriteString(stderr, "oh\n")
		return apierrors.NewResourceExpired("rotated away")
	}}).client
	var stdout, stderr bytes.Buffer
	err := c.Logs(t.Context(), want, &stdout, &stderr)
	if !apierrors.IsResourceExpired(err) {
		t.Errorf("error after output: %v", err)
	}
	if !bytes.Equal(stdout.Bytes(), long) || stderr.String() != "oh\n" {
		t.Errorf("%d bytes on stdout, %q on stderr", stdout.Len(), stderr.String())
	}
}

func TestCanceledLogStreamEndsWithoutError(t *testing.T) {
	stopped := make(chan struct{})
	c := startAgent(t, Handlers{Logs: func(ctx context.Context, _ LogRequest, stdout, _ io.Writer) error {
		defer close(stopped)
		_, _ = io.WriteString(stdout, "first\n")
		<-ctx.Done()
		return ctx.Err()
	}}).client
	ctx, cancel := context.WithCancel(t.Context())
	err := c.Logs(ctx, LogRequest{Namespace: "a", Pod: "b", Container: "c", Follow: true},
		writerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil }), io.Discard)
	if err != nil {
		t.Errorf("Logs: %v", err)
	}
	<-stopped // the handler's context was canceled
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestTruncatedStreamIsAnError(t *testing.T) { // N5
	cut := func(w http.ResponseWriter, body string) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"+body)
		_ = conn.Close()
	}
	path := filepath.Join(t.TempDir(), "s")
	ln, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc(
		"/v1/watch/pods",
		func(w http.ResponseWriter, _ *http.Request) { cut(w, `{"type":"BOOKMARK"}`+"\n") },
	)
	mux.HandleFunc(podPattern+"/log", func(w http.ResponseWriter, _ *http.Request) { cut(w, "\x01\x00\x00\x00\x02ab") })
	srv := &http.Server{Handler: mux}
	stopped := make(chan error, 1)
	go func() { stopped <- srv.Serve(ln) }()
	defer func() { _ = srv.Close(); <-stopped }()
	c, err := Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.WatchPods(t.Context(), PodsRequest{}, func(PodEvent) error { return nil }); !errors.Is(
		err,
		io.ErrUnexpectedEOF,
	) {
		t.Errorf("truncated watch: got %v", err)
	}
	var out bytes.Buffer
	err = c.Logs(t.Context(), LogRequest{Namespace: "a", Pod: "b", Container: "c"}, &out, io.Discard)
	if !errors.Is(err, io.ErrUnexpectedEOF) || out.String() != "ab" {
		t.Errorf("truncated log: got %v after %q", err, out.String())
	}
}

func TestClientReportsConnectionErrors(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing.sock")
	dead := filepath.Join(dir, "dead.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	_ = ln.Close()
	for path, want := range map[string]string{
		missing: "unable to connect to the agent, is berth running? dial unix " + missing +
			": connect: no such file or directory",
		dead: "unable to connect to the agent, is berth running? dial unix " + dead + ": connect: connection refused",
	} {
		c, err := Dial(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Version(t.Context()); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
	denied := &dialError{
		socket: missing,
		err:    &net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", unix.EACCES)},
	}
	if got := denied.Error(); !strings.HasPrefix(got, "permission denied, only root can access the agent: ") {
		t.Errorf("permission denied: got %s", got)
	}
	for _, path := range []string{"", strings.Repeat("x", 108)} {
		if _, err := Dial(path); err == nil {
			t.Errorf("Dial accepts a path of %d bytes", len(path))
		}
	}
}

func TestSocketServesProfiles(t *testing.T) {
	a := startAgent(t, Handlers{})
	resp, err := a.client.do(t.Context(), request{method: "GET", path: "/debug/pprof/goroutine"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if body, err := io.ReadAll(resp.Body); err != nil || len(body) == 0 {
		t.Errorf("profile: %d bytes, %v", len(body), err)
	}
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x00\x02ab\x02\x00\x00\x00\x01c\x03\x00\x00\x00\x14{\"status\":\"Success\"}"))
	f.Add([]byte("\x03\x00\x00\x00\x10{\"status\":\"Fail\"}"))
	f.Add([]byte("\x01\xff\xff\xff\xff"))
	f.Add([]byte("\x09\x00\x00\x00\x00"))
	f.Add([]byte("\x01\x00"))
	f.Fuzz(func(t *testing.T, in []byte) {
		var out bytes.Buffer
		err := readFrames(bytes.NewReader(in), &out, &out)
		if out.Len() > len(in) {
			t.Errorf("got %d bytes from %d", out.Len(), len(in))
		}
		if err == nil && !bytes.Contains(in, []byte{frameStatus}) {
			t.Errorf("stream without a status was accepted: %q", in)
		}
	})
}
