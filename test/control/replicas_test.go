package control

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const replicaSetManifest = `apiVersion: %s
kind: %s
metadata: {name: %[3]s}
spec:
  replicas: 2
  selector: %[4]s
  template:
    metadata: {labels: {app: %[3]s}}
    spec: {containers: [{name: c, image: example/c}]}
`

// TestReplicaSets tests ReplicaSets and ReplicationControllers with kubectl.
func TestReplicaSets(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ version, kind, name, selector, source string }{
		{"v1", "ReplicationController", "rcs", "{app: rcs}", "replication-controller"},
		{"apps/v1", "ReplicaSet", "rss", "{matchLabels: {app: rss}}", "replicaset-controller"},
	} {
		t.Run(row.kind, func(t *testing.T) {
			t.Parallel()
			s := Shared(t)
			waitForOutput(t, s, "default", "get", "sa", "default", "-o", "jsonpath={.metadata.name}")
			f := replicaSetTest{t, s, strings.ToLower(row.kind) + "/" + row.name, row.name}
			text := fmt.Sprintf(replicaSetManifest, row.version, row.kind, row.name, row.selector)
			if out := s.Apply(t, text); strings.Contains(out, "Warning") {
				t.Errorf("kubectl apply: got %q, want no warning", out)
			}
			f.waitForReplicaCounts("2 2  ")
			f.testReplacement()
			f.testReleaseAndAdoption()
			f.testQuotaFailure()
			waitForOutput(t, s, row.source+" "+row.source, "get", "events", "--field-selector",
				"involvedObject.kind="+row.kind+",reason=SuccessfulDelete", "-o",
				"jsonpath={.items[0].source.component} {.items[0].reportingComponent}")
			if out := s.Kubectl(t, "describe", f.set); !strings.Contains(out, "Created pod: "+row.name+"-") ||
				!strings.Contains(out, "Deleted pod: "+row.name+"-") {
				t.Errorf("kubectl describe: got\n%s", out)
			}
			f.testDeletion(text)
		})
	}
}

// replicaSetTest tests a ReplicaSet or a ReplicationController. set is its kind and name.
type replicaSetTest struct {
	t         *testing.T
	s         *Server
	set, name string
}

// waitForReplicaCounts waits for the status: replicas, fullyLabeledReplicas, readyReplicas and
// availableReplicas.
func (f replicaSetTest) waitForReplicaCounts(want string) {
	f.t.Helper()
	waitForOutput(f.t, f.s, strings.TrimSpace(want), "get", f.set, "-o",
		"jsonpath={.status.replicas} {.status.fullyLabeledReplicas} {.status.readyReplicas} "+
			"{.status.availableReplicas}")
}

// podNames returns the names of the pods, with the prefix "pod/".
func (f replicaSetTest) podNames() []string {
	f.t.Helper()
	return strings.Fields(f.s.Kubectl(f.t, "get", "pods", "-l", "app="+f.name, "-o", "name"))
}

// waitForPods waits until there are n pods and returns their names.
func (f replicaSetTest) waitForPods(n int) (pods []string) {
	f.t.Helper()
	eventually(f.t, fmt.Sprintf("%s to have %d pods", f.set, n), func() (bool, string) {
		pods = f.podNames()
		return len(pods) == n, strings.Join(pods, " ")
	})
	return pods
}

