package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"berth/agent/plan"
)

type ran struct {
	id  string
	cmd []string
}

func TestExecHasNoTimeout(t *testing.T) {
	t.Parallel()
	code, fail := int32(0), error(nil)
	var calls []ran
	r := New(
		Options{Exec: func(_ context.Context, id string, cmd []string, timeout time.Duration) ([]byte, []byte, int32,
			error) {
			calls = append(calls, ran{id, cmd})
			if timeout != 0 {
				t.Errorf("got timeout %s, want none", timeout)
			}
			return []byte("out "), []byte(strings.Repeat("err", 500)), code, fail
		}},
	)
	hook := &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"a", "b c"}}}
	if err := r.Run(t.Context(), &corev1.Pod{}, &corev1.Container{}, hook, "c1", nil); err != nil {
		t.Error(err)
	}
	code = 3
	err := r.Run(t.Context(), &corev1.Pod{}, &corev1.Container{}, hook, "c1", nil)
	if err == nil || !strings.Contains(err.Error(), `exit code 3: out err`) || len(err.Error()) > 700 {
		t.Errorf("got %v from a failing command", err)
	}
	fail = &plan.Error{Kind: plan.Unavailable, Err: errors.New("unavailable")}
	if err := r.Run(t.Context(), &corev1.Pod{}, &corev1.Container{}, hook, "c1",
		nil); plan.KindOf(err) != plan.Unavailable {
		t.Errorf("got %v, want the error kind of the runtime", err)
	}
	if len(calls) != 3 || calls[0].id != "c1" || calls[0].cmd[1] != "b c" {
		t.Errorf("%v", calls)
	}
}

func TestSleepCanBeCanceled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := New(Options{})
		hook := &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 5}}
		began := time.Now()
		if err := r.Run(t.Context(), &corev1.Pod{}, &corev1.Container{}, hook, "", nil); err != nil ||
			time.Since(began) != 5*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Run(ctx, &corev1.Pod{}, &corev1.Container{}, hook, "", nil); plan.KindOf(err) != plan.Canceled {
			t.Errorf("canceled: %v", err)
		}
	})
}

func TestTCPSocketIsNotSupported(t *testing.T) {
	t.Parallel()
	hook := &corev1.LifecycleHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(1)}}
	for _, h := range []*corev1.LifecycleHandler{hook, {}} {
		if err := New(
			Options{},
		).Run(
			t.Context(),
			&corev1.Pod{},
			&corev1.Container{},
			h,
			"",
			nil,
		); plan.KindOf(
			err,
		) != plan.Invalid {
			t.Errorf("%v", err)
		}
	}
}

// serverAddress is the address of a test server.
func place(t *testing.T, s *httptest.Server) (host string, port int) {
	t.Helper()
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err = strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	return u.Hostname(), port
}

