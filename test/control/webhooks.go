package control

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/client-go/util/cert"
)

// webhookServer serves a webhook at all addresses of this host.
type webhookServer struct {
	caBundle []byte
	port     string
}

// startWebhook starts a server that runs until the test ends. Its certificate is valid for 127.0.0.1 and the names.
func startWebhook(t testing.TB, handler http.Handler, names ...string) *webhookServer {
	t.Helper()
	bundle, key, err := cert.GenerateSelfSignedCertKey("webhook", []net.IP{net.IPv4(127, 0, 0, 1)}, names)
	if err != nil {
		t.Fatal(err)
	}
	serving, err := tls.X509KeyPair(bundle, key)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(handler)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	_ = server.Listener.Close() // replaced by one on all addresses
	server.Listener = listener
	server.TLS = &tls.Config{Certificates: []tls.Certificate{serving}, MinVersion: tls.VersionTLS12,
		ClientAuth: tls.RequestClientCert}
	server.StartTLS()
	t.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return &webhookServer{bundle, port}
}

// url returns the URL of the webhook.
func (w *webhookServer) url() string { return "https://127.0.0.1:" + w.port }

// asService creates a Service with the webhook as its only endpoint.
func (w *webhookServer) asService(t testing.TB, s *Server, name string) {
	t.Helper()
	s.Apply(t, fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %[1]s}
spec: {ports: [{name: https, port: 443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: https, port: %[2]s}]
endpoints: [{addresses: [%[3]q], conditions: {ready: true}}]
`, name, w.port, nonLoopbackAddress(t)))
}

// nonLoopbackAddress returns an IPv4 address of this host. An EndpointSlice must not have a loopback
// address.
func nonLoopbackAddress(t testing.TB) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	t.Fatal("this host has no IPv4 address apart from loopback ones")
	return ""
}