// testReplacement deletes a pod, which is replaced, and scales down, which deletes ready pods last.
func (f replicaSetTest) testReplacement() {
	t, s := f.t, f.s
	first := f.waitForPods(2)
	s.Kubectl(t, "delete", first[0])
	eventually(t, "replacement of pod "+first[0], func() (bool, string) {
		now := strings.Join(f.podNames(), " ")
		return !strings.Contains(now, first[0]) && len(strings.Fields(now)) == 2, now
	})
	_, err := s.Client.CoreV1().Pods(s.Namespace).Patch(t.Context(), strings.TrimPrefix(first[1], "pod/"),
		"application/strategic-merge-patch+json",
		[]byte(`{"status":{"phase":"Running","conditions":[`+
			`{"type":"Ready","status":"True","lastTransitionTime":"2026-01-02T03:04:05Z"}]}}`),
		metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
	f.waitForReplicaCounts("2 2 1 1")
	s.Kubectl(t, "scale", f.set, "--replicas=5")
	f.waitForReplicaCounts("5 5 1 1")
	s.Kubectl(t, "scale", f.set, "--replicas=1")
	f.waitForReplicaCounts("1 1 1 1")
	if left := f.waitForPods(1); left[0] != first[1] {
		t.Errorf("after scaling down: got pod %s, want the ready pod %s", left[0], first[1])
	}
}

// testReleaseAndAdoption changes the label of a pod, so that it is released and replaced. With the
// original label, the pod is adopted.
func (f replicaSetTest) testReleaseAndAdoption() {
	t, s := f.t, f.s
	pod := f.waitForPods(1)[0]
	s.Kubectl(t, "label", "--overwrite", pod, "app=free")
	waitForOutput(t, s, "", "get", pod, "-o", "jsonpath={.metadata.ownerReferences}")
	f.waitForReplicaCounts("1 1")
	s.Kubectl(t, "label", "--overwrite", pod, "app="+f.name)
	waitForOutput(t, s, f.name+" true true", "get", pod, "-o", "jsonpath={.metadata.ownerReferences[0].name} "+
		"{.metadata.ownerReferences[0].controller} {.metadata.ownerReferences[0].blockOwnerDeletion}")
	f.waitForReplicaCounts("1 1 1 1")
	f.waitForPods(1)
}

// testQuotaFailure scales beyond a quota. The failure is reported in a condition and an event. The pods
// are created after the quota is deleted.
func (f replicaSetTest) testQuotaFailure() {
	t, s := f.t, f.s
	quota := f.name + "-few"
	s.Kubectl(t, "create", "quota", quota, "--hard=pods=2")
	waitForOutput(t, s, "1", "get", "quota", quota, "-o", "jsonpath={.status.used.pods}")
	s.Kubectl(t, "scale", f.set, "--replicas=4")
	waitForOutput(t, s, "FailedCreate True", "get", f.set, "-o",
		`jsonpath={.status.conditions[?(@.type=="ReplicaFailure")].reason} `+
			`{.status.conditions[?(@.type=="ReplicaFailure")].status}`)
	waitForOutput(t, s, "FailedCreate", "get", "events", "--field-selector",
		"involvedObject.name="+f.name+",reason=FailedCreate",
		"-o", "jsonpath={.items[0].reason}")
	f.waitForPods(2)
	s.Kubectl(t, "delete", "quota", quota)
	f.waitForReplicaCounts("4 4 1 1")
	waitForOutput(t, s, "", "get", f.set, "-o", "jsonpath={.status.conditions}")
}

// testDeletion deletes the set with each propagation policy. The pods are orphaned or deleted. A new set
// adopts orphaned pods.
func (f replicaSetTest) testDeletion(text string) {
	t, s := f.t, f.s
	old := f.waitForPods(4)
	s.Kubectl(t, "delete", f.set, "--cascade=orphan")
	waitForDeletion(t, s, f.set)
	if now := f.waitForPods(4); strings.Join(now, " ") != strings.Join(old, " ") {
		t.Errorf("got orphans %v, want %v", now, old)
	}
	waitForOutput(t, s, "", "get", old[0], "-o", "jsonpath={.metadata.ownerReferences}")
	s.Apply(t, strings.Replace(text, "replicas: 2", "replicas: 4", 1))
	f.waitForReplicaCounts("4 4 1 1")
	if now := f.waitForPods(4); strings.Join(now, " ") != strings.Join(old, " ") {
		t.Errorf("new set with orphans: got pods %v, want %v", now, old)
	}
	s.Kubectl(t, "delete", f.set, "--cascade=foreground")
	waitForDeletion(t, s, f.set)
	if left := f.podNames(); len(left) > 0 {
		t.Errorf("set was deleted before its pods %v", left)
	}
	s.Apply(t, text)
	f.waitForReplicaCounts("2 2")
	s.Kubectl(t, "delete", f.set) // background deletion
	f.waitForPods(0)
}
