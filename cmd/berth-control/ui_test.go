package main

import (
	"strings"
	"testing"

	restclient "k8s.io/client-go/rest"
)

func TestLinkRejectsImpersonation(t *testing.T) {
	t.Parallel()
	for _, i := range []restclient.ImpersonationConfig{{UserName: "jane"}, {UID: "1"}, {Groups: []string{"a"}}} {
		config := &restclient.Config{Host: "https://127.0.0.1:1", Impersonate: i}
		if _, err := requestLink(t.Context(), config, 1); err == nil || !strings.Contains(err.Error(), "impersonates") {
			t.Errorf("%+v: %v", i, err)
		}
	}
}
