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
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
)

// own is the audience of the server itself.
const own = "https://server"

// known are tokens and whose they are.
type known map[string]*authenticator.Response

func (k known) AuthenticateToken(_ context.Context, token string) (*authenticator.Response, bool, error) {
	if token == "forged" {
		return nil, false, errors.New("the signature is wrong")
	}
	r, ok := k[token]
	if !ok {
		return nil, false, nil
	}
	out := *r
	return &out, true, nil
}

// whose is a token's answer.
func whose(name string, audiences ...string) *authenticator.Response {
	return &authenticator.Response{User: &user.DefaultInfo{Name: name, Groups: []string{"them"}}, Audiences: audiences}
}

// signer is an authority that signs client certificates.
type signer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newSigner(t *testing.T, name string) signer {
	t.Helper()
	s := signer{}
	s.cert, s.key = s.sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return s
}

// sign makes a certificate of an hour; an authority that has no key yet signs
// itself.
func (s signer) sign(t *testing.T, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
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

func client(name string, groups ...string) *x509.Certificate {
	return &x509.Certificate{Subject: pkix.Name{CommonName: name, Organization: groups}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
}

// newWho is an authenticator of an authority and some tokens.
func newWho(ca signer) authenticator.Request {
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return New(Config{
		ClientCA: func() (x509.VerifyOptions, bool) {
			o := x509request.DefaultVerifyOptions()
			o.Roots = pool
			return o, true
		},
		KubeletClientName:    "to-nodes",
		ServiceAccountTokens: known{"account": whose("system:serviceaccount:a:b", own), "elsewhere": whose("system:serviceaccount:a:c", "vault")},
		BootstrapTokens:      known{"bootstrap": whose("system:bootstrap:x")},
		Audiences:            authenticator.Audiences{own},
	})
}

func TestWhoIsAsking(t *testing.T) {
	t.Parallel()
	ca, other := newSigner(t, "ours"), newSigner(t, "theirs")
	who := newWho(ca)
	jane, _ := ca.sign(t, client("jane", "developers"))
	stranger, _ := other.sign(t, client("jane", "system:masters"))
	late := client("late")
	late.NotBefore, late.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
	expired, _ := ca.sign(t, late)
	server, _ := ca.sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: "server"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	toNodes, _ := ca.sign(t, client("to-nodes", "system:masters")) // as releases before had it
	for _, c := range []struct {
		name, path, token string
		cert              *x509.Certificate
		want              string // the user's name; empty: nobody
		groups            []string
		refused           bool
	}{
		{name: "a certificate names its user and groups", cert: jane, want: "jane", groups: []string{"developers", user.AllAuthenticated}},
		{name: "a certificate of another authority is refused", cert: stranger, refused: true},
		{name: "an expired certificate is refused", cert: expired, refused: true},
		{name: "a server's certificate is nobody's", cert: server, refused: true},
		{name: "what a server shows to nodes is nobody's", cert: toNodes, refused: true},
		{name: "what a server shows to nodes is nobody's on an open path", path: "/readyz", cert: toNodes, refused: true},
		{name: "a service account's token", token: "account", want: "system:serviceaccount:a:b", groups: []string{"them", user.AllAuthenticated}},
		{name: "a bootstrap token", token: "bootstrap", want: "system:bootstrap:x", groups: []string{"them", user.AllAuthenticated}},
		{name: "a token that nobody knows is refused", token: "unknown", refused: true},
		{name: "a forged token is refused", token: "forged", refused: true},
		{name: "a certificate wins over a token", cert: jane, token: "account", want: "jane", groups: []string{"developers", user.AllAuthenticated}},
		{name: "no credential on an open path", path: "/readyz", want: user.Anonymous, groups: []string{user.AllUnauthenticated}},
		{name: "no credential on a path below an open one", path: "/readyz/etcd"},
		{name: "no credential elsewhere", path: "/api"},
		{name: "a bad credential is not taken for none on an open path", path: "/healthz", token: "forged", refused: true},
		{name: "an unknown token is not taken for none on an open path", path: "/livez", token: "unknown", refused: true},
		{name: "an open path by a longer way", path: "/api/../readyz"},
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
			got, ok, err := who.AuthenticateRequest(r)
			switch {
			case c.refused:
				if err == nil {
					t.Errorf("not refused: %v %v", got, ok)
				}
			case err != nil:
				t.Error(err)
			case c.want == "":
				if ok {
					t.Errorf("somebody: %v", got.User)
				}
			case !ok:
				t.Error("nobody")
			case got.User.GetName() != c.want || !slices.Equal(got.User.GetGroups(), c.groups):
				t.Errorf("%q of %q", got.User.GetName(), got.User.GetGroups())
			}
		})
	}
}

// TestTokensAreTakenOutOfRequests sees that what comes after the authenticator
// cannot hand a token on.
func TestTokensAreTakenOutOfRequests(t *testing.T) {
	t.Parallel()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://server/api", http.NoBody)
	r.Header.Set("Authorization", "Bearer account")
	if _, ok, err := newWho(newSigner(t, "ours")).AuthenticateRequest(r); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if r.Header.Get("Authorization") != "" {
		t.Error("the token is still there")
	}
}

func TestWithoutAnAuthorityCertificatesNameNobody(t *testing.T) {
	t.Parallel()
	jane, _ := newSigner(t, "theirs").sign(t, client("jane"))
	who := New(Config{ServiceAccountTokens: known{}, BootstrapTokens: known{}, Audiences: authenticator.Audiences{own}})
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://server/api", http.NoBody)
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{jane}}
	if got, ok, err := who.AuthenticateRequest(r); ok || err != nil {
		t.Error(got, ok, err)
	}
}

// FuzzAuthorizationHeader sees that only the one token that is known names
// anybody, whatever stands in the header.
func FuzzAuthorizationHeader(f *testing.F) {
	for _, s := range []string{"", "Bearer account", "bearer account", "Bearer  account", "Bearer account x", "Basic YTpi", "Bearer", "Bearer\taccount", "Bearer account\x00"} {
		f.Add(s)
	}
	who := New(Config{ServiceAccountTokens: known{"account": whose("somebody", own)}, BootstrapTokens: known{}, Audiences: authenticator.Audiences{own}})
	f.Fuzz(func(t *testing.T, header string) {
		r := &http.Request{Header: http.Header{"Authorization": {header}}}
		r = r.WithContext(t.Context())
		r.URL = httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://server/api", http.NoBody).URL
		got, ok, err := who.AuthenticateRequest(r)
		if ok && (err != nil || got.User.GetName() != "somebody" || !containsToken(header)) {
			t.Errorf("%q is %v, %v", header, got, err)
		}
	})
}

// containsToken: the token is in the header as a word of its own, after the scheme.
func containsToken(header string) bool {
	return slices.Contains(strings.Fields(header)[1:], "account")
}
