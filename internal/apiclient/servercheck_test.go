package apiclient

import (
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// checkServer checks a server as a node that trusts one authority.
func checkServer(t *testing.T, server string, ca *x509.Certificate) ServerCheck {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	config := &rest.Config{Host: server}
	config.CAData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw})
	if err := WriteKubeconfig(path, NewKubeconfig(config, &clientcmdapi.AuthInfo{Token: "secret-token"})); err != nil {
		t.Fatal(err)
	}
	id, err := NewIdentity(IdentityOptions{NodeName: "n", Kubeconfig: path, CertDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if leaf, err := id.Leaf(); leaf != nil || err != nil {
		t.Errorf("a token is a certificate: %v, %v", leaf, err)
	}
	return id.CheckServer(t.Context())
}

func TestCheckServer(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("server received credentials")
		}
		w.Header().Set("Date", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat))
	}))
	defer server.Close()
	s := checkServer(t, server.URL, server.Certificate())
	if s.Err != nil || s.TrustErr != nil || s.Server != server.URL || CAHash(s.CA) != CAHash(server.Certificate()) {
		t.Errorf("%+v", s)
	}
	if !s.HasDate || s.ClockSkew < 59*time.Minute || s.ClockSkew > time.Hour {
		t.Errorf("got clock skew %s", s.ClockSkew)
	}
	other := newAuthority(t).cert
	if s := checkServer(t, server.URL, other); s.Err != nil || s.TrustErr == nil ||
		!strings.Contains(
			s.TrustErr.Error(),
			CAHash(other),
		) || !strings.Contains(s.TrustErr.Error(), CAHash(server.Certificate())) {
		t.Errorf("other CA: %+v", s)
	}
	server.Close()
	if s := checkServer(t, server.URL, other); s.Err == nil || s.HasDate {
		t.Errorf("unreachable server: %+v", s)
	}
}

func TestClockSkew(t *testing.T) {
	t.Parallel()
	at := time.Unix(1000, 0)
	for _, c := range []struct{ start, end, serverTime, want time.Duration }{
		{300 * time.Millisecond, 400 * time.Millisecond, 0, 0},
		{300 * time.Millisecond, 20 * time.Second, 10 * time.Second, 0}, // a time in between
		{0, time.Second, 61 * time.Second, -60 * time.Second},
		{61 * time.Second, 62 * time.Second, 0, 60 * time.Second},
	} {
		if got := skewBetween(at.Add(c.start), at.Add(c.end), at.Add(c.serverTime)); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// TestServes: the answer is JSON, and a group that the server does not have is no error.
func TestServes(t *testing.T) {
	t.Parallel()
	var status int
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/apis/policies.berth.dev/v1" || r.Header.Get("Accept") != "application/json" {
			t.Errorf("request of %s, accepting %q", r.URL.Path, r.Header.Get("Accept"))
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(`{"kind":"APIResourceList","resources":[{"name":"networkpolicyaddresses"}]}`))
	}))
	defer server.Close()
	c, err := New(Options{Config: &rest.Config{Host: server.URL}})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		status    int
		want, err bool
	}{{http.StatusOK, true, false}, {http.StatusNotFound, false, false}, {http.StatusForbidden, false, false},
		{http.StatusUnauthorized, false, true}} {
		status = row.status
		if got, err := c.Serves(t.Context(), NetworkPolicyAddresses); got != row.want || (err != nil) != row.err {
			t.Errorf("status %d: got %t, %v", row.status, got, err)
		}
	}
}
