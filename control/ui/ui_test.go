package ui

import (
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
)

const goodToken = "good.token"

// longToken is valid, but does not fit into a cookie.
var longToken = strings.Repeat("a", 3000)

var startTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// fixture is a handler in front of an API that authenticates goodToken, client certificates and sessions.
type fixture struct {
	*handler

	now time.Time
	// last is the last request for the path /api/v1/pods that the API received.
	last *http.Request
}

func newFixture() *fixture {
	f := &fixture{now: startTime}
	f.handler = New(Options{
		API: http.HandlerFunc(f.api), Key: bytes.Repeat([]byte{1}, 32), Now: func() time.Time { return f.now },
	}).(*handler) //nolint:errcheck,forcetypeassert // New returns no other type
	return f
}

// api is the API of a server.
func (f *fixture) api(w http.ResponseWriter, r *http.Request) {
	none := authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		return nil, false, nil
	})
	resp, ok, _ := WithSessionUser(none).AuthenticateRequest(r)
	user := ""
	switch {
	case ok:
		user = resp.User.GetName()
	case r.TLS != nil && len(r.TLS.PeerCertificates) > 0 && r.TLS.PeerCertificates[0].Subject.CommonName != "stranger":
		user = r.TLS.PeerCertificates[0].Subject.CommonName
	case r.Header.Get("Authorization") == "Bearer "+goodToken, r.Header.Get("Authorization") == "Bearer "+longToken:
		user = "jane"
	default:
		writeStatus(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized")
		return
	}
	if r.URL.Path != "/apis/authentication.k8s.io/v1/selfsubjectreviews" {
		f.last = r
		_, _ = io.WriteString(w, user)
		return
	}
	review := authenticationv1.SelfSubjectReview{}
	review.Status.UserInfo = authenticationv1.UserInfo{Username: user, Groups: []string{"system:authenticated"}}
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(review)
}

type option func(*http.Request)

func withHeader(name, value string) option {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

func withCookie(c *http.Cookie) option { return func(r *http.Request) { r.AddCookie(c) } }

// started is a session as the browser and the page keep it.
type started struct {
	*http.Cookie

	secret string
}

// withSession sends the cookie and the secret.
func withSession(s started) option {
	return func(r *http.Request) {
		r.AddCookie(s.Cookie)
		r.Header.Set(Header, s.secret)
	}
}

// withCertificateOf presents a client certificate that expires in an hour. The API does not accept that of "stranger".
func withCertificateOf(name string) option {
	return func(r *http.Request) {
		leaf := &x509.Certificate{NotAfter: startTime.Add(time.Hour)}
		leaf.Subject.CommonName = name
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}
	}
}

var withCertificate = withCertificateOf("admin")

// page is the header that the page sends.
var page = withHeader(Header, "1")

func (f *fixture) send(method, path, body string, options ...option) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	for _, o := range options {
		o(r)
	}
	w := httptest.NewRecorder()
	f.ServeHTTP(w, r)
	return w
}

// signIn signs in.
func (f *fixture) signIn(t *testing.T, body string, options ...option) started {
	t.Helper()
	w := f.send("POST", "/ui/session", body, append(options, page)...)
	var out session
	if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil || w.Code != http.StatusOK || out.Secret == "" ||
		len(w.Result().Cookies()) != 1 {
		t.Fatalf("sign-in: %d %s", w.Code, w.Body)
	}
	return started{w.Result().Cookies()[0], out.Secret}
}

// newLink returns the code of a link for the user of a client certificate.
func (f *fixture) newLink(t *testing.T, duration string) string {
	t.Helper()
	w := f.send("POST", "/ui/links", `{"duration": "`+duration+`"}`, page, withCertificate)
	var out LinkResponse
	if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil || w.Code != http.StatusOK {
		t.Fatalf("link: %d %s", w.Code, w.Body)
	}
	return out.Code
}

