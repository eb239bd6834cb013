package apiclient

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	certsv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// authority signs requests like an API server.
type authority struct {
	key      *ecdsa.PrivateKey
	cert     *x509.Certificate
	lifetime time.Duration
	deny     bool
	mu       sync.Mutex
	requests []*certsv1.CertificateSigningRequest
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "ca"},
		IsCA:                  true,
		BasicConstraintsValid: true,
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{key: key, cert: cert, lifetime: time.Hour}
}

func (a *authority) sign(request []byte) []byte {
	block, _ := pem.Decode(request)
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		panic(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: csr.Subject, DNSNames: csr.DNSNames, IPAddresses: csr.IPAddresses,
		NotBefore: time.Now(), NotAfter: time.Now().Add(a.lifetime),
	}, a.cert, csr.PublicKey, a.key)
	if err != nil {
		panic(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// server serves certificate requests. The certificate is issued at the second request for the
// CertificateSigningRequest.
func (a *authority) server(t *testing.T) *Client {
	t.Helper()
	h := http.NewServeMux()
	respond := func(w http.ResponseWriter, csr *certsv1.CertificateSigningRequest) {
		csr.TypeMeta = metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(csr)
	}
	const path = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
	h.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
		csr := &certsv1.CertificateSigningRequest{}
		codecs, _ := wire()
		body := make([]byte, r.ContentLength)
		if _, err := r.Body.Read(body); err != nil && err.Error() != "EOF" {
			t.Error(err)
		}
		if _, _, err := codecs.UniversalDeserializer().Decode(body, nil, csr); err != nil {
			t.Error(err)
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.requests = append(a.requests, csr)
		respond(w, csr)
	})
	h.HandleFunc("GET "+path+"/{name}", func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		csr := a.requests[len(a.requests)-1].DeepCopy()
		if a.deny {
			csr.Status.Conditions = append(
				csr.Status.Conditions,
				certsv1.CertificateSigningRequestCondition{
					Type:    certsv1.CertificateDenied,
					Status:  "True",
					Reason:  "No",
					Message: "not you",
				},
			)
		} else {
			csr.Status.Certificate = a.sign(csr.Spec.Request)
		}
		respond(w, csr)
	})
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	c, err := New(Options{Config: &rest.Config{Host: s.URL}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestCertificateIsRequestedAndReloaded(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	c := a.server(t)
	o := CertificateOptions{
		Dir:             t.TempDir(),
		Name:            "kubelet-client",
		Request:         NodeClientRequest("n", "m"),
		BootstrapClient: func() (*Client, error) { return c, nil },
	}
	cert, warning := OpenCertificate(o)
	if _, err := cert.Current(); warning != nil || err == nil || cert.Valid() {
		t.Fatalf("%v %v", warning, err)
	}
	if err := cert.obtain(t.Context(), o.BootstrapClient); err != nil || !cert.Valid() {
		t.Fatal(err)
	}
	spec := a.requests[0].Spec
	if spec.SignerName != certsv1.KubeAPIServerClientKubeletSignerName || len(spec.Usages) != 2 {
		t.Errorf("unexpected request %+v", spec)
	}
	if st, err := os.Stat(cert.Path()); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", st, err)
	}
	again, warning := OpenCertificate(o)
	if warning != nil || !again.Valid() || again.Expires() != cert.Expires() {
		t.Errorf("%v", warning)
	}
	o.Request = NodeClientRequest("other", "m")
	if other, warning := OpenCertificate(o); warning == nil || other.Valid() ||
		!strings.Contains(warning.Error(), "system:node:n") {
		t.Errorf("certificate of another node is used: %v", warning)
	}
}

func TestRenewedCertificateIsUsedWithoutRestart(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	c := a.server(t)
	now := time.Now()
	o := CertificateOptions{
		Dir:     t.TempDir(),
		Name:    "kubelet-client",
		Request: NodeClientRequest("n", "m"),
		Now:     func() time.Time { return now },
	}
	var ages []time.Duration
	o.OnRotated = func(age time.Duration) { ages = append(ages, age) }
	o.BootstrapClient = func() (*Client, error) { return c, nil }
	o.RenewalClient = o.BootstrapClient
	cert, _ := OpenCertificate(o)
	changed := 0
	cert.onChange(func() { changed++ })
	if err := cert.obtain(t.Context(), o.BootstrapClient); err != nil {
		t.Fatal(err)
	}
	if due, _ := cert.due(); due.Before(now.Add(41*time.Minute)) || due.After(now.Add(55*time.Minute)) {
		t.Errorf("renewal after %s", due.Sub(now))
	}
	first, _ := cert.Current()
	now = now.Add(2 * time.Hour) // the node was off for long
	if cert.Valid() {
		t.Fatal("expired certificate is valid")
	}
	a.lifetime = 4 * time.Hour
	if _, who := cert.due(); who == nil || cert.obtain(t.Context(), who) != nil {
		t.Fatal("bootstrap client is missing")
	}
	if second, err := cert.Current(); err != nil || second == first || changed != 2 || !cert.Valid() {
		t.Errorf("got %v, %d changes", err, changed)
	}
	if len(ages) != 1 || ages[0] < 2*time.Hour-time.Minute || ages[0] > 2*time.Hour+time.Minute {
		t.Errorf("ages of replaced certificates: %v, want one of two hours", ages)
	}
	if files, _ := filepath.Glob(filepath.Join(o.Dir, "kubelet-client-2*.pem")); len(files) != 1 {
		t.Errorf("remaining files: %v", files)
	}
}

func TestDeniedRequestIsRetriedWithNewKey(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.deny = true
	c := a.server(t)
	o := CertificateOptions{
		Dir:             t.TempDir(),
		Name:            "kubelet-client",
		Request:         NodeClientRequest("n", "m"),
		BootstrapClient: func() (*Client, error) { return c, nil },
		Hint:            "join again",
	}
	cert, _ := OpenCertificate(o)
	for range 2 {
		if err := cert.obtain(t.Context(), o.BootstrapClient); err == nil ||
			!strings.Contains(err.Error(), "not you") {
			t.Fatalf("%v", err)
		}
	}
	if a.requests[0].Name == a.requests[1].Name {
		t.Error("denied request was reused")
	}
	if err := cert.obtain(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "join again") {
		t.Errorf("no way out: %v", err)
	}
}

func TestFailedCertificateRequestIsReported(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.deny = true
	c := a.server(t)
	ctx, cancel := context.WithCancel(t.Context())
	reported := make(chan struct{}, 1)
	cert, _ := OpenCertificate(CertificateOptions{
		Dir: t.TempDir(), Name: "kubelet-client", Request: NodeClientRequest("n", "m"),
		BootstrapClient: func() (*Client, error) { return c, nil },
		OnError:         func() { reported <- struct{}{}; cancel() },
	})
	if err := cert.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if len(reported) != 1 {
		t.Error("the failed request was not reported")
	}
}

// TestCheckToken expects an error only for a rejected token.
func TestCheckToken(t *testing.T) {
	t.Parallel()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("Authorization") {
		case "Bearer good":
		case "Bearer known":
			w.WriteHeader(http.StatusForbidden)
		default:
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	t.Cleanup(s.Close)
	found, err := Discover(t.Context(), s.URL, CAHash(s.Certificate()))
	if err != nil {
		t.Fatal(err)
	}
	for token, want := range map[string]error{"good": nil, "known": nil, "old": ErrTokenRejected} {
		if err := CheckToken(t.Context(), found, token); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", token, err, want)
		}
	}
	s.Close()
	if err := CheckToken(t.Context(), found, "old"); err != nil {
		t.Errorf("an unreachable server: %v", err)
	}
}

func TestDiscover(t *testing.T) {
	t.Parallel()
	s := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(s.Close)
	ca := s.Certificate() // self-signed
	got, err := Discover(t.Context(), s.URL, CAHash(ca))
	if err != nil || !strings.Contains(string(got.CAData), "CERTIFICATE") {
		t.Errorf("%v", err)
	}
	for _, row := range [][3]string{
		{s.URL, "sha256:" + strings.Repeat("ab", 32), "neither presents nor publishes"},
		{s.URL, "sha1:ab", "--discovery-token-ca-cert-hash"},
		{"http://" + s.Listener.Addr().String(), CAHash(ca), "--server"},
		{"https://127.0.0.1:1", CAHash(ca), "--server: connect"},
		{strings.Replace(s.URL, "127.0.0.1", "localhost", 1), CAHash(ca), "not localhost"},
	} {
		if _, err := Discover(t.Context(), row[0], row[1]); err == nil || !strings.Contains(err.Error(), row[2]) {
			t.Errorf("%s %s: %v, want %s", row[0], row[1], err, row[2])
		}
	}
}
