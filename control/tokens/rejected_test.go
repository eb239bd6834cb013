package tokens

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// countingGetter counts the lookups of service accounts.
type countingGetter struct {
	*fakeGetter

	lookups int
}

func (c *countingGetter) ServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	c.lookups++
	return c.fakeGetter.ServiceAccount(ctx, namespace, name)
}

// TestTokenOfDeletedObjectIsRemembered checks that only the first request with such a token looks up objects. A token
// that is rejected because of a cache that may be stale is looked up again.
func TestTokenOfDeletedObjectIsRemembered(t *testing.T) {
	t.Parallel()
	ring := testKeyrings(t)["ES256"]
	for name, row := range map[string]struct {
		change  func(*fakeGetter)
		lookups int
	}{
		"account deleted":   {func(s *fakeGetter) { s.account = nil }, 1},
		"pod deleted":       {func(s *fakeGetter) { s.pod = nil }, 1},
		"account recreated": {func(s *fakeGetter) { s.account.UID = "app-2" }, 3},
		"pod recreated":     {func(s *fakeGetter) { s.pod.UID = "pod-2" }, 3},
	} {
		objects := &countingGetter{fakeGetter: newFakeGetter()}
		token, _, _, err := (&Signer{Issuer: testIssuer, Keys: ring}).Issue(Spec{Account: objects.account.DeepCopy(),
			Pod: objects.pod.DeepCopy(), Audiences: []string{testIssuer}, TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		row.change(objects.fakeGetter)
		v := &Verifier{Issuer: testIssuer, Audiences: []string{testIssuer}, Keys: ring, Objects: objects,
			Rejected: NewRejectedTokens()}
		var first error
		for i := range 3 {
			_, ok, err := v.AuthenticateToken(t.Context(), token)
			if i == 0 {
				first = err
			}
			if ok || err == nil || err.Error() != first.Error() {
				t.Errorf("%s: request %d: got %v, %v, want %v", name, i, ok, err, first)
			}
		}
		if objects.lookups != row.lookups {
			t.Errorf("%s: got %d lookups, want %d", name, objects.lookups, row.lookups)
		}
	}
}
