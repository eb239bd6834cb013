package executor

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"berth/node/registration"
)

func TestNodeCleanup(t *testing.T) {
	t.Parallel()
	n := &corev1.Node{}
	n.Labels = map[string]string{"unsupported.berth.dev/claims": "true", "example.com/rack": "7"}
	if nodeCleanup(&corev1.Node{}) != nil {
		t.Error("a Node without labels of berth is changed")
	}
	n.Annotations = map[string]string{registration.InstallationAnnotation: "1", "example.com/a": "b"}
	want := map[string]any{"metadata": map[string]any{
		"labels":      map[string]any{"unsupported.berth.dev/claims": nil},
		"annotations": map[string]any{registration.InstallationAnnotation: nil},
	}}
	if d := cmp.Diff(want, nodeCleanup(n)); d != "" {
		t.Error(d)
	}
}
