package control

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestDeployment runs the verbs of kubectl for Deployments. The pods become ready because the test says so.
func TestDeployment(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	s.keepPodsReady(t)
	out := s.Kubectl(t, "create", "deployment", "web", "--image=example/web:1", "--replicas=3")
	if strings.Contains(out, "Warning") {
		t.Errorf("kubectl create: got %q, want no warning", out)
	}
	f := deploymentTest{t, s}
	f.waitForRollout()
	f.checkField("{.status.replicas} {.status.readyReplicas} {.status.availableReplicas} {.status.updatedReplicas}",
		"3 3 3 3")
	f.testUpdateAndUndo()
	f.testPause()
	f.testRestartAndScale()
	f.checkField(`{.status.conditions[?(@.type=="Available")].reason} `+
		`{.status.conditions[?(@.type=="Progressing")].reason}`, "MinimumReplicasAvailable NewReplicaSetAvailable")
	waitForOutput(t, s, "deployment-controller", "get", "events", "--field-selector",
		"involvedObject.kind=Deployment,reason=ScalingReplicaSet", "-o", "jsonpath={.items[0].source.component}")
	if out := s.Kubectl(t, "describe", "deployment", "web"); !strings.Contains(out, "Scaled up replica set web-") ||
		!strings.Contains(out, "NewReplicaSet:") {
		t.Errorf("kubectl describe: got\n%s", out)
	}
	out = s.Kubectl(t, "get", "--raw", "/metrics")
	if !strings.Contains(out, `workqueue_adds_total{name="deployment"}`) {
		t.Error("/metrics has no work queue of the deployment controller")
	}
	s.Kubectl(t, "delete", "deployment", "web", "--cascade=foreground", "--timeout=4m")
	if left := s.Kubectl(t, "get", "replicasets,pods", "-o", "name"); left != "" {
		t.Errorf("after the deletion of the deployment: %s", left)
	}
}

// deploymentTest tests the Deployment "web".
type deploymentTest struct {
	t *testing.T
	s *Server
}

func (f deploymentTest) waitForRollout() {
	f.t.Helper()
	out := f.s.Kubectl(f.t, "rollout", "status", "deployment/web", "--timeout=4m")
	if !strings.Contains(out, `deployment "web" successfully rolled out`) {
		f.t.Errorf("kubectl rollout status: got %q", out)
	}
}

func (f deploymentTest) checkField(path, want string) {
	f.t.Helper()
	if got := f.s.Kubectl(f.t, "get", "deployment", "web", "-o", "jsonpath="+path); got != want {
		f.t.Errorf("%s: got %q, want %q", path, got, want)
	}
}

// revisions returns the revisions that kubectl rollout history shows.
func (f deploymentTest) revisions() string {
	f.t.Helper()
	var out []string
	for line := range strings.Lines(f.s.Kubectl(f.t, "rollout", "history", "deployment/web")) {
		if fields := strings.Fields(line); len(fields) == 2 && fields[1] == "<none>" {
			out = append(out, fields[0])
		}
	}
	return strings.Join(out, " ")
}

func (f deploymentTest) testUpdateAndUndo() {
	t, s := f.t, f.s
	t.Helper()
	s.Kubectl(t, "set", "image", "deployment/web", "web=example/web:2")
	f.waitForRollout()
	if got := f.revisions(); got != "1 2" {
		t.Errorf("revisions after an update: %q", got)
	}
	s.Kubectl(t, "rollout", "undo", "deployment/web")
	f.waitForRollout()
	f.checkField("{.spec.template.spec.containers[0].image}", "example/web:1")
	if got := f.revisions(); got != "2 3" {
		t.Errorf("revisions after the rollback: %q", got)
	}
	if got := s.Kubectl(t, "get", "replicasets", "-o", "name"); strings.Count(got, "\n") != 2 {
		t.Errorf("replica sets after the rollback: %s", got)
	}
}

// testPause changes the template of a paused Deployment, which has no effect until it is resumed.
func (f deploymentTest) testPause() {
	t, s := f.t, f.s
	t.Helper()
	s.Kubectl(t, "rollout", "pause", "deployment/web")
	s.Kubectl(t, "set", "image", "deployment/web", "web=example/web:3")
	eventually(t, "the controller to observe the paused template", func() (bool, string) {
		out := strings.Fields(s.Kubectl(t, "get", "deployment", "web", "-o", "jsonpath={.metadata.generation} "+
			`{.status.observedGeneration} {.status.conditions[?(@.type=="Progressing")].reason}`))
		return len(out) == 3 && out[0] == out[1] && out[2] == "DeploymentPaused", strings.Join(out, " ")
	})
	if got := f.revisions(); got != "2 3" {
		t.Errorf("revisions of a paused deployment: %q", got)
	}
	s.Kubectl(t, "rollout", "resume", "deployment/web")
	f.waitForRollout()
	if got := f.revisions(); got != "2 3 4" {
		t.Errorf("revisions after the resumption: %q", got)
	}
}

func (f deploymentTest) testRestartAndScale() {
	t, s := f.t, f.s
	t.Helper()
	before := s.Kubectl(t, "get", "pods", "-o", "name")
	s.Kubectl(t, "rollout", "restart", "deployment/web")
	f.waitForRollout()
	for pod := range strings.FieldsSeq(s.Kubectl(t, "get", "pods", "-o", "name")) {
		if strings.Contains(before, pod) {
			t.Errorf("%s is left after a restart", pod)
		}
	}
	s.Kubectl(t, "scale", "deployment/web", "--replicas=5")
	f.waitForRollout()
	f.checkField("{.status.availableReplicas}", "5")
}

// keepPodsReady makes all pods of the namespace ready until the test ends.
func (s *Server) keepPodsReady(t *testing.T) {
	t.Helper()
	s.patchPodStatus(t, func(pod *corev1.Pod) string {
		if len(pod.Status.Conditions) > 0 && pod.Status.Phase == corev1.PodRunning {
			return ""
		}
		return `{"status":{"phase":"Running",` +
			`"conditions":[{"type":"Ready","status":"True","lastTransitionTime":"2026-01-02T03:04:05Z"}]}}`
	})
}

// patchPodStatus patches the status of each created or changed pod of the namespace until the test ends. An empty
// patch is not sent.
func (s *Server) patchPodStatus(t *testing.T, patch func(*corev1.Pod) string) {
	t.Helper()
	pods := s.Client.CoreV1().Pods(s.Namespace)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	changes, err := pods.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		cancel()
		<-done
	})
	go func() {
		defer close(done)
		defer changes.Stop()
		for event := range changes.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			if !ok {
				continue
			}
			if body := patch(pod); body != "" {
				_, _ = pods.Patch(ctx, pod.Name, types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{},
					"status") // the pod may be gone
			}
		}
	}()
}
