package tokens

import (
	"context"
	"testing"

	"k8s.io/client-go/kubernetes/fake"
)

// TestBootstrapTokenLookupIsCached authenticates with valid and invalid tokens. Only the list and the watch of the
// cache read from the API server.
func TestBootstrapTokenLookupIsCached(t *testing.T) {
	t.Parallel()
	one, err := NewBootstrapToken()
	if err != nil {
		t.Fatal(err)
	}
	client := fake.NewClientset(one.ToSecret())
	cached := NewBootstrapCache(client)
	b := &BootstrapAuthenticator{Lookup: cached.Get, Secrets: client.CoreV1().Secrets(BootstrapNamespace)}
	if _, ok, err := b.AuthenticateToken(t.Context(), one.Token()); ok || err == nil {
		t.Errorf("before the cache is filled: got %v, %v, want an error", ok, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cached.Start(ctx)
	defer cached.Shutdown()
	defer cancel()
	for token, want := range map[string]bool{one.Token(): true, one.ID + ".0123456789abcdef": false,
		"zzzzzz.0123456789abcdef": false} {
		if _, ok, err := b.AuthenticateToken(t.Context(), token); ok != want || err != nil {
			t.Errorf("got %v, %v, want %v", ok, err, want)
		}
	}
	for _, action := range client.Actions() {
		if action.GetVerb() != "list" && action.GetVerb() != "watch" {
			t.Errorf("got request %s %s", action.GetVerb(), action.GetResource().Resource)
		}
	}
}
