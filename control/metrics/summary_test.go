package metrics

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

func TestFetchSummary(t *testing.T) {
	t.Parallel()
	status := http.StatusOK
	kubelet := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"node":{"nodeName":%q}}`, r.URL.RequestURI())
	}))
	t.Cleanup(kubelet.Close)
	at, err := url.Parse(kubelet.URL)
	if err != nil {
		t.Fatal(err)
	}
	s, err := FetchSummary(t.Context(), kubelet.Client(), at)
	if err != nil || s.Node.NodeName != "/stats/summary?only_cpu_and_memory=true" {
		t.Errorf("got %+v, %v", s, err)
	}
	status = http.StatusForbidden
	if _, err = FetchSummary(t.Context(), kubelet.Client(), at); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("rejected: got error %v", err)
	}
}
