package control

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"berth/control/pki"
	"berth/test/hosts"
)

// fakeKubelet is a kubelet API for the proxied streams of the server. TLS and SPDY are real, the
// processes only echo their input. It accepts the server's client certificate only.
type fakeKubelet struct {
	t        *testing.T
	url      string
	mu       sync.Mutex
	received []string // path and query of each request
}

// requests returns the path and query of each request, one per line.
func (a *fakeKubelet) requests() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return strings.Join(a.received, "\n")
}

// startFakeNode starts a fakeKubelet, creates a Node with its address and the name of the namespace, and
// binds the pod web to the Node. The cluster's CA signs the serving certificate unless foreign is set.
func startFakeNode(t *testing.T, s *Server, foreign bool) *fakeKubelet {
	t.Helper()
	if foreign {
		return startFakeNodeNamed(t, s, "")
	}
	return startFakeNodeNamed(t, s, "system:node:"+s.Namespace)
}

// startFakeNodeNamed is startFakeNode with the common name of the node's serving certificate. If it is empty, the
// certificate is of another authority.
func startFakeNodeNamed(t *testing.T, s *Server, commonName string) *fakeKubelet {
	t.Helper()
	a := &fakeKubelet{t: t}
	mux, pod := http.NewServeMux(), s.Namespace+"/web"
	mux.HandleFunc("/containerLogs/"+pod+"/main", a.logs)
	mux.HandleFunc("/exec/"+pod+"/main", a.exec)
	mux.HandleFunc("/attach/"+pod+"/main", a.exec)
	mux.HandleFunc("/portForward/"+pod, a.forward)
	mux.HandleFunc("/stats/summary", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s of %s", r.URL.Path,
			r.Method)
	})
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.VerifiedChains) == 0 ||
			r.TLS.PeerCertificates[0].Subject.CommonName != "kube-apiserver-kubelet-client" {
			http.Error(w, "unauthorized", http.StatusUnauthorized)
			return
		}
		a.mu.Lock()
		a.received = append(a.received, r.URL.Path+"?"+r.URL.RawQuery)
		a.mu.Unlock()
		mux.ServeHTTP(w, r)
	}))
	web.TLS = &tls.Config{ClientCAs: s.Authority.Pool(), ClientAuth: tls.VerifyClientCertIfGiven}
	if commonName != "" {
		subject := pki.ServerSubject([]string{s.Namespace}, []net.IP{net.IPv4(127, 0, 0, 1)})
		subject.Name = commonName
		cert, key, err := s.Authority.Issue(subject)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		web.TLS.Certificates = []tls.Certificate{pair}
	}
	web.StartTLS()
	t.Cleanup(func() { web.CloseClientConnections(); web.Close() })
	a.url = web.URL
	_, port, _ := net.SplitHostPort(web.Listener.Addr().String())
	number, _ := strconv.Atoi(port)
	_, err := s.Client.CoreV1().Nodes().Create(t.Context(),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.Namespace},
			Status: corev1.NodeStatus{
				Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "unreachable.invalid"},
					{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}},
				DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(
					number)}}}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Apply(t, strings.Replace(somePod, "image: example/web", "image: example/web, ports: [{containerPort: 80}]", 1))
	if err := bindPod(t, s, "web", s.Namespace); err != nil {
		t.Fatal(err)
	}
	s.Kubectl(t, "patch", "pod", "web", "--subresource=status", "-p", `{"status": {"phase": "Running"}}`)
	return a
}

// logs writes one line. With follow, it keeps the stream open.
func (a *fakeKubelet) logs(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintln(w, "first")
	if r.FormValue("follow") != "true" {
		return
	}
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}

// exec echoes the command and its input. The command "fail" exits with code 3.
func (a *fakeKubelet) exec(w http.ResponseWriter, r *http.Request) {
	streams := a.upgrade(w, r, "v4.channel.k8s.io", func(n map[string]httpstream.Stream) bool {
		for query, kind := range map[string]string{"input": "stdin", "output": "stdout", "error": "stderr"} {
			if r.FormValue(query) == "1" && n[kind] == nil {
				return false
			}
		}
		return n["error"] != nil
	})
	if streams == nil {
		return
	}
	fmt.Fprintf(streams["stdout"], "%s\n", strings.Join(r.URL.Query()["command"], " "))
	if in := streams["stdin"]; in != nil {
		io.Copy(streams["stdout"], in) //nolint:errcheck // the test compares the output
	}
	status := metav1.Status{Status: metav1.StatusSuccess}
	if r.FormValue("command") == "fail" {
		status = metav1.Status{Status: metav1.StatusFailure, Reason: "NonZeroExitCode", Message: "non-zero exit status",
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "ExitCode", Message: "3"}}}}
	}
	raw, _ := json.Marshal(status)
	streams["error"].Write(raw) //nolint:errcheck // as above
	for _, s := range streams {
		s.Close()
	}
}

