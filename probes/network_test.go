package probes

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	grpchealth "google.golang.org/grpc/health"
	health "google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"berth/agent/plan"
)

// answerTimeout is how long a test waits for what happens at once on an idle machine.
const answerTimeout = time.Minute

// runOnce runs a probe of a container on loopback once. The default of its timeout is answerTimeout.
func runOnce(t *testing.T, spec corev1.Probe, ports ...corev1.ContainerPort) outcome {
	t.Helper()
	if spec.TimeoutSeconds == 0 {
		spec.TimeoutSeconds = int32(answerTimeout / time.Second)
	}
	c := corev1.Container{Name: "c", Ports: ports}
	o := New(Options{})
	x := &probe{
		in:      &instance{watch: plan.ProbeTarget{ID: "c-0", Name: "c"}},
		spec:    &spec,
		host:    "127.0.0.1",
		timeout: time.Duration(spec.TimeoutSeconds) * time.Second,
	}
	do := o.runner(x, &c)
	return do(t.Context())
}

func portIn(t *testing.T, address string) int32 {
	t.Helper()
	if u, err := url.Parse(address); err == nil && u.Host != "" {
		address = u.Host
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return int32(n)
}

// closedPort returns a port without a listener.
func closedPort(t *testing.T) int32 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return portIn(t, l.Addr().String())
}