func TestHTTPGet(t *testing.T) {
	t.Parallel()
	var seen []*http.Request
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		seen = append(seen, q)
		switch q.URL.Path {
		case "/away":
			http.Redirect(w, q, "http://192.0.2.1:1/x", http.StatusFound)
		case "/round":
			http.Redirect(w, q, "/round", http.StatusFound)
		default:
			w.WriteHeader(http.StatusInternalServerError) // any response counts as success
		}
	}))
	defer s.Close()
	host, port := place(t, s)
	c := &corev1.Container{Name: "app", Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: int32(port)}}}
	var warned []string
	fellBack := 0
	r := New(
		Options{
			HostIPs:        []string{host},
			RecordWarning:  func(_ *corev1.Pod, reason, _ string) { warned = append(warned, reason) },
			OnHTTPFallback: func() { fellBack++ },
		},
	)
	onHost := &corev1.Pod{Spec: corev1.PodSpec{HostNetwork: true}}
	for name, row := range map[string]struct {
		get  corev1.HTTPGetAction
		pod  *corev1.Pod
		ips  []string
		want string // empty: success
	}{
		"by number at the pod's address": {get: corev1.HTTPGetAction{Port: intstr.FromInt(port), Path: "/x?y=z"},
			ips: []string{host}},
		"by the port's name":    {get: corev1.HTTPGetAction{Port: intstr.FromString("web")}, ips: []string{host}},
		"at a host of its own":  {get: corev1.HTTPGetAction{Port: intstr.FromInt(port), Host: host}},
		"on the node's network": {get: corev1.HTTPGetAction{Port: intstr.FromInt(port)}, pod: onHost},
		"redirected elsewhere": {get: corev1.HTTPGetAction{Port: intstr.FromInt(port), Path: "/away"},
			ips: []string{host}},
		"redirected for ever": {get: corev1.HTTPGetAction{Port: intstr.FromInt(port), Path: "/round"},
			ips: []string{host}, want: "10 redirects"},
		"no such port": {get: corev1.HTTPGetAction{Port: intstr.FromString("other")}, ips: []string{host},
			want: `no port named "other"`},
		"no address": {get: corev1.HTTPGetAction{Port: intstr.FromInt(port)}, want: "no address"},
		"no listener": {get: corev1.HTTPGetAction{Port: intstr.FromInt(1)}, ips: []string{host},
			want: "refused"},
		"HTTPS hook, HTTP server": {get: corev1.HTTPGetAction{Port: intstr.FromInt(port),
			Scheme: corev1.URISchemeHTTPS}, ips: []string{host}},
	} {
		if row.pod == nil {
			row.pod = &corev1.Pod{}
		}
		err := r.Run(t.Context(), row.pod, c, &corev1.LifecycleHandler{HTTPGet: &row.get}, "", row.ips)
		if (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if fmt.Sprint(warned) != "[LifecycleHTTPFallback]" || fellBack != 1 {
		t.Errorf("got warnings %v and %d fallbacks", warned, fellBack)
	}
	seen = nil
	headers := []corev1.HTTPHeader{
		{Name: "host", Value: "name"},
		{Name: "X-A", Value: "1"},
		{Name: "x-a", Value: "2"},
		{Name: "user-agent", Value: "me"},
	}
	get := &corev1.HTTPGetAction{Port: intstr.FromInt(port), Path: "p?q=r", HTTPHeaders: headers}
	if err := r.Run(t.Context(), &corev1.Pod{}, c, &corev1.LifecycleHandler{HTTPGet: get}, "",
		[]string{host}); err != nil {
		t.Fatal(err)
	}
	q := seen[0]
	if q.Host != "name" || fmt.Sprint(q.Header["X-A"]) != "[1 2]" || q.UserAgent() != "me" ||
		q.URL.RequestURI() != "/p?q=r" ||
		q.Method != http.MethodGet {
		t.Errorf("%s %s %s %v", q.Method, q.Host, q.URL, q.Header)
	}
	get.HTTPHeaders = nil
	if err := r.Run(t.Context(), &corev1.Pod{}, c, &corev1.LifecycleHandler{HTTPGet: get}, "",
		[]string{host}); err != nil ||
		seen[1].UserAgent() != "kube-lifecycle/1.37" {
		t.Errorf("got user agent %q, error %v", seen[1].UserAgent(), err)
	}
	get.Scheme, get.HTTPHeaders = corev1.URISchemeHTTPS, []corev1.HTTPHeader{
		{Name: "Authorization", Value: "secret"},
		{Name: "X-A", Value: "1"},
		{Name: "Accept"},
	}
	if err := r.Run(t.Context(), &corev1.Pod{}, c, &corev1.LifecycleHandler{HTTPGet: get}, "",
		[]string{host}); err != nil {
		t.Fatal(err)
	}
	if h := seen[2].Header; len(h["Authorization"]) != 0 || len(h["Accept"]) != 0 || h.Get("X-A") != "1" {
		t.Errorf("got headers %v without TLS, want no Authorization", h)
	}
	get.Scheme, get.HTTPHeaders = "", nil
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Run(ctx, &corev1.Pod{}, c, &corev1.LifecycleHandler{HTTPGet: get}, "",
		[]string{host}); plan.KindOf(err) != plan.Canceled {
		t.Errorf("canceled: %v", err)
	}
}

func TestHTTPSIsNotVerified(t *testing.T) {
	t.Parallel()
	s := httptest.NewTLSServer(http.NotFoundHandler())
	defer s.Close()
	host, port := place(t, s)
	get := &corev1.HTTPGetAction{Port: intstr.FromInt(port), Scheme: corev1.URISchemeHTTPS}
	if err := New(
		Options{},
	).Run(
		t.Context(),
		&corev1.Pod{},
		&corev1.Container{},
		&corev1.LifecycleHandler{HTTPGet: get},
		"",
		[]string{host},
	); err != nil {
		t.Error(err)
	}
}
