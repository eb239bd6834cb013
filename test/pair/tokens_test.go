package pair

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/control"
)

// TestServiceAccountTokenRefresh uses tokens that are valid for 40 s. The agent replaces the token in
// the pod before it expires, without a restart. The server accepts the new token and rejects the
// expired one.
func TestServiceAccountTokenRefresh(t *testing.T) {
	t.Parallel()
	p := startPair(t, pairOptions{Server: []func(*control.Config){func(c *control.Config) {
		c.MaxTokenExpiration = 40 * time.Second
	}}})
	p.Apply(t, p.pod("holds", "", "sleep"))
	p.waitForField("pod", "holds", readyStatus, "True")
	path := filepath.Join(p.Agent.RootDir, "pods", p.field("pod", "holds", ".metadata.uid"),
		"volumes/kubernetes.io~projected/*/token")
	read := func() string {
		found, _ := filepath.Glob(path)
		if len(found) != 1 {
			return ""
		}
		text, err := os.ReadFile(found[0])
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	seen := map[string]bool{}
	last := ""
	for range 3 {
		p.waitUntil("a new token", func() string {
			current := read()
			if current == "" || seen[current] {
				return fmt.Sprintf("got %d tokens", len(seen))
			}
			last = current
			return ""
		})
		seen[last] = true
		if got := p.tokenUser(last); got != defaultAccount {
			t.Errorf("new token: got user %q, want %q", got, defaultAccount)
		}
		notBefore, expires := validity(t, last)
		if lifetime := expires.Sub(notBefore); lifetime != 40*time.Second {
			t.Errorf("got token lifetime %s, want 40s", lifetime)
		}
	}
	for old := range seen {
		if old == last {
			continue
		}
		p.waitUntil("an expired token to be rejected", func() string { return p.tokenUser(old) })
	}
	if n := p.field("pod", "holds", restartCount); n != "0" {
		t.Errorf("got %s restarts, want 0", n)
	}
}

const defaultAccount = "system:serviceaccount:default:default"

// tokenUser returns the user that the server authenticates for the token, or "".
func (p *Pair) tokenUser(token string) string {
	p.t.Helper()
	r, err := p.Client.AuthenticationV1().TokenReviews().Create(p.t.Context(), &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	return r.Status.User.Username
}

// validity returns the validity period of a token.
func validity(t *testing.T, token string) (notBefore, expires time.Time) {
	t.Helper()
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Fatalf("not a JWT: %.20s", token)
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	var claims struct{ Iat, Exp int64 }
	if err := json.Unmarshal(text, &claims); err != nil {
		t.Fatal(err)
	}
	return time.Unix(claims.Iat, 0), time.Unix(claims.Exp, 0)
}
