package pods

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// hostAddresses returns the addresses of a host with interfaces of these CIDRs.
func hostAddresses(cidrs ...string) func() ([]net.Addr, error) {
	return func() (out []net.Addr, err error) {
		for _, text := range cidrs {
			ip, network, err := net.ParseCIDR(text)
			if err != nil {
				return nil, err
			}
			out = append(out, &net.IPNet{IP: ip, Mask: network.Mask})
		}
		return out, nil
	}
}

// dialer returns a Dialer for a pod and a node.
func dialer(t *testing.T, pod *corev1.Pod, node *corev1.Node) *Dialer {
	t.Helper()
	pods := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	nodes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	if err := pods.Add(pod); err != nil {
		t.Fatal(err)
	}
	if err := nodes.Add(node); err != nil {
		t.Fatal(err)
	}
	return &Dialer{Pods: corelisters.NewPodLister(pods), Nodes: corelisters.NewNodeLister(nodes),
		HostAddresses: hostAddresses("127.0.0.1/8", "192.0.2.1/24")}
}

func runningPod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.PodSpec{NodeName: "n1"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.42.0.7",
			PodIPs: []corev1.PodIP{{IP: "10.42.0.7"}, {IP: "fd00::7"}}}}
}

func nodeAt(addresses ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	return n
}

func TestForwardedPod(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, address, node string
		change              func(*corev1.Pod)
		want                bool
	}{
		{"pod of another host", "10.42.0.7", "192.0.2.2", nil, true},
		{"second address", "fd00::7", "192.0.2.2", nil, true},
		{"IPv4 in IPv6", "::ffff:10.42.0.7", "192.0.2.2", nil, true},
		{"host is a node", "10.42.0.7", "192.0.2.1", nil, false},
		{"no pod", "10.42.0.8", "192.0.2.2", nil, false},
		{"host network", "10.42.0.7", "192.0.2.2", func(p *corev1.Pod) { p.Spec.HostNetwork = true }, false},
		{"not scheduled", "10.42.0.7", "192.0.2.2", func(p *corev1.Pod) { p.Spec.NodeName = "" }, false},
		{"succeeded", "10.42.0.7", "192.0.2.2", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, false},
		{"failed", "10.42.0.7", "192.0.2.2", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, false},
	} {
		pod := runningPod()
		if c.change != nil {
			c.change(pod)
		}
		got, err := dialer(t, pod, nodeAt(c.node)).forwardedPod(netip.MustParseAddr(c.address).Unmap())
		if err != nil {
			t.Fatal(err)
		}
		if (got != nil) != c.want {
			t.Errorf("%s: got pod %v, want forwarded: %v", c.name, got, c.want)
		}
	}
}

// kubelet serves /portForward. It connects to the address that ports has for the port, and reports an error
// message for the port 500. It refuses other ports as berth does: without a message.
type kubelet struct {
	*httptest.Server

	ports map[string]string
	paths chan string
}

// startKubelet starts a kubelet whose serving certificate has a common name, and returns a Dialer that uses it as
// the kubelet of the node n1.
func startKubelet(t *testing.T, commonName string, ports map[string]string) (*kubelet, *Dialer) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: commonName},
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots.AddCert(leaf)
	k := &kubelet{ports: ports, paths: make(chan string, 16)}
	k.Server = httptest.NewUnstartedServer(http.HandlerFunc(k.serve))
	k.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		MinVersion: tls.VersionTLS12}
	k.StartTLS()
	t.Cleanup(k.Close)
	node := nodeAt("127.0.0.1")
	_, port, err := net.SplitHostPort(k.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(port, &node.Status.DaemonEndpoints.KubeletEndpoint.Port); err != nil {
		t.Fatal(err)
	}
	d := dialer(t, runningPod(), node)
	d.HostAddresses = hostAddresses("192.0.2.1/24")
	d.Kubelets = NewKubeletTransports(roots, func() (*tls.Certificate, error) { return &tls.Certificate{}, nil })
	return k, d
}

