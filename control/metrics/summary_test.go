package metrics

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestFetchSummary(t *testing.T) {
	t.Parallel()
	status := http.StatusOK
	kubelet := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"node":{"nodeName":%q}}`, r.URL.RequestURI())
	}))
	t.Cleanup(kubelet.Close)
	at := netip.MustParseAddrPort(kubelet.Listener.Addr().String())
	node := &corev1.Node{}
	node.Name = "n1"
	if _, err := FetchSummary(t.Context(), kubelet.Client(), node); err == nil {
		t.Error("without an address: got no error")
	}
	node.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "n1"}, {Type: corev1.NodeInternalIP, Address: at.Addr().String()},
	}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(at.Port())
	s, err := FetchSummary(t.Context(), kubelet.Client(), node)
	if err != nil || s.Node.NodeName != "/stats/summary?only_cpu_and_memory=true" {
		t.Errorf("got %+v, %v", s, err)
	}
	status = http.StatusForbidden
	if _, err = FetchSummary(t.Context(), kubelet.Client(), node); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("rejected: got error %v", err)
	}
}