// newTestServer returns an HTTP server with the paths of the tests.
func newTestServer(t *testing.T) *httptest.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("/code/{n}", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.PathValue("n"))
		w.WriteHeader(n)
		fmt.Fprintf(w, "code %d %s", n, r.URL.RawQuery)
	})
	mux.HandleFunc("/seen", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(
			w,
			"host=%s agent=%s accept=%q close=%v proto=%s x=%v",
			r.Host,
			r.UserAgent(),
			r.Header["Accept"],
			r.Close,
			r.Proto,
			r.Header["X-A"],
		)
	})
	mux.HandleFunc(
		"/here",
		func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/code/200", http.StatusFound) },
	)
	mux.HandleFunc(
		"/bad",
		func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/code/500", http.StatusFound) },
	)
	mux.HandleFunc(
		"/round",
		func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/round", http.StatusFound) },
	)
	mux.HandleFunc("/to", func(w http.ResponseWriter, r *http.Request) {
		to, err := url.QueryUnescape(r.URL.RawQuery)
		if err != nil {
			t.Error(err)
		}
		http.Redirect(w, r, to, http.StatusFound)
	})
	mux.HandleFunc("/there", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://elsewhere.example/", http.StatusMovedPermanently)
	})
	mux.HandleFunc("/much", func(w http.ResponseWriter, _ *http.Request) {
		for range 1 << 10 {
			if _, err := w.Write(make([]byte, 1<<10)); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/slow", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	s := httptest.NewUnstartedServer(mux)
	t.Cleanup(s.Close)
	return s
}

func TestHTTP(t *testing.T) {
	s := newTestServer(t)
	s.Start()
	tls := newTestServer(t)
	tls.StartTLS()
	port, tlsPort := portIn(t, s.URL), portIn(t, tls.URL)
	h2 := corev1.HTTPProtocolHTTP2
	for _, c := range []struct {
		name string
		get  corev1.HTTPGetAction
		want Result
		says string
	}{
		{"200 is a success", corev1.HTTPGetAction{Path: "/code/200"}, Success, "code 200"},
		{"any code below 400 is a success", corev1.HTTPGetAction{Path: "/code/304"}, Warning,
			"Probe terminated redirects, Response body: "},
		{"400 is a failure", corev1.HTTPGetAction{Path: "/code/400"}, Failure,
			"HTTP probe failed with statuscode: 400"},
		{"503 is a failure", corev1.HTTPGetAction{Path: "/code/503"}, Failure,
			"HTTP probe failed with statuscode: 503"},
		{"a path may have a query", corev1.HTTPGetAction{Path: "/code/200?a=b%20c"}, Success, "a=b%20c"},
		{"no listener", corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(closedPort(t))}, Failure,
			"connection refused"},
		{"no response", corev1.HTTPGetAction{Path: "/slow"}, Failure, "Client.Timeout"},
		{"user agent and accept headers", corev1.HTTPGetAction{Path: "/seen"}, Success,
			`agent=kube-probe/1.37 accept=["*/*"] close=true proto=HTTP/1.1`},
		{"headers of the spec take precedence",
			corev1.HTTPGetAction{Path: "/seen", HTTPHeaders: []corev1.HTTPHeader{{Name: "user-agent", Value: "me"},
				{Name: "Host", Value: "a.example"}, {Name: "x-a", Value: "1"}, {Name: "X-A", Value: "2"}}},
			Success, `host=a.example agent=me accept=["*/*"] close=true proto=HTTP/1.1 x=[1 2]`},
		{"an empty Accept header is removed",
			corev1.HTTPGetAction{Path: "/seen", HTTPHeaders: []corev1.HTTPHeader{{Name: "Accept"}}}, Success,
			"accept=[]"},
		{"a redirect within the host is followed", corev1.HTTPGetAction{Path: "/here"}, Success, "code 200"},
		{"and the target determines the result", corev1.HTTPGetAction{Path: "/bad"}, Failure, "statuscode: 500"},
		{"ten times at most", corev1.HTTPGetAction{Path: "/round"}, Failure, "stopped after 10 redirects"},
		{"one to another host is not", corev1.HTTPGetAction{Path: "/there"}, Warning,
			"Probe terminated redirects, Response body: <a href"},
		{"one from HTTP to HTTPS of the same host is followed, to another port too",
			corev1.HTTPGetAction{Path: "/to?" + url.QueryEscape(tls.URL+"/code/204")}, Success, ""},
		{"… and the target determines the result",
			corev1.HTTPGetAction{Path: "/to?" + url.QueryEscape(tls.URL+"/code/500")}, Failure, "statuscode: 500"},
		{"HTTPS is not verified", corev1.HTTPGetAction{Path: "/code/200", Scheme: corev1.URISchemeHTTPS,
			Port: intstr.FromInt32(tlsPort)}, Success, "code 200"},
		{"HTTP to a port that speaks TLS fails",
			corev1.HTTPGetAction{Path: "/code/200", Port: intstr.FromInt32(tlsPort)}, Failure, "400"},
		{"a port by its name", corev1.HTTPGetAction{Path: "/code/200", Port: intstr.FromString("web")}, Success,
			"code 200"},
		{"a port that is not there", corev1.HTTPGetAction{Path: "/", Port: intstr.FromString("other")}, Unknown,
			"container c has no port other"},
		{"the host field of the spec", corev1.HTTPGetAction{Path: "/seen", Host: "localhost"}, Success,
			"host=localhost:"},
		{"HTTP/2 without TLS to an HTTP/1 server", corev1.HTTPGetAction{Path: "/seen", Protocol: &h2}, Failure, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.get.Port == (intstr.IntOrString{}) {
				c.get.Port = intstr.FromInt32(port)
			}
			spec := corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &c.get}}
			if c.get.Path == "/slow" {
				spec.TimeoutSeconds = 1
			}
			got := runOnce(t, spec, corev1.ContainerPort{Name: "web", ContainerPort: port})
			if got.result != c.want || !strings.Contains(got.output, c.says) {
				t.Errorf("%s: %q", got.result, got.output)
			}
			if late := c.get.Path == "/slow"; got.timedOut != late {
				t.Errorf("got timedOut %v", got.timedOut)
			}
		})
	}
	much := runOnce(
		t,
		corev1.Probe{
			ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/much",
				Port: intstr.FromInt32(port)}},
		},
	)
	if much.result != Success || len(much.output) != 10<<10 {
		t.Errorf("got %d bytes of a long response: %s", len(much.output), much.result)
	}
}

func TestHTTP2WithoutTLS(t *testing.T) {
	s := newTestServer(t)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	h2 := corev1.HTTPProtocolHTTP2
	got := runOnce(
		t,
		corev1.Probe{
			ProbeHandler: corev1.ProbeHandler{
				HTTPGet: &corev1.HTTPGetAction{Path: "/seen", Port: intstr.FromInt32(portIn(t, s.URL)), Protocol: &h2},
			},
		},
	)
	if got.result != Success || !strings.Contains(got.output, "proto=HTTP/2.0") {
		t.Errorf("%s: %q", got.result, got.output)
	}
}

