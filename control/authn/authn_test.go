package authn

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
)

// serverAudience is the audience of the API server.
const serverAudience = "https://server"

// fakeTokens maps tokens to responses.
type fakeTokens map[string]*authenticator.Response

func (k fakeTokens) AuthenticateToken(_ context.Context, token string) (*authenticator.Response, bool, error) {
	if token == "forged" {
		return nil, false, errors.New("invalid signature")
	}
	r, ok := k[token]
	if !ok {
		return nil, false, nil
	}
	out := *r
	return &out, true, nil
}

// tokenResponse returns the response for a token.
func tokenResponse(name string, audiences ...string) *authenticator.Response {
	return &authenticator.Response{User: &user.DefaultInfo{Name: name, Groups: []string{"them"}}, Audiences: audiences}
}

// testCA signs client certificates.
type testCA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newTestCA(t *testing.T, name string) testCA {
	t.Helper()
	s := testCA{}
	s.cert, s.key = s.sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return s
}

// sign issues a certificate valid for one hour. A CA without a key signs itself.
func (s testCA) sign(t *testing.T, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c.SerialNumber = big.NewInt(time.Now().UnixNano())
	if c.NotAfter.IsZero() {
		c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	}
	parent, by := s.cert, s.key
	if parent == nil {
		parent, by = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, by)
	if err != nil {
		t.Fatal(err)
	}
	out, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return out, key
}

func clientCertificate(name string, groups ...string) *x509.Certificate {
	return &x509.Certificate{Subject: pkix.Name{CommonName: name, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{
			x509.ExtKeyUsageClientAuth}}
}

// newTestAuthenticator returns an authenticator with a CA and some tokens.
func newTestAuthenticator(ca testCA) authenticator.Request {
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return New(Config{
		ClientCA: func() (x509.VerifyOptions, bool) {
			o := x509request.DefaultVerifyOptions()
			o.Roots = pool
			return o, true
		},
		KubeletClientName: "to-nodes",
		ServiceAccountTokens: fakeTokens{"account": tokenResponse("system:serviceaccount:a:b", serverAudience),
			"elsewhere": tokenResponse("system:serviceaccount:a:c", "vault")},
		BootstrapTokens: fakeTokens{"bootstrap": tokenResponse("system:bootstrap:x")},
		Audiences:       authenticator.Audiences{serverAudience},
		Anonymous:       anonymous.NewAuthenticator(nil),
	})
}

func TestAuthenticateRequest(t *testing.T) {
	t.Parallel()
	ca, other := newTestCA(t, "ours"), newTestCA(t, "theirs")
	auth := newTestAuthenticator(ca)
	jane, _ := ca.sign(t, clientCertificate("jane", "developers"))
	stranger, _ := other.sign(t, clientCertificate("jane", "system:masters"))
	late := clientCertificate("late")
	late.NotBefore, late.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
	expired, _ := ca.sign(t, late)
	server, _ := ca.sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: "server"}, ExtKeyUsage: []x509.ExtKeyUsage{
		x509.ExtKeyUsageServerAuth}})
	toNodes, _ := ca.sign(t, clientCertificate("to-nodes", "system:masters")) // as issued by earlier releases
	for _, c := range []struct {
		name, path, token string
		cert              *x509.Certificate
		want              string // user name; empty: not authenticated
		groups            []string
		rejected          bool
	}{
		{name: "a client certificate contains user and groups", cert: jane, want: "jane", groups: []string{"developers",
			user.AllAuthenticated}},
		{name: "a certificate of another CA is rejected", cert: stranger, rejected: true},
		{name: "an expired certificate is rejected", cert: expired, rejected: true},
		{name: "a serving certificate is rejected", cert: server, rejected: true},
		{name: "the API server's kubelet client certificate is rejected", cert: toNodes, rejected: true},
		{name: "the API server's kubelet client certificate is rejected on an anonymous path", path: "/readyz",
			cert:     toNodes,
			rejected: true},
		{name: "a service account token", token: "account", want: "system:serviceaccount:a:b", groups: []string{"them",
			user.AllAuthenticated}},
		{name: "a bootstrap token", token: "bootstrap", want: "system:bootstrap:x", groups: []string{"them",
			user.AllAuthenticated}},
		{name: "an unknown token is rejected", token: "unknown", rejected: true},
		{name: "a forged token is rejected", token: "forged", rejected: true},
		{name: "a certificate takes precedence over a token", cert: jane, token: "account", want: "jane",
			groups: []string{"developers", user.AllAuthenticated}},
		{name: "no credentials on an anonymous path", path: "/readyz", want: user.Anonymous,
			groups: []string{user.AllUnauthenticated}},
		{name: "no credentials on a path of the API", path: "/api", want: user.Anonymous,
			groups: []string{user.AllUnauthenticated}},
		{name: "an invalid credential is rejected on an anonymous path", path: "/healthz", token: "forged",
			rejected: true},
		{name: "an unknown token is rejected on an anonymous path", path: "/livez", token: "unknown", rejected: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			path := c.path
			if path == "" {
				path = "/api/v1/pods"
			}
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://server/", http.NoBody)
			r.URL.Path = path
			if c.token != "" {
				r.Header.Set("Authorization", "Bearer "+c.token)
			}
			if c.cert != nil {
				r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c.cert}}
			}
			got, ok, err := auth.AuthenticateRequest(r)
			switch {
			case c.rejected:
				if err == nil {
					t.Errorf("not rejected: %v %v", got, ok)
				}
			case err != nil:
				t.Error(err)
			case c.want == "":
				if ok {
					t.Errorf("authenticated as %v", got.User)
				}
			case !ok:
				t.Error("not authenticated")
			case got.User.GetName() != c.want || !slices.Equal(got.User.GetGroups(), c.groups):
				t.Errorf("got user %q, groups %q", got.User.GetName(), got.User.GetGroups())
			}
		})
	}
}