func TestAssetsAreServedWithStrictPolicy(t *testing.T) {
	t.Parallel()
	f := newFixture()
	w := f.send("GET", "/ui/", "")
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "text/html; charset=utf-8" {
		t.Fatalf("got %d %v", w.Code, w.Header())
	}
	policy := w.Header().Get("Content-Security-Policy")
	for _, part := range []string{"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'",
		"require-trusted-types-for 'script'"} {
		if !strings.Contains(policy, part) {
			t.Errorf("the policy %q does not contain %q", policy, part)
		}
	}
	if strings.Contains(policy, "unsafe") || strings.Contains(policy, "http") {
		t.Errorf("the policy %q is not strict", policy)
	}
	for _, u := range []string{`href="/`, `src="/`, "http:", "https:", "//"} {
		if strings.Contains(w.Body.String(), u) {
			t.Errorf("the page contains %q: all addresses must be relative", u)
		}
	}
	for name, header := range map[string]string{"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
		"Referrer-Policy": "no-referrer"} {
		if got := w.Header().Get(name); got != header {
			t.Errorf("%s: got %q", name, got)
		}
	}
}

func TestAssetEncodingAndCaching(t *testing.T) {
	t.Parallel()
	f := newFixture()
	plain := f.send("GET", "/ui/app.js", "")
	packed := f.send("GET", "/ui/app.js", "", withHeader("Accept-Encoding", "br, gzip"))
	if packed.Header().Get("Content-Encoding") != "gzip" || plain.Header().Get("Content-Encoding") != "" {
		t.Fatalf("encodings: %v, %v", packed.Header(), plain.Header())
	}
	reader, err := gzip.NewReader(packed.Body)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(reader); err != nil || !bytes.Equal(text, plain.Body.Bytes()) {
		t.Errorf("the contents differ: %v", err)
	}
	if w := f.send("GET", "/ui/app.js", "", withHeader("If-None-Match", plain.Header().Get("Etag"))); w.Code != 304 {
		t.Errorf("unchanged file: got %d", w.Code)
	}
	for path, want := range map[string]int{"/ui/missing.js": 404, "/ui/../ui/app.js": 404, "/ui/dist/app.js.gz": 404} {
		if w := f.send("GET", path, ""); w.Code != want {
			t.Errorf("%s: got %d, want %d", path, w.Code, want)
		}
	}
	if w := f.send("POST", "/ui/app.js", ""); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: got %d", w.Code)
	}
	if w := f.send("GET", "/ui", ""); w.Code != 301 || w.Header().Get("Location") != "./ui/" {
		t.Errorf("/ui: got %d %q, want a relative redirect", w.Code, w.Header().Get("Location"))
	}
}

func TestAcceptsGzip(t *testing.T) {
	t.Parallel()
	for accept, want := range map[string]bool{"": false, "br": false, "gzip": true, "br, gzip;q=0.5": true, "*": true,
		"gzip;q=0": false, "gzip; q=0.0": false} {
		if got := acceptsGzip(accept); got != want {
			t.Errorf("%q: got %t", accept, got)
		}
	}
}

// TestTokenSession signs in with a token and requests the API.
func TestTokenSession(t *testing.T) {
	t.Parallel()
	f := newFixture()
	session := f.signIn(t, `{"token": " good.token\n"}`)
	if !session.HttpOnly || !session.Secure || session.SameSite != http.SameSiteStrictMode || session.Path != "" ||
		session.Domain != "" || strings.Contains(session.Value, goodToken) {
		t.Errorf("cookie: %+v", session.Cookie)
	}
	w := f.send("GET", "/ui/api/api/v1/pods?watch=true", "", withSession(session))
	if w.Code != http.StatusOK || w.Body.String() != "jane" {
		t.Fatalf("got %d %s", w.Code, w.Body)
	}
	if got := f.last; got.URL.String() != "/api/v1/pods?watch=true" || got.RequestURI != "/api/v1/pods?watch=true" ||
		got.Header.Get("Cookie") != "" || got.Header.Get(Header) != "" {
		t.Errorf("the API received %s (%s) with %v", got.URL, got.RequestURI, got.Header)
	}
	if policy := w.Header().Get("Content-Security-Policy"); policy != dataPolicy {
		t.Errorf("policy of a response of the API: %q", policy)
	}
	w = f.send("GET", "/ui/session", "", withSession(session))
	const want = `{"user":"jane","groups":["system:authenticated"],"signOut":true}`
	if got := strings.TrimSpace(w.Body.String()); got != want {
		t.Errorf("session: %d %s", w.Code, got)
	}
	w = f.send("DELETE", "/ui/session", "", page)
	c := w.Result().Cookies()
	if w.Code != http.StatusNoContent || len(c) != 1 || c[0].MaxAge >= 0 || c[0].Value != "" {
		t.Errorf("sign-out: %d %v", w.Code, c)
	}
}

