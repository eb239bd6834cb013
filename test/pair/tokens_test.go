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

// TestServiceAccountTokenRefresh: tokens are valid for 40 s here. The file in the pod is replaced
// before its token expires, without a restart. The server accepts the new token and rejects the old
// one.
func TestServiceAccountTokenRefresh(t *testing.T) {
	t.Parallel()
	p := start(t, pairOptions{Server: []func(*control.Config){func(c *control.Config) {
		c.MaxTokenExpiration = 40 * time.Second
	}}})
	p.Apply(t, p.pod("holds", "", "sleep"))
	p.waitForField("pod", "holds", ready, "True")
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
		p.until("another token", func() string {
			now := read()
			if now == "" || seen[now] {
				return fmt.Sprintf("%d tokens so far", len(seen))
			}
			last = now
			return ""
		})
		seen[last] = true
		if got := p.account(last); got != defaultAccount {
			t.Errorf("new token: got user %q", got)
		}
		begins, ends := validity(t, last)
		if life := ends.Sub(begins); life != 40*time.Second {
			t.Errorf("got token valid for %s", life)
		}
	}
	for old := range seen {
		if old == last {
			continue
		}
		p.until("an old token to be refused", func() string { return p.account(old) })
	}
	if n := p.field("pod", "holds", restarts); n != "0" {
		t.Errorf("%s restarts", n)
	}
}

const defaultAccount = "system:serviceaccount:default:default"

// account returns the user that the server authenticates for the token, or "".
func (p *Pair) account(token string) string {
	p.t.Helper()
	r, err := p.Client.AuthenticationV1().TokenReviews().Create(p.t.Context(), &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	return r.Status.User.Username
}

// validity returns the validity period of a token.
func validity(t *testing.T, token string) (begins, ends time.Time) {
	t.Helper()
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Fatalf("no token: %.20s", token)
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
