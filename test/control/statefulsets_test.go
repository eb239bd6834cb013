package control

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const statefulSetManifest = `apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web, annotations: {kubernetes.io/change-cause: first}}
spec:
  replicas: 3
  serviceName: web
  selector: {matchLabels: {app: web}}
  persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete, whenScaled: Retain}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: example/a}]}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
`

// readyPods makes all pods with the label app=name ready, as their nodes would, except those whose image is broken.
func readyPods(t *testing.T, s *Server, name string) {
	t.Helper()
	pods, err := s.Client.CoreV1().Pods(s.Namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + name})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		if p.Status.Phase == corev1.PodRunning || p.Spec.Containers[0].Image == "example/broken" {
			continue
		}
		// The pod may have been replaced since.
		_, _ = s.Client.CoreV1().Pods(s.Namespace).Patch(t.Context(), p.Name, "application/strategic-merge-patch+json",
			[]byte(`{"metadata":{"uid":"`+string(p.UID)+`"},"status":{"phase":"Running","conditions":[`+
				`{"type":"Ready","status":"True","lastTransitionTime":"2026-01-02T03:04:05Z"}]}}`),
			metav1.PatchOptions{}, "status")
	}
}

// waitForPodImages makes pods ready until the pods with the label app=name are the given "name=image" in order, and all
// are running but those with a broken image.
func waitForPodImages(t *testing.T, s *Server, name, want string) {
	t.Helper()
	eventually(t, "pods "+want, func() (bool, string) {
		readyPods(t, s, name)
		out := s.Kubectl(t, "get", "pods", "-l", "app="+name, "-o",
			"jsonpath={range .items[*]}{.metadata.name}={.spec.containers[0].image}={.status.phase} {end}")
		out = strings.ReplaceAll(strings.TrimSpace(out), "=Running", "")
		return strings.ReplaceAll(out, "broken=Pending", "broken") == want, out
	})
}

// TestStatefulSet creates, updates, rolls back, scales and deletes a StatefulSet with kubectl.
func TestStatefulSet(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	waitForOutput(t, s, "default", "get", "sa", "default", "-o", "jsonpath={.metadata.name}")
	if out := s.Apply(t, statefulSetManifest); strings.Contains(out, "Warning") {
		t.Errorf("kubectl apply: got %q, want no warning", out)
	}
	waitForPodImages(t, s, "web", "web-0=example/a web-1=example/a web-2=example/a")
	out := s.Kubectl(t, "rollout", "status", "sts/web", "--timeout=4m")
	if !strings.Contains(out, "rolling update complete 3 pods at") &&
		!strings.Contains(out, "partitioned roll out complete: 3 new pods have been updated") {
		t.Errorf("kubectl rollout status: got %q", out)
	}
	waitForOutput(t, s, "data-web-0 data-web-1 data-web-2", "get", "pvc", "-l", "app=web", "-o",
		"jsonpath={.items[*].metadata.name}")
	testStatefulSetRollouts(t, s)
	if out := s.Kubectl(t, "describe", "sts/web"); !strings.Contains(out,
		"create Claim data-web-0 Pod web-0 in StatefulSet web success") ||
		!strings.Contains(out, "delete Pod web-2 in StatefulSet web successful") {
		t.Errorf("kubectl describe: got\n%s", out)
	}
	s.Kubectl(t, "scale", "sts/web", "--replicas=1")
	waitForPodImages(t, s, "web", "web-0=example/b")
	waitForOutput(t, s, "1 1 1", "get", "sts/web", "-o",
		"jsonpath={.status.replicas} {.status.readyReplicas} {.status.availableReplicas}")
	waitForOutput(t, s, "3", "get", "pvc", "-l", "app=web", "-o", "jsonpath={.items[3:].metadata.name}3")
	s.Kubectl(t, "delete", "sts/web", "--cascade=foreground")
	waitForDeletion(t, s, "sts/web")
	for _, kind := range []string{"pods", "pvc", "controllerrevisions"} {
		waitForOutput(t, s, "", "get", kind, "-l", "app=web", "-o", "jsonpath={.items[*].metadata.name}")
	}
}

func testStatefulSetRollouts(t *testing.T, s *Server) {
	t.Helper()
	s.Kubectl(t, "set", "image", "sts/web", "c=example/b")
	s.Kubectl(t, "annotate", "--overwrite", "sts/web", "kubernetes.io/change-cause=second")
	waitForPodImages(t, s, "web", "web-0=example/b web-1=example/b web-2=example/b")
	// A broken template stops the rollout at the first pod. Fixing it replaces the pod because of the annotation.
	s.Kubectl(t, "set", "image", "sts/web", "c=example/broken")
	waitForPodImages(t, s, "web", "web-0=example/b web-1=example/b web-2=example/broken")
	s.Kubectl(t, "annotate", "sts/web", "berth.dev/replace-broken-pods=true")
	s.Kubectl(t, "rollout", "undo", "sts/web")
	waitForPodImages(t, s, "web", "web-0=example/b web-1=example/b web-2=example/b")
	waitForOutput(t, s, "1 3 4", "get", "controllerrevisions", "-l", "app=web", "--sort-by=.revision", "-o",
		"jsonpath={.items[*].revision}")
	s.Kubectl(t, "rollout", "undo", "sts/web", "--to-revision=1")
	waitForPodImages(t, s, "web", "web-0=example/a web-1=example/a web-2=example/a")
	s.Kubectl(t, "rollout", "undo", "sts/web")
	waitForPodImages(t, s, "web", "web-0=example/b web-1=example/b web-2=example/b")
	if out := s.Kubectl(t, "rollout", "history", "sts/web"); !strings.Contains(out, "REVISION") ||
		!strings.Contains(out, "first") {
		t.Errorf("kubectl rollout history: got %q", out)
	}
	s.Kubectl(t, "rollout", "status", "sts/web", "--timeout=4m")
	s.Kubectl(t, "rollout", "restart", "sts/web")
	eventually(t, "the restart", func() (bool, string) {
		readyPods(t, s, "web")
		out := s.Kubectl(t, "get", "sts/web", "-o", "jsonpath={.status.updatedReplicas} {.status.currentRevision} "+
			"{.status.updateRevision} {.metadata.generation} {.status.observedGeneration}")
		f := strings.Fields(out)
		return len(f) == 5 && f[0] == "3" && f[1] == f[2] && f[3] == f[4], out
	})
}
