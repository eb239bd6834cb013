package control

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const daemonSetManifest = `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec: {nodeSelector: {agents: "yes"}, containers: [{name: c, image: example/a}]}
`

// finishPods deletes all terminating pods with the label app=name, as their nodes would.
func finishPods(t *testing.T, s *Server, name string) {
	t.Helper()
	pods, err := s.Client.CoreV1().Pods(s.Namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + name})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		if p.DeletionTimestamp != nil {
			// Another call may have deleted it.
			_ = s.Client.CoreV1().Pods(s.Namespace).Delete(t.Context(), p.Name, metav1.DeleteOptions{
				GracePeriodSeconds: new(int64), Preconditions: &metav1.Preconditions{UID: &p.UID}})
		}
	}
}

// waitForDaemonPods finishes terminating pods and makes pods ready until one pod with the image runs on each of the
// nodes.
func waitForDaemonPods(t *testing.T, s *Server, image string, nodes ...string) {
	t.Helper()
	want := ""
	for _, n := range nodes {
		want += n + "=" + image + "=Running "
	}
	eventually(t, "pods "+want, func() (bool, string) {
		readyPods(t, s, "agent")
		finishPods(t, s, "agent")
		out := s.Kubectl(t, "get", "pods", "-l", "app=agent", "--sort-by=.spec.nodeName", "-o",
			"jsonpath={range .items[*]}{.spec.nodeName}={.spec.containers[0].image}={.status.phase} {end}")
		return strings.TrimSpace(out) == strings.TrimSpace(want), out
	})
}

// TestDaemonSet creates, updates, rolls back and deletes a DaemonSet with kubectl. The scheduler binds its pods.
func TestDaemonSet(t *testing.T) {
	t.Parallel()
	s := Start(t)
	addNode(t, s, "n1", "4")
	addNode(t, s, "n2", "4")
	s.Kubectl(t, "label", "node", "n1", "n2", "agents=yes")
	if out := s.Apply(t, daemonSetManifest); strings.Contains(out, "Warning") {
		t.Errorf("kubectl apply: got %q, want no warning", out)
	}
	waitForDaemonPods(t, s, "example/a", "n1", "n2")
	waitForOutput(t, s, "2 2 0 2 2 2", "get", "ds/agent", "-o", "jsonpath={.status.desiredNumberScheduled} "+
		"{.status.currentNumberScheduled} {.status.numberMisscheduled} {.status.numberReady} "+
		"{.status.numberAvailable} {.status.updatedNumberScheduled}")
	s.Kubectl(t, "set", "image", "ds/agent", "c=example/b")
	waitForDaemonPods(t, s, "example/b", "n1", "n2")
	s.Kubectl(t, "rollout", "status", "ds/agent", "--timeout=4m")
	s.Kubectl(t, "rollout", "undo", "ds/agent")
	waitForDaemonPods(t, s, "example/a", "n1", "n2")
	waitForOutput(t, s, "2 3", "get", "controllerrevisions", "-l", "app=agent", "--sort-by=.revision", "-o",
		"jsonpath={.items[*].revision}")
	testDaemonSetRestart(t, s)
	s.Kubectl(t, "label", "node", "n2", "agents-")
	eventually(t, "the pod of n2 to leave", func() (bool, string) {
		out := s.Kubectl(t, "get", "pods", "-l", "app=agent", "-o",
			`jsonpath={range .items[*]}{.spec.nodeName} {.metadata.deletionTimestamp};{end}`)
		for pod := range strings.SplitSeq(out, ";") {
			if f := strings.Fields(pod); len(f) == 1 && f[0] == "n2" {
				return false, out
			}
		}
		return true, out
	})
	if out := s.Kubectl(t, "describe", "ds/agent"); !strings.Contains(out, "Created pod: agent-") {
		t.Errorf("kubectl describe: got\n%s", out)
	}
}

// testDaemonSetRestart restarts the pods, which makes a revision.
func testDaemonSetRestart(t *testing.T, s *Server) {
	t.Helper()
	s.Kubectl(t, "rollout", "restart", "ds/agent")
	eventually(t, "the restart", func() (bool, string) {
		readyPods(t, s, "agent")
		finishPods(t, s, "agent")
		out := s.Kubectl(t, "get", "ds/agent", "-o", "jsonpath={.status.updatedNumberScheduled} "+
			"{.status.numberAvailable} {.metadata.generation} {.status.observedGeneration}")
		f := strings.Fields(out)
		return len(f) == 4 && f[0] == "2" && f[1] == "2" && f[2] == f[3], out
	})
	out := strings.Fields(s.Kubectl(t, "rollout", "history", "ds/agent"))
	if got := strings.Join(out, " "); got != "daemonset.apps/agent REVISION CHANGE-CAUSE 2 <none> 3 <none> 4 <none>" {
		t.Errorf("kubectl rollout history: got %q", got)
	}
}
