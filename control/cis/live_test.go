package cis

import (
	"crypto/tls"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
)

// TestReadServer observes a server that does not follow the benchmark, and its TLS settings.
func TestReadServer(t *testing.T) {
	t.Parallel()
	handler := http.NewServeMux()
	handler.HandleFunc("POST /apis/authorization.k8s.io/v1/subjectaccessreviews",
		func(w http.ResponseWriter, r *http.Request) {
			var review authorizationv1.SubjectAccessReview
			if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
				t.Error(err)
			}
			review.Status.Allowed = strings.HasPrefix(review.Spec.User, "system:node:")
			review.Status.Reason = review.Spec.User
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(review)
		})
	handler.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/debug/pprof/" && r.Header.Get("Authorization") != "" {
			t.Errorf("%s has credentials", r.URL.Path)
		}
		if r.URL.Path == privatePath {
			w.WriteHeader(http.StatusForbidden)
		}
	})
	for name, c := range map[string]struct {
		config         *tls.Config
		oldTLS, cipher string
	}{
		"Go's default": {config: &tls.Config{}, cipher: "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA"},
		"old TLS": {config: &tls.Config{MinVersion: tls.VersionTLS10}, oldTLS: "TLS 1.1",
			cipher: "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA"},
		"strong suites": {config: &tls.Config{CipherSuites: strongSuites}},
	} {
		server := httptest.NewUnstartedServer(handler)
		server.TLS, server.Config.ErrorLog = c.config, log.New(io.Discard, "", 0) // of rejected handshakes
		server.StartTLS()
		t.Cleanup(server.Close)
		config := &restclient.Config{Host: server.URL, BearerToken: "token",
			TLSClientConfig: restclient.TLSClientConfig{Insecure: true},
			ContentConfig:   restclient.ContentConfig{ContentType: "application/json"}}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		s, err := (&clients{config: config, client: client}).readServer(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if s.Profiling != http.StatusOK || s.Anonymous["/api"] != http.StatusOK ||
			s.Anonymous[privatePath] != http.StatusForbidden || !s.Node.Allowed || s.RBAC.Allowed ||
			s.RBAC.Reason != reviewedNode {
			t.Errorf("%s: got %+v", name, s)
		}
		if s.OldTLS != c.oldTLS || s.WeakCipher != c.cipher {
			t.Errorf("%s: got version %q and suite %q, want %q and %q", name, s.OldTLS, s.WeakCipher, c.oldTLS,
				c.cipher)
		}
	}
}