// upgrade upgrades the connection to SPDY and accepts streams until complete returns true. It returns the
// streams by type, or nil if the upgrade fails.
func (a *fakeKubelet) upgrade(w http.ResponseWriter, r *http.Request, protocol string,
	complete func(map[string]httpstream.Stream) bool) map[string]httpstream.Stream {
	if _, err := httpstream.Handshake(r, w, []string{protocol}); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return nil
	}
	created := make(chan httpstream.Stream, 16)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		created <- s
		return nil
	})
	if conn == nil {
		return nil
	}
	streams := map[string]httpstream.Stream{}
	for !complete(streams) {
		select {
		case s := <-created:
			streams[s.Headers().Get("streamType")] = s
		case <-conn.CloseChan():
			return nil
		}
	}
	a.t.Cleanup(func() { conn.Close() })
	return streams
}

// forward echoes the data of a port.
func (a *fakeKubelet) forward(w http.ResponseWriter, r *http.Request) {
	streams := a.upgrade(w, r, "portforward.k8s.io", func(n map[string]httpstream.Stream) bool {
		return n["data"] != nil &&
			n["error"] != nil
	})
	if streams == nil {
		return
	}
	fmt.Fprintf(streams["data"], "port %s\n", streams["data"].Headers().Get("port"))
	io.Copy(streams["data"], streams["data"]) //nolint:errcheck // the test compares the output
	streams["error"].Close()
	streams["data"].Close()
}

// logByWebSocket reads the log of the pod web with a WebSocket, as some client libraries do.
func readLogByWebSocket(t *testing.T, s *Server) (log string) {
	t.Helper()
	trust, err := restclient.TLSConfigFor(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	trust.NextProtos = nil // WebSockets do not support HTTP/2
	dialer := websocket.Dialer{TLSClientConfig: trust, Subprotocols: []string{"binary.k8s.io"}}
	ws, resp, err := dialer.DialContext(t.Context(), strings.Replace(s.Config.Host, "https", "wss",
		1)+"/api/v1/namespaces/"+s.Namespace+"/pods/web/log", nil)
	if resp != nil {
		defer resp.Body.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	for {
		_, message, err := ws.ReadMessage()
		if err != nil {
			return log
		}
		log += string(message)
	}
}

// TestNodeLogs checks that the log options reach the node.
func TestNodeLogs(t *testing.T) {
	t.Parallel()
	s := SharedWithoutControllers(t)
	a := startFakeNode(t, s, false)
	if got := s.Kubectl(t, "logs", "web", "--tail=5", "--timestamps", "--previous"); got != "first\n" {
		t.Errorf("kubectl logs: got %q", got)
	}
	want := "/containerLogs/" + s.Namespace + "/web/main?previous=true&tailLines=5&timestamps=true"
	if a.requests() != want {
		t.Errorf("got requests %q to the node, want %q", a.requests(), want)
	}
	mustBeRejected(t, s, "", []string{"container other is not valid for pod web"}, "logs", "web", "-c", "other")
	mustBeRejected(t, s, "", []string{"sinceSeconds: Invalid value"}, "get", "--raw",
		"/api/v1/namespaces/"+s.Namespace+"/pods/web/log?sinceSeconds=0")
	// The server must not buffer a followed log.
	ctx, stop := context.WithCancel(t.Context())
	stream, err := s.Client.CoreV1().Pods(s.Namespace).GetLogs("web", &corev1.PodLogOptions{Follow: true}).Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stream).ReadString('\n'); line != "first\n" {
		t.Errorf("followed log: got %q, %v", line, err)
	}
	stop()
	stream.Close()
	if got := readLogByWebSocket(t, s); got != "first\n" {
		t.Errorf("log through a WebSocket: got %q", got)
	}
	if got := s.Kubectl(t, "get", "--raw",
		"/api/v1/nodes/"+s.Namespace+"/proxy/stats/summary"); got != "/stats/summary of GET" {
		t.Errorf("node proxy: got %q", got)
	}
}

// TestExecThroughServer runs exec and attach through WebSockets, like kubectl, and through SPDY, like
// older clients.
func TestExecThroughServer(t *testing.T) {
	t.Parallel()
	s := SharedWithoutControllers(t)
	a := startFakeNode(t, s, false)
	out, err := s.TryKubectl(t, "hello\n", "exec", "-i", "web", "--", "cat", "-")
	if err != nil || out != "cat -\nhello\n" {
		t.Errorf("exec -i: got %q, %v", out, err)
	}
	if !strings.Contains(a.requests(), "/exec/"+s.Namespace+
		"/web/main?command=cat&command=-&error=1&input=1&output=1") {
		t.Errorf("got requests %q to the node, want exec", a.requests())
	}
	out, err = s.TryKubectl(t, "", "exec", "web", "--", "fail")
	var exit *exec.ExitError
	if err == nil || !strings.Contains(out, "exit code 3") {
		t.Errorf("exec of a failing command: got %q, %v, %v", out, err, exit)
	}
	request := s.Client.CoreV1().RESTClient().Post().Resource("pods").Namespace(s.Namespace).Name("web").SubResource(
		"exec").
		VersionedParams(&corev1.PodExecOptions{Command: []string{"fail"}, Stdin: true, Stdout: true},
			scheme.ParameterCodec)
	spdyClient, err := remotecommand.NewSPDYExecutor(s.Config, http.MethodPost, request.URL())
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	err = spdyClient.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: strings.NewReader("x"),
		Stdout: &got})
	code, ok := err.(utilexec.CodeExitError) //nolint:errorlint // the library returns the type itself
	if !ok || code.Code != 3 || got.String() != "fail\nx" {
		t.Errorf("exec through SPDY: got %q, %v", got.String(), err)
	}
	out, err = s.TryKubectl(t, "", "attach", "web")
	if err != nil || !strings.Contains(a.requests(), "/attach/"+s.Namespace+"/web/main?error=1&output=1") {
		t.Errorf("kubectl attach: got %q, %v, requests %q", out, err, a.requests())
	}
}