// serve serves one connection.
func (k *kubelet) serve(w http.ResponseWriter, r *http.Request) {
	k.paths <- r.URL.Path
	if _, err := httpstream.Handshake(r, w, []string{forwardProtocol}); err != nil {
		return
	}
	streams := make(chan httpstream.Stream, 2)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		streams <- s
		return nil
	})
	if conn == nil {
		return
	}
	defer conn.Close()
	failure, data := <-streams, <-streams
	port := data.Headers().Get(corev1.PortHeader)
	to, open := k.ports[port]
	switch {
	case port == "500":
		fmt.Fprint(failure, "no such pod")
		failure.Close()
		data.Close()
	case !open:
		_ = data.Reset()
		failure.Close()
	default:
		target, err := net.Dial("tcp", to)
		if err != nil {
			return
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			_, _ = io.Copy(target, data)
			target.(*net.TCPConn).CloseWrite()
		})
		_, _ = io.Copy(data, target)
		data.Close()
		failure.Close()
		wg.Wait()
	}
	<-conn.CloseChan()
}

// TestDialThroughNode reaches a pod through the API of its node: by HTTP with the transport to pods, with the
// error of the node, and not if another node has the address.
func TestDialThroughNode(t *testing.T) {
	t.Parallel()
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s", r.Host, body)
	}))
	t.Cleanup(app.Close) // after the parallel subtests
	for name, c := range map[string]struct{ node, port, want string }{
		"request":      {"n1", "80", "10.42.0.7:80 hello"},
		"message":      {"n1", "500", "port 500 of pod default/web through node n1: no such pod"},
		"refused":      {"n1", "81", "port 81 of pod default/web through node n1: connection refused"},
		"another node": {"n2", "80", `the serving certificate is of "system:node:n2", not that of node "n1"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k, d := startKubelet(t, nodeUserPrefix+c.node, map[string]string{"80": app.Listener.Addr().String()})
			transport := NewPodTransport(d.DialContext)
			defer transport.CloseIdleConnections()
			client := &http.Client{Transport: transport}
			for range 2 { // the second request uses the connection of the first
				var got string
				resp, err := client.Post("http://10.42.0.7:"+c.port, "", strings.NewReader("hello"))
				if err != nil {
					got = err.Error()
				} else {
					body, _ := io.ReadAll(resp.Body)
					resp.Body.Close()
					got = string(body)
				}
				if !strings.Contains(got, c.want) {
					t.Errorf("got %q, want %q in it", got, c.want)
				}
			}
			if c.node == "n1" {
				if path := <-k.paths; path != "/portForward/default/web" {
					t.Errorf("got path %s", path)
				}
			}
			if name == "request" && len(k.paths) != 0 {
				t.Error("the second request did not use the connection of the first")
			}
		})
	}
}

// TestForwardedConn closes a connection while another goroutine reads, keeps deadlines, and ends dialing with its
// context.
func TestForwardedConn(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, d := startKubelet(t, nodeUserPrefix+"n1", map[string]string{"80": listener.Addr().String()})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if conn, err := d.DialContext(ended, "tcp", "10.42.0.7:80"); err == nil {
		conn.Close()
		t.Error("dialed with a context that has ended")
	}
	conn, err := d.DialContext(t.Context(), "tcp", "10.42.0.7:80")
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	if err := conn.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 16)
	if _, err := conn.Read(buffer); err == nil || !strings.Contains(err.Error(), "timeout") {
		t.Errorf("read after the deadline: got %v", err)
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if _, err := accepted.Write([]byte("first")); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(buffer); string(buffer[:n]) != "first" || err != nil {
		t.Errorf("got %q, %v", buffer[:n], err)
	}
	read := make(chan error, 1)
	go func() {
		_, err := conn.Read(buffer)
		read <- err
	}()
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	if err := <-read; err == nil {
		t.Error("read after close: got no error")
	}
	if _, err := accepted.Read(buffer); !errors.Is(err, io.EOF) {
		t.Errorf("the pod read %v after close, want the end", err)
	}
}
