package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"
)

// authority is a CA for client certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, file: filepath.Join(t.TempDir(), "ca.crt")}
	a.key = newKey(t)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "clients"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(a.file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// sign creates a client certificate, modified by change.
func (a *authority) sign(name string, groups []string, change func(*x509.Certificate)) *tls.Certificate {
	a.t.Helper()
	key := newKey(a.t)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name, Organization: groups},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if change != nil {
		change(tmpl)
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// testServer is a server on a real port.
type testServer struct {
	url     string
	clients *authority
	stop    context.CancelFunc
	stopped chan error
}

// serve starts a server with options modified by change.
func serve(t *testing.T, change func(*Options)) *testServer {
	t.Helper()
	clients := newAuthority(t)
	ca, err := NewDynamicCA(clients.file)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := SelfSignedCertificate(t.TempDir(), "node1", []string{"127.0.0.1"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		NodeName: "node1", Certificate: pair.Certificate, ClientCA: ca, AuthorizationMode: ModeMastersOnly,
		EnableDebuggingHandlers: true,
		TokenTTL:                time.Minute, AuthorizedTTL: time.Minute, UnauthorizedTTL: time.Minute,
		Log: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&o)
	}
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	w := &testServer{url: "https://" + ln.Addr().String(), clients: clients, stop: cancel, stopped: make(chan error, 1)}
	go func() { w.stopped <- Serve(ctx, ln, o) }()
	t.Cleanup(func() {
		cancel()
		if err := <-w.stopped; err != nil {
			t.Errorf("Serve: %v", err)
		}
		w.stopped <- nil
	})
	return w
}

// caller is a client.
func (w *testServer) caller(t *testing.T, cert *tls.Certificate, token string) *http.Client {
	t.Helper()
	c := &tls.Config{InsecureSkipVerify: true}
	if cert != nil {
		c.Certificates = []tls.Certificate{*cert}
	}
	tr := &http.Transport{TLSClientConfig: c, ForceAttemptHTTP2: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: bearer{tr, token}}
}

type bearer struct {
	next  http.RoundTripper
	token string
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	if b.token != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+b.token)
	}
	return b.next.RoundTrip(r)
}

// master is a member of system:masters.
func (w *testServer) master(t *testing.T) *http.Client {
	return w.caller(t, w.clients.sign("admin", []string{masters}, nil), "")
}

// config is the client configuration of the caller for client-go.
func (w *testServer) config(t *testing.T) *rest.Config {
	t.Helper()
	cert := w.clients.sign("admin", []string{masters}, nil)
	key, err := x509.MarshalECPrivateKey(cert.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	return &rest.Config{Host: w.url, TLSClientConfig: rest.TLSClientConfig{
		Insecure: true,
		CertData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}),
		KeyData:  pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: key}),
	}}
}

// request sends a request and returns the status code and the body.
func request(t *testing.T, c *http.Client, method, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// reviews authenticates tokens by their text, and authorizes each user as in the table, by "verb
// subresource".
func reviews(users map[string]authenticationv1.UserInfo, permissions map[string][]string) Reviews {
	return Reviews{
		Token: func(_ context.Context, q authenticationv1.TokenReviewSpec) (authenticationv1.TokenReviewStatus, error) {
			u, known := users[q.Token]
			return authenticationv1.TokenReviewStatus{Authenticated: known, User: u}, nil
		},
		SubjectAccess: func(
			_ context.Context, q authorizationv1.SubjectAccessReviewSpec,
		) (authorizationv1.SubjectAccessReviewStatus, error) {
			a := q.ResourceAttributes
			var st authorizationv1.SubjectAccessReviewStatus
			if a.Resource != "nodes" || a.Name != "node1" || a.Group != "" {
				return st, nil
			}
			for _, permission := range permissions[q.User] {
				st.Allowed = st.Allowed || permission == a.Verb+" "+a.Subresource
			}
			return st, nil
		},
	}
}
