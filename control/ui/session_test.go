package ui

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestLinkCreatesOneSession is invariant 4.
func TestLinkCreatesOneSession(t *testing.T) {
	t.Parallel()
	f := newFixture()
	code := f.newLink(t, "10m")
	session := f.signIn(t, `{"code": "`+code+`"}`)
	if w := f.send("GET", "/ui/api/api/v1/pods", "", withSession(session)); w.Body.String() != "admin" {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	if w := f.send("POST", "/ui/session", `{"code": "`+code+`"}`, page); w.Code != http.StatusUnauthorized {
		t.Errorf("second use: got %d", w.Code)
	}
	late := f.newLink(t, "10m")
	f.now = f.now.Add(LinkLifetime)
	if w := f.send("POST", "/ui/session", `{"code": "`+late+`"}`, page); w.Code != http.StatusUnauthorized {
		t.Errorf("expired link: got %d", w.Code)
	}
}

// TestSessionEnds is invariant 3: a session ends after its duration and with the certificate at the latest.
func TestSessionEnds(t *testing.T) {
	t.Parallel()
	for duration, want := range map[string]time.Duration{"10m": 10 * time.Minute, "20h": time.Hour} {
		f := newFixture()
		session := f.signIn(t, `{"code": "`+f.newLink(t, duration)+`"}`)
		if session.MaxAge != int(want.Seconds()) {
			t.Errorf("%s: the cookie lives for %d seconds", duration, session.MaxAge)
		}
		f.now = startTime.Add(want - time.Second)
		if w := f.send("GET", "/ui/session", "", withSession(session)); w.Code != http.StatusOK {
			t.Errorf("%s: before the end: got %d", duration, w.Code)
		}
		f.now = startTime.Add(want)
		if w := f.send("GET", "/ui/session", "", withSession(session)); w.Code != http.StatusUnauthorized {
			t.Errorf("%s: after the end: got %d", duration, w.Code)
		}
	}
}

func TestLinkRequiresClientCertificate(t *testing.T) {
	t.Parallel()
	f := newFixture()
	session := f.signIn(t, `{"token": "good.token"}`)
	for name, o := range map[string]option{"token": withHeader("Authorization", "Bearer good.token"),
		"session": withSession(session)} {
		if w := f.send("POST", "/ui/links", `{"duration": "1h"}`, page, o); w.Code != http.StatusUnauthorized {
			t.Errorf("%s: got %d %s", name, w.Code, w.Body)
		}
	}
	for _, duration := range []string{"0s", "-1h", "25h"} {
		if w := f.send("POST", "/ui/links", `{"duration": "`+duration+`"}`, page, withCertificate); w.Code != 400 {
			t.Errorf("duration %s: got %d", duration, w.Code)
		}
	}
	if w := f.send("POST", "/ui/links", `{"duration": "1h"}`, page, withCertificate,
		withHeader("Impersonate-User", "jane")); w.Code != 400 {
		t.Errorf("impersonation: got %d", w.Code)
	}
}

func TestNumberOfLinksIsLimited(t *testing.T) {
	t.Parallel()
	f := newFixture()
	create := func(name string) int {
		return f.send("POST", "/ui/links", `{"duration": "1h"}`, page, withCertificateOf(name)).Code
	}
	for user := range maxLinks / maxUserLinks {
		name := fmt.Sprintf("user-%d", user)
		for range maxUserLinks {
			if code := create(name); code != 200 {
				t.Fatalf("%s: got %d", name, code)
			}
		}
		if code := create(name); code != 429 {
			t.Errorf("too many links of %s: got %d", name, code)
		}
	}
	if code := create("another"); code != 429 {
		t.Errorf("too many links: got %d", code)
	}
	f.now = f.now.Add(LinkLifetime)
	f.newLink(t, "1h") // expired links do not count
}

// TestSessionRequiresSecret is invariant 5.
func TestSessionRequiresSecret(t *testing.T) {
	t.Parallel()
	f := newFixture()
	first, second := f.signIn(t, `{"token": "good.token"}`), f.signIn(t, `{"code": "`+f.newLink(t, "10m")+`"}`)
	if first.secret == second.secret || strings.Contains(first.Value, first.secret) {
		t.Error("the secret is known")
	}
	for _, path := range []string{"/ui/api/api/v1/pods", "/ui/session"} {
		for _, s := range []started{{first.Cookie, "1"}, {first.Cookie, second.secret}, {second.Cookie, first.secret}} {
			w := f.send("GET", path, "", withSession(s))
			if w.Code != http.StatusUnauthorized || !strings.Contains(w.Body.String(), signInFirst) {
				t.Errorf("%s with the secret %s: got %d %s", path, s.secret, w.Code, w.Body)
			}
		}
	}
}

// TestForgedSession changes each byte of a cookie.
func TestForgedSession(t *testing.T) {
	t.Parallel()
	f := newFixture()
	value, secret, err := f.seal(sessionContent{User: &sessionUser{Name: "admin", Expires: f.now.Add(time.Hour)}})
	if err != nil {
		t.Fatal(err)
	}
	if f.unseal(value, secret) == nil {
		t.Fatal("a valid session is rejected")
	}
	for i := range len(value) {
		forged := []byte(value)
		if forged[i]++; f.unseal(string(forged), secret) != nil {
			t.Errorf("the session is accepted with a changed byte %d", i)
		}
	}
}

// TestOwnCredentials sends requests with the credentials of kubectl proxy, and with those that the API ignores.
func TestOwnCredentials(t *testing.T) {
	t.Parallel()
	f := newFixture()
	link := f.signIn(t, `{"code": "`+f.newLink(t, "10m")+`"}`)
	basic, rejected := withHeader("Authorization", "Basic YTpi"), withHeader("Authorization", "Bearer x")
	joe := withCertificateOf("joe")
	for name, c := range map[string]struct {
		options []option
		user    string // empty: not signed in
	}{
		"certificate":                      {[]option{page, withCertificate}, "admin"},
		"certificate and cookie":           {[]option{page, joe, withCookie(link.Cookie)}, "joe"},
		"certificate and session":          {[]option{joe, withSession(link)}, "admin"},
		"rejected certificate":             {[]option{page, withCertificateOf("stranger")}, ""},
		"rejected certificate and session": {[]option{withCertificateOf("stranger"), withSession(link)}, "admin"},
		"basic authentication":             {[]option{page, basic}, ""},
		"basic authentication and session": {[]option{basic, withSession(link)}, "admin"},
		"rejected token and session":       {[]option{rejected, withSession(link)}, ""},
	} {
		w := f.send("GET", "/ui/api/api/v1/pods", "", c.options...)
		if got := w.Body.String(); c.user == "" && w.Code != 401 || c.user != "" && got != c.user {
			t.Errorf("%s: got %d %s", name, w.Code, got)
		}
	}
	w := f.send("GET", "/ui/api/api/v1/pods", "", page, withHeader("Authorization", "Bearer good.token"))
	if w.Body.String() != "jane" {
		t.Errorf("token: got %d %s", w.Code, w.Body)
	}
	if !hasToken(&http.Request{Header: http.Header{"Authorization": {"bearer x"}}}) {
		t.Error("the scheme is case-sensitive")
	}
	w = f.send("GET", "/ui/session", "", page, withCertificate)
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"signOut":false`) {
		t.Errorf("session: %d %s", w.Code, w.Body)
	}
}

// TestSignInWithOwnCredentials signs in over connections that have credentials already.
func TestSignInWithOwnCredentials(t *testing.T) {
	t.Parallel()
	f := newFixture()
	link := `{"code": "` + f.newLink(t, "10m") + `"}`
	token := withHeader("Authorization", "Bearer good.token")
	for _, body := range []string{link, `{"token": "good.token"}`} {
		for name, o := range map[string]option{"certificate": withCertificate, "token": token} {
			w := f.send("POST", "/ui/session", body, page, o)
			if w.Code != http.StatusConflict || len(w.Result().Cookies()) > 0 {
				t.Errorf("%s: got %d %s", name, w.Code, w.Body)
			}
		}
	}
	f.signIn(t, `{"token": "good.token"}`, withCertificateOf("stranger"))
	f.signIn(t, link, withCertificateOf("stranger")) // the failed attempts did not use the link up
}

func TestForbiddenRequests(t *testing.T) {
	t.Parallel()
	f := newFixture()
	session := f.signIn(t, `{"token": "good.token"}`)
	for _, path := range []string{
		"/api/v1/namespaces/a/pods/b/exec?command=sh", "/api/v1/namespaces/a/pods/b/attach",
		"/api/v1/namespaces/a/pods/b/portforward", "/api/v1/namespaces/a/pods/b/proxy",
		"/api/v1/namespaces/a/services/b/proxy/c/d", "/api/v1/nodes/n/proxy/logs/", "/api/v1/proxy/nodes/n",
	} {
		for name, o := range map[string]option{"session": withSession(session), "certificate": withCertificate} {
			if w := f.send("GET", "/ui/api"+path, "", page, o); w.Code != http.StatusForbidden {
				t.Errorf("%s with a %s: got %d", path, name, w.Code)
			}
		}
	}
	for _, path := range []string{"/api/v1/pods", "/api/v1/namespaces/a/pods/exec", "/api/v1/namespaces/a/pods/b/log",
		"/apis/apps/v1/namespaces/proxy/deployments/attach/scale"} {
		if w := f.send("GET", "/ui/api"+path, "", withSession(session)); w.Code != http.StatusOK {
			t.Errorf("%s: got %d", path, w.Code)
		}
		w := f.send("GET", "/ui/api"+path, "", withSession(session), withHeader("Connection", "Upgrade"),
			withHeader("Upgrade", "websocket"))
		if w.Code != http.StatusForbidden {
			t.Errorf("upgrade of %s: got %d", path, w.Code)
		}
	}
}

// TestRequestEndsWithSession is invariant 3 for requests that last.
func TestRequestEndsWithSession(t *testing.T) {
	t.Parallel()
	f := newFixture()
	link, token := f.signIn(t, `{"code": "`+f.newLink(t, "10m")+`"}`), f.signIn(t, `{"token": "good.token"}`)
	before := time.Now()
	f.send("GET", "/ui/api/api/v1/pods?watch=true", "", withSession(link))
	end, ok := f.last.Context().Deadline()
	if !ok || end.Before(before.Add(10*time.Minute)) || end.After(time.Now().Add(10*time.Minute)) {
		t.Errorf("session of 10 minutes: the request ends at %v, %t", end, ok)
	}
	f.send("GET", "/ui/api/api/v1/pods?watch=true", "", withSession(token))
	if _, ok := f.last.Context().Deadline(); ok {
		t.Error("the API verifies tokens")
	}
}

func TestLinksAreLoggedWithoutCode(t *testing.T) {
	t.Parallel()
	f := newFixture()
	var out bytes.Buffer
	f.Log = slog.New(slog.NewTextHandler(&out, nil))
	code := f.newLink(t, "10m")
	f.signIn(t, `{"code": "`+code+`"}`)
	for _, part := range []string{"link created", "link redeemed", "user=admin", "client=192.0.2.1:1234"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("the log %q does not contain %q", &out, part)
		}
	}
	if strings.Contains(out.String(), code) {
		t.Error("the log contains the code")
	}
}

func TestExpiryOfToken(t *testing.T) {
	t.Parallel()
	claims := base64url.EncodeToString([]byte(`{"exp": 1767323045}`))
	c := sessionContent{Token: "e30." + claims + ".c2ln"}
	if at := c.expiry(); at == nil || !at.Equal(startTime) {
		t.Errorf("got %v, want %v", at, startTime)
	}
	noClaims := base64url.EncodeToString([]byte("{}"))
	for _, token := range []string{"abc", "a.b.c", "a." + noClaims + ".c"} {
		if at := (&sessionContent{Token: token}).expiry(); at != nil {
			t.Errorf("%s: got %v", token, at)
		}
	}
}
