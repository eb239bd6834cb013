package control

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestDrain drains a node with kubectl. A disruption budget blocks the drain until it is deleted.
func TestDrain(t *testing.T) {
	t.Parallel()
	s := Start(t)
	addNode(t, s, "n1", "4")
	s.Apply(t, `{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: b}, spec: {minAvailable: 1, `+
		`selector: {matchLabels: {tier: web}}}}`)
	for _, name := range []string{"one", "two", "free"} {
		text := podYAML(name, "1m", "")
		if name != "free" {
			text = strings.ReplaceAll(text, "labels: {", "labels: {tier: web, ")
		}
		s.Apply(t, text)
		waitForBinding(t, s, name)
		_, err := s.Client.CoreV1().Pods("default").Patch(t.Context(), name, "application/strategic-merge-patch+json",
			[]byte(`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`),
			metav1.PatchOptions{},
			"status")
		if err != nil {
			t.Fatal(err)
		}
	}
	waitForOutput(t, s, "1", "get", "pdb", "b", "-o", "jsonpath={.status.disruptionsAllowed}")
	out, err := s.TryKubectl(t, "", "drain", "n1", "--force", "--timeout=20s")
	if err == nil || !strings.Contains(out, "violate the pod's disruption budget") {
		t.Errorf("drain with a disruption budget: got %v, want an error\n%s", err, out)
	}
	left := strings.Fields(s.Kubectl(t, "get", "pods", "-o", "name"))
	if len(left) != 1 || left[0] == "pod/free" {
		t.Errorf("after the blocked drain: got pods %v, want one pod of the budget", left)
	}
	s.Kubectl(t, "delete", "pdb", "b")
	s.Kubectl(t, "drain", "n1", "--force", "--timeout=2m")
	if out := s.Kubectl(t, "get", "pods", "-o", "name"); out != "" {
		t.Errorf("pods left after the drain: %s", out)
	}
	waitForOutput(t, s, "true", "get", "node", "n1", "-o", "jsonpath={.spec.unschedulable}")
	s.Kubectl(t, "uncordon", "n1")
}
