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

// TestTokensInPodsAreRenewed: tokens are good for 40 s here. The file in the pod has
// another before the one that it has expires, without anything being restarted, and
// the server takes the new one and not the old.
func TestTokensInPodsAreRenewed(t *testing.T) {
	t.Parallel()
	p := start(t, pairOptions{Server: []func(*control.Config){func(c *control.Config) { c.MaxTokenExpiration = 40 * time.Second }}})
	p.Apply(t, p.pod("holds", "", "sleep"))
	p.is("pod", "holds", ready, "True")
	path := filepath.Join(p.Agent.RootDir, "pods", p.field("pod", "holds", ".metadata.uid"), "volumes/kubernetes.io~projected/*/token")
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
			t.Errorf("a token that has just come is of %q", got)
		}
		begins, ends := validity(t, last)
		if life := ends.Sub(begins); life != 40*time.Second {
			t.Errorf("the token is good for %s", life)
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

// account is whose token the server takes it for; empty: it does not take it.
func (p *Pair) account(token string) string {
	p.t.Helper()
	r, err := p.Client.AuthenticationV1().TokenReviews().Create(p.t.Context(), &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	return r.Status.User.Username
}

// validity is when a token begins to be good and when it ends.
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