// TestCredentialsAreNeverAnonymous: a review of a token must not authenticate a request without one.
func TestCredentialsAreNeverAnonymous(t *testing.T) {
	t.Parallel()
	auth := New(Config{ServiceAccountTokens: fakeTokens{}, BootstrapTokens: fakeTokens{},
		Audiences: authenticator.Audiences{serverAudience}, Anonymous: anonymous.NewAuthenticator(nil)})
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://server/api", http.NoBody)
	if got, ok, err := auth.Credentials.AuthenticateRequest(r); ok || err != nil {
		t.Errorf("got %v, %v, %v", got, ok, err)
	}
	if got, ok, err := auth.AuthenticateRequest(r); !ok || err != nil || got.User.GetName() != user.Anonymous {
		t.Errorf("got %v, %v, %v", got, ok, err)
	}
}

// TestTokenIsRemovedFromRequest: handlers after the authenticator must not see the token.
func TestTokenIsRemovedFromRequest(t *testing.T) {
	t.Parallel()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://server/api", http.NoBody)
	r.Header.Set("Authorization", "Bearer account")
	if _, ok, err := newTestAuthenticator(newTestCA(t, "ours")).AuthenticateRequest(r); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if r.Header.Get("Authorization") != "" {
		t.Error("the token is still in the request")
	}
}

func TestWithoutCACertificatesAreIgnored(t *testing.T) {
	t.Parallel()
	jane, _ := newTestCA(t, "theirs").sign(t, clientCertificate("jane"))
	auth := New(Config{ServiceAccountTokens: fakeTokens{}, BootstrapTokens: fakeTokens{},
		Audiences: authenticator.Audiences{serverAudience}})
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://server/api", http.NoBody)
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{jane}}
	if got, ok, err := auth.AuthenticateRequest(r); ok || err != nil {
		t.Error(got, ok, err)
	}
}

// FuzzAuthorizationHeader checks that only the known token authenticates, for any header value.
func FuzzAuthorizationHeader(f *testing.F) {
	for _, s := range []string{"", "Bearer account", "bearer account", "Bearer  account", "Bearer account x",
		"Basic YTpi",
		"Bearer", "Bearer\taccount", "Bearer account\x00"} {
		f.Add(s)
	}
	auth := New(Config{ServiceAccountTokens: fakeTokens{"account": tokenResponse("user", serverAudience)},
		BootstrapTokens: fakeTokens{}, Audiences: authenticator.Audiences{serverAudience}})
	f.Fuzz(func(t *testing.T, header string) {
		r := &http.Request{Header: http.Header{"Authorization": {header}}}
		r = r.WithContext(t.Context())
		r.URL = httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://server/api", http.NoBody).URL
		got, ok, err := auth.AuthenticateRequest(r)
		if ok && (err != nil || got.User.GetName() != "user" || !containsToken(header)) {
			t.Errorf("header %q: %v, %v", header, got, err)
		}
	})
}

// containsToken reports whether the token is a separate word after the scheme.
func containsToken(header string) bool {
	return slices.Contains(strings.Fields(header)[1:], "account")
}
