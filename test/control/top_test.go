package control

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"crypto/x509"

	"berth/control/pki"
	"berth/internal/localvolumes"
)

// TestTop runs kubectl top. The node reports a cumulative CPU time only, like the first response of an
// agent.
func TestTop(t *testing.T) {
	t.Parallel()
	s := Start(t)
	addNode(t, s, "n1", "4")
	s.Apply(t, podYAML("web", "1m", "  nodeName: n1"))
	uid := s.Kubectl(t, "get", "pod", "web", "-o", "jsonpath={.metadata.uid}")
	start := time.Now()
	serveSummary(t, s, "n1", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/stats/summary" || len(r.TLS.PeerCertificates) == 0 {
			t.Errorf("got a request for %s with %d client certificates", r.URL, len(r.TLS.PeerCertificates))
		}
		now := time.Now()
		total := now.Sub(start).Nanoseconds() / 4 // a quarter of a core
		at := now.Format(time.RFC3339Nano)
		fmt.Fprintf(w, `{"node": {"nodeName": "n1", "cpu": {"time": %q, "usageCoreNanoSeconds": %d},
"memory": {"time": %q, "workingSetBytes": 1073741824}},
"pods": [{"podRef": {"name": "web", "namespace": "default", "uid": %q},
"containers": [{"name": "main", "cpu": {"time": %q, "usageNanoCores": 120000000},
"memory": {"time": %q, "workingSetBytes": 52428800}}]}]}`,
			at, total, at, uid, at, at)
	})
	eventually(t, "the output of kubectl top node", func() (bool, string) {
		out, err := s.TryKubectl(t, "", "top", "node", "n1", "--no-headers")
		f := strings.Fields(out)
		if err != nil || len(f) != 5 {
			return false, out
		}
		milli, _ := strconv.Atoi(strings.TrimSuffix(f[1], "m"))
		return milli >= 245 && milli <= 255 && f[3] == "1024Mi" && f[4] == "25%", out
	})
	if got := strings.Join(strings.Fields(s.Kubectl(t, "top", "pod", "-A", "--containers", "--no-headers")),
		" "); got != "default web main 120m 50Mi" {
		t.Errorf("kubectl top pod: got %q", got)
	}
	if got := strings.Join(strings.Fields(s.Kubectl(t, "top", "pod", "web", "--no-headers")),
		" "); got != "web 120m 50Mi" {
		t.Errorf("kubectl top pod web: got %q", got)
	}
	if got := s.Kubectl(t, "get", "podmetrics", "--no-headers"); !strings.Contains(got, "web") || !strings.Contains(got,
		"50Mi") {
		t.Errorf("kubectl get podmetrics: got %q", got)
	}
}

// serveSummary runs the HTTP API of a kubelet for a node until the test ends, with one handler.
func serveSummary(t *testing.T, s *Server, node string, handler http.HandlerFunc) {
	t.Helper()
	cert, key, err := s.Authority.Issue(pki.Subject{
		Name: "system:node:" + node, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	agent := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == localvolumes.Path { // of the provisioner; a kubelet has no such path
			http.NotFound(w, r)
			return
		}
		handler(w, r)
	}))
	agent.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert,
		ClientCAs: s.Authority.Pool(), MinVersion: tls.VersionTLS12}
	agent.StartTLS()
	t.Cleanup(agent.Close)
	_, port, _ := net.SplitHostPort(agent.Listener.Addr().String())
	number, _ := strconv.Atoi(port)
	s.updateNodeStatus(t, node, func(n *corev1.Node) {
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
		n.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(number)
	})
}