func TestInvalidCredentials(t *testing.T) {
	t.Parallel()
	f := newFixture()
	for name, c := range map[string]struct {
		body    string
		code    int
		message string
	}{
		"unknown token": {`{"token": "other.token"}`, 401, "the server does not accept these credentials"},
		"no token":      {`{}`, 400, "this is not a token"},
		"line break":    {`{"token": "good\ntoken"}`, 400, "this is not a token"},
		"long token":    {`{"token": "` + longToken + `"}`, 400, "too long"},
		"no JSON":       {`token`, 400, "invalid request"},
		"unknown code":  {`{"code": "ABC"}`, 401, "this link has been used or has expired"},
	} {
		w := f.send("POST", "/ui/session", c.body, page)
		if w.Code != c.code || !strings.Contains(w.Body.String(), c.message) || len(w.Result().Cookies()) > 0 {
			t.Errorf("%s: got %d %s", name, w.Code, w.Body)
		}
	}
	for _, value := range []string{"", "user:", "user:e30.AAAA", "other", "token:good.token"} {
		w := f.send("GET", "/ui/api/api/v1/pods", "", page, withCookie(&http.Cookie{Name: cookieName, Value: value}))
		if w.Code != http.StatusUnauthorized {
			t.Errorf("cookie %q: got %d", value, w.Code)
		}
	}
}

// TestCookieHasNoEffectOutsideUI is invariant 1.
func TestCookieHasNoEffectOutsideUI(t *testing.T) {
	t.Parallel()
	f := newFixture()
	session := f.signIn(t, `{"token": "good.token"}`)
	link := f.signIn(t, `{"code": "`+f.newLink(t, "10m")+`"}`)
	for _, path := range []string{"/api/v1/pods", "/apis", "/uix/api/api/v1/pods", "/version"} {
		for _, c := range []started{session, link} {
			if w := f.send("GET", path, "", withSession(c)); w.Code != http.StatusUnauthorized {
				t.Errorf("%s: got %d %s", path, w.Code, w.Body)
			}
		}
	}
}

// TestRequestsRequireHeader is invariant 2.
func TestRequestsRequireHeader(t *testing.T) {
	t.Parallel()
	f := newFixture()
	session := f.signIn(t, `{"token": "good.token"}`)
	for _, r := range []struct{ method, path string }{{"GET", "/ui/api/api/v1/pods"},
		{"DELETE", "/ui/api/api/v1/pods/a"},
		{"GET", "/ui/session"}, {"POST", "/ui/session"}, {"DELETE", "/ui/session"}, {"POST", "/ui/links"}} {
		for name, options := range map[string][]option{
			"without the header": {},
			"cross-site":         {page, withHeader("Sec-Fetch-Site", "cross-site")},
			"same-site":          {page, withHeader("Sec-Fetch-Site", "same-site")},
			"from an address":    {page, withHeader("Sec-Fetch-Site", "none")},
		} {
			withoutHeader := append([]option{withCookie(session.Cookie)}, options...)
			w := f.send(r.method, r.path, `{"token": "good.token"}`, withoutHeader...)
			if w.Code != http.StatusForbidden || len(w.Result().Cookies()) > 0 {
				t.Errorf("%s %s, %s: got %d", r.method, r.path, name, w.Code)
			}
		}
	}
	if w := f.send("GET", "/ui/session", "", withHeader("Sec-Fetch-Site", "same-origin"),
		withSession(session)); w.Code != http.StatusOK {
		t.Errorf("from the page: got %d", w.Code)
	}
}
