package tokens

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
)

func TestClientAddress(t *testing.T) {
	t.Parallel()
	for hostPort, want := range map[string]string{
		"192.0.2.1:1234":                  "192.0.2.1/32",
		"[::ffff:192.0.2.1]:1":            "192.0.2.1/32",
		"[2001:db8:1:2:3:4:5:6]:1":        "2001:db8:1:2::/64",
		"[2001:db8:1:2:ffff:4:5:6]:65535": "2001:db8:1:2::/64",
		"[fe80::1%eth0]:1":                "fe80::/64",
		"@":                               "",
		"":                                "",
	} {
		got, ok := clientAddress(hostPort)
		if ok != (want != "") || ok && got.String() != want {
			t.Errorf("%s: got %s, %v, want %q", hostPort, got, ok, want)
		}
	}
}

const (
	validToken   = "aaaaaa.0123456789abcdef"
	invalidToken = "aaaaaa.fedcba9876543210"
)

// attempter sends requests through the handler and the authenticator of a limiter.
type attempter struct {
	*Attempts

	now     time.Time
	lookups atomic.Int32
}

func newAttempter() *attempter {
	a := &attempter{now: time.Unix(1e9, 0)}
	a.Attempts = NewAttempts(func() time.Time { return a.now })
	return a
}

// send returns the status code for a token from an address.
func (a *attempter) send(t *testing.T, address, token string) int {
	t.Helper()
	limited := a.Limit(authenticator.TokenFunc(func(_ context.Context, token string) (*authenticator.Response, bool,
		error) {
		a.lookups.Add(1)
		return nil, token == validToken, nil
	}))
	handler := a.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, ok, err := limited.AuthenticateToken(r.Context(), token); !ok || err != nil {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	r := requestFrom(t, address)
	r.Header.Set("Authorization", "Bearer "+token)
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	if w.Code == http.StatusTooManyRequests && w.Header().Get("Retry-After") != "1" {
		t.Errorf("got Retry-After %q, want 1", w.Header().Get("Retry-After"))
	}
	return w.Code
}

func TestFailedAttemptsAreLimited(t *testing.T) {
	t.Parallel()
	const here, elsewhere = "192.0.2.1:1", "192.0.2.2:1"
	a := newAttempter()
	for i := range attemptBurst + 5 {
		want := http.StatusUnauthorized
		if i >= attemptBurst {
			want = http.StatusTooManyRequests
		}
		if got := a.send(t, here, invalidToken); got != want {
			t.Fatalf("attempt %d: got status %d, want %d", i, got, want)
		}
		if got := a.send(t, elsewhere, validToken); got != http.StatusOK {
			t.Fatalf("valid token from another address: got status %d, want 200", got)
		}
	}
	a.lookups.Store(0)
	if got := a.send(t, here, validToken); got != http.StatusTooManyRequests || a.lookups.Load() != 0 {
		t.Errorf("valid token after too many attempts: got status %d and %d lookups, want 429 and none", got,
			a.lookups.Load())
	}
	if got := a.send(t, here, "no bootstrap token"); got != http.StatusUnauthorized {
		t.Errorf("another token after too many attempts: got status %d, want 401", got)
	}
	a.now = a.now.Add(attemptInterval)
	for i, want := range []int{http.StatusOK, http.StatusOK, http.StatusUnauthorized, http.StatusTooManyRequests} {
		token := validToken
		if i >= 2 {
			token = invalidToken
		}
		if got := a.send(t, here, token); got != want {
			t.Errorf("request %d after a second: got status %d, want %d", i, got, want)
		}
	}
	a.now = a.now.Add(-time.Hour)
	if got := a.send(t, here, validToken); got != http.StatusTooManyRequests {
		t.Errorf("after the clock was set back: got status %d, want 429", got)
	}
}

// TestReviewsAreNotLimited sends the request of a review, which has the context of the reviewer's request.
func TestReviewsAreNotLimited(t *testing.T) {
	t.Parallel()
	a := newAttempter()
	for range 2 * attemptBurst {
		a.send(t, "192.0.2.1:1", invalidToken)
	}
	limited := a.Limit(authenticator.TokenFunc(func(context.Context, string) (*authenticator.Response, bool, error) {
		return nil, true, nil
	}))
	request := authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		return limited.AuthenticateToken(r.Context(), validToken)
	})
	a.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if _, ok, err := request.AuthenticateRequest(r); ok || err == nil {
			t.Errorf("request of the address: got %v, %v, want an error", ok, err)
		}
		if _, ok, err := Unlimited(request).AuthenticateRequest(r); !ok || err != nil {
			t.Errorf("review: got %v, %v, want true", ok, err)
		}
	})).ServeHTTP(httptest.NewRecorder(), requestFrom(t, "192.0.2.1:1"))
}

// requestFrom returns a request without credentials from an address.
func requestFrom(t *testing.T, address string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://server/api", http.NoBody)
	r.RemoteAddr = address
	return r
}

func TestParallelAttemptsAreLimited(t *testing.T) {
	t.Parallel()
	a := newAttempter()
	var all sync.WaitGroup
	for range 10 * attemptBurst {
		all.Go(func() { a.send(t, "192.0.2.1:1", invalidToken) })
	}
	all.Wait()
	if got := a.lookups.Load(); got != attemptBurst {
		t.Errorf("got %d lookups, want %d", got, attemptBurst)
	}
}

func TestAttemptsForgetOldAddresses(t *testing.T) {
	t.Parallel()
	a := newAttempter()
	for i := range 2 * attemptAddresses {
		a.send(t, "10."+strconv.Itoa(i>>16)+"."+strconv.Itoa(i>>8&255)+"."+strconv.Itoa(i&255)+":1", invalidToken)
	}
	if got := a.budgets.Len(); got != attemptAddresses {
		t.Errorf("got %d addresses, want %d", got, attemptAddresses)
	}
}