// forwarding matches the local port in the output of kubectl port-forward.
var forwarding = regexp.MustCompile(`127\.0\.0\.1:(\d+) ->`)

// TestPortForward forwards a port with kubectl and sends data in both directions.
func TestPortForward(t *testing.T) {
	t.Parallel()
	s := SharedWithoutControllers(t)
	startFakeNode(t, s, false)
	program, err := hosts.Kubectl()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, program, "--kubeconfig", s.Kubeconfig, "port-forward", "pod/web", ":80")
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { stop(); _ = cmd.Wait() }()
	line, err := bufio.NewReader(pipe).ReadString('\n')
	port := forwarding.FindStringSubmatch(line)
	if port == nil {
		t.Fatalf("kubectl: got %q, %v", line, err)
	}
	conn, err := net.DialTimeout("tcp", "127.0.0.1:"+port[1], 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintln(conn, "hello")
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); string(got) != "port 80\nhello\n" {
		t.Errorf("port-forward: got %q, %v", got, err)
	}
}

// TestNodeWithCertificateOfAnotherNodeIsRejected checks that the server does not connect to another node that has
// the address of a node.
func TestNodeWithCertificateOfAnotherNodeIsRejected(t *testing.T) {
	t.Parallel()
	s := SharedWithoutControllers(t)
	a := startFakeNodeNamed(t, s, "system:node:another")
	mustBeRejected(t, s, "", []string{"x509", "system:node:another"}, "logs", "web")
	mustBeRejected(t, s, "", nil, "exec", "web", "--", "true")
	mustBeRejected(t, s, "", []string{"x509"}, "get", "--raw", "/api/v1/nodes/"+s.Namespace+"/proxy/stats/summary")
	if a.requests() != "" {
		t.Errorf("got requests %q to another node, want none", a.requests())
	}
}

// TestNodeWithForeignCertificateIsRejected checks that the server only connects to a node with a
// certificate of the cluster's CA, unless the user requests --insecure-skip-tls-verify-backend.
func TestNodeWithForeignCertificateIsRejected(t *testing.T) {
	t.Parallel()
	s := SharedWithoutControllers(t)
	a := startFakeNode(t, s, true)
	mustBeRejected(t, s, "", []string{"x509"}, "logs", "web")
	mustBeRejected(t, s, "", nil, "exec", "web", "--", "true")
	if a.requests() != "" {
		t.Errorf("got requests %q to the node with a foreign certificate, want none", a.requests())
	}
	if got := s.Kubectl(t, "logs", "web", "--insecure-skip-tls-verify-backend"); got != "first\n" {
		t.Errorf("log with a foreign certificate: got %q", got)
	}
	// The node rejects clients without a certificate.
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(s.Authority.PEM())
	anonymous := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool,
		InsecureSkipVerify: true}}}
	defer anonymous.CloseIdleConnections()
	response, err := anonymous.Get(a.url + "/stats/summary")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusUnauthorized {
		t.Errorf("request without a client certificate: got %s", response.Status)
	}
}