// The server supports only HTTP/2, like some gRPC servers.
func TestHTTP2OverTLS(t *testing.T) {
	s := newTestServer(t)
	s.EnableHTTP2 = true
	h2 := s.Config.Handler
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			w.WriteHeader(http.StatusHTTPVersionNotSupported)
			return
		}
		h2.ServeHTTP(w, r)
	})
	made, closed := make(chan struct{}, 10), make(chan struct{}, 10)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			made <- struct{}{}
		case http.StateClosed:
			closed <- struct{}{}
		}
	}
	s.StartTLS()
	get := corev1.HTTPGetAction{Path: "/seen", Scheme: corev1.URISchemeHTTPS, Port: intstr.FromInt32(portIn(t, s.URL))}
	o := New(Options{})
	x := &probe{
		in:      &instance{watch: plan.ProbeTarget{ID: "c-0", Name: "c"}},
		spec:    &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &get}},
		host:    "127.0.0.1",
		timeout: answerTimeout,
	}
	do := o.runner(x, &corev1.Container{Name: "c"})
	for range 3 {
		if got := do(t.Context()); got.result != Success || !strings.Contains(got.output, "proto=HTTP/2.0") {
			t.Errorf("%s: %q", got.result, got.output)
		}
		for _, c := range []chan struct{}{made, closed} { // one connection per probe, all of them closed
			select {
			case <-c:
			case <-time.After(answerTimeout):
				t.Fatal("a connection was not closed")
			}
		}
	}
	get.Path = "/slow"
	x.timeout = 200 * time.Millisecond
	if got := o.runner(x, &corev1.Container{Name: "c"})(t.Context()); got.result != Failure || !got.timedOut {
		t.Errorf("got %+v from an unresponsive server", got)
	}
	select {
	case <-closed:
	case <-time.After(answerTimeout):
		t.Error("the connection to an unresponsive server was not closed")
	}
}

func TestTCP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := func(n int32) corev1.Probe {
		return corev1.Probe{ProbeHandler: corev1.ProbeHandler{
			TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(n)}}}
	}
	if got := runOnce(t, port(portIn(t, l.Addr().String()))); got.result != Success {
		t.Errorf("%+v", got)
	}
	curt, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer curt.Close()
	wg.Go(func() { // accept and close
		for {
			c, err := curt.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	})
	for range 10 {
		if got := runOnce(t, port(portIn(t, curt.Addr().String()))); got.result != Success {
			t.Errorf("%+v", got)
		}
	}
	if got := runOnce(t, port(closedPort(t))); got.result != Failure ||
		!strings.Contains(got.output, "connection refused") || got.timedOut {
		t.Errorf("%+v", got)
	}
}

func TestGRPC(t *testing.T) {
	serve := func(register bool, creds ...grpc.ServerOption) int32 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := grpc.NewServer(creds...)
		if register {
			h := grpchealth.NewServer()
			h.SetServingStatus("down", health.HealthCheckResponse_NOT_SERVING)
			health.RegisterHealthServer(s, h)
		}
		done := make(chan error, 1)
		go func() { done <- s.Serve(l) }()
		t.Cleanup(func() { s.Stop(); <-done })
		return portIn(t, l.Addr().String())
	}
	good, without := serve(true), serve(false)
	tls := newTestServer(t)
	tls.StartTLS() // for its certificate
	secure := serve(true, grpc.Creds(credentials.NewServerTLSFromCert(&tls.TLS.Certificates[0])))
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	mode := corev1.GRPCProbeModeTLS
	for _, c := range []struct {
		name    string
		port    int32
		service string
		mode    *corev1.GRPCProbeMode
		want    Result
		says    string
	}{
		{"a service that serves", good, "", nil, Success, "service healthy"},
		{"a service that is not serving", good, "down", nil, Failure,
			`service unhealthy (responded with "NOT_SERVING")`},
		{"an unknown service", good, "other", nil, Failure, "error: health rpc probe failed: "},
		{"a server without the protocol", without, "", nil, Failure, "does not implement the grpc health protocol"},
		{"no listener", closedPort(t), "", nil, Failure, "error: failed to connect service"},
		{"no response", portIn(t, silent.Addr().String()), "", nil, Failure, "did not complete within 1s"},
		{"TLS is not verified", secure, "", &mode, Success, "service healthy"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			spec := corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: c.port,
				Service: &c.service, Mode: c.mode}}}
			if c.name == "no response" {
				spec.TimeoutSeconds = 1
			}
			got := runOnce(t, spec)
			if got.result != c.want || !strings.Contains(got.output, c.says) {
				t.Errorf("%s after %s: %q", got.result, time.Since(began), got.output)
			}
		})
	}
}

func TestPodWithoutAddressIsNotCounted(t *testing.T) {
	o := New(Options{})
	spec := corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 1}}}
	do := o.runner(&probe{in: &instance{}, spec: &spec}, &corev1.Container{})
	if got := do(context.Background()); got.result != Unknown {
		t.Errorf("%+v", got)
	}
}
