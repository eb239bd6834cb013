package control

import (
	"strings"
	"testing"
)

const somePod = `
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  containers: [{name: main, image: example/web}]
`

// TestKubectlBasicOperations applies, reads, changes and deletes objects with kubectl.
func TestKubectlBasicOperations(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	s.Kubectl(t, "create", "configmap", "settings", "--from-literal=a=b")
	if got := s.Kubectl(t, "get", "cm", "settings", "-o", "jsonpath={.data.a}"); got != "b" {
		t.Errorf("got ConfigMap data %q", got)
	}
	s.Apply(t, somePod)
	if got := s.Apply(t, somePod); !strings.Contains(got, "pod/web unchanged") {
		t.Errorf("second apply: got %q", got)
	}
	s.Kubectl(t, "label", "pod", "web", "tier=front")
	if got := s.Kubectl(t, "get", "pods", "-l", "tier=front", "-o", "name"); got != "pod/web\n" {
		t.Errorf("label selector: got %q", got)
	}
	if got := s.Kubectl(t, "get", "pods", "--field-selector", "spec.nodeName=", "-o", "name"); got != "pod/web\n" {
		t.Errorf("field selector: got %q", got)
	}
	s.Kubectl(t, "delete", "pod", "web", "--wait=false")
	if got := s.Kubectl(t, "get", "pods"); !strings.Contains(got, "No resources found") {
		t.Errorf("after delete: got %q, want no pods", got)
	}
	if got := s.Kubectl(t, "get", "namespaces", "-o", "name"); !strings.Contains(got, "namespace/kube-system") {
		t.Errorf("got namespaces %q", got)
	}
}
