package localservices

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/agent/source"
)

func TestIgnoredServicesAreReportedOncePerChange(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	web := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
	var ignored Ignored
	for _, snap := range []source.Snapshot{
		{}, {Services: []*corev1.Service{web}}, {Services: []*corev1.Service{web}}, {},
		{Services: []*corev1.Service{web}},
	} {
		ignored.Report(snap, log)
	}
	if n := strings.Count(out.String(), "services=default/web"); n != 2 {
		t.Errorf("got %d reports, want 2:\n%s", n, out.String())
	}
}
