package control

import (
	"crypto/tls"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestFailedBootstrapTokensAreLimited sends many requests with an invalid token at once. The server rejects most of
// them without a look at the token, and other clients of this address are not affected.
func TestFailedBootstrapTokensAreLimited(t *testing.T) {
	t.Parallel()
	s := Start(t, withoutControllers)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.Authority.Pool(),
		MinVersion: tls.VersionTLS12}}}
	defer client.CloseIdleConnections()
	send := func() int {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.Config.Host+"/api", http.NoBody)
		if err != nil {
			t.Error(err)
			return 0
		}
		r.Header.Set("Authorization", "Bearer aaaaaa.0123456789abcdef")
		response, err := client.Do(r)
		if err != nil {
			t.Error(err)
			return 0
		}
		defer response.Body.Close()
		if response.StatusCode == http.StatusTooManyRequests && response.Header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
		return response.StatusCode
	}
	var rejected, limited atomic.Int32
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			for limited.Load() == 0 && t.Context().Err() == nil {
				switch send() {
				case http.StatusUnauthorized:
					rejected.Add(1)
				case http.StatusTooManyRequests:
					limited.Add(1)
				default:
					return
				}
			}
		})
	}
	all.Wait()
	if rejected.Load() == 0 || limited.Load() == 0 {
		t.Errorf("got status 401 for %d requests and 429 for %d, want both", rejected.Load(), limited.Load())
	}
	if _, err := s.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("the administrator at the same address: %v", err)
	}
	if code := statusCode(t, s.clientWithToken(t, "no bootstrap token")); code != http.StatusUnauthorized {
		t.Errorf("another invalid token: got status %d, want 401", code)
	}
}
