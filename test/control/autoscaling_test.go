package control

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestAutoscaling scales a Deployment by the CPU usage that a stub of a kubelet reports, with the verbs of kubectl.
func TestAutoscaling(t *testing.T) {
	t.Parallel()
	s := Start(t)
	addNode(t, s, "n1", "16")
	var milli atomic.Int64 // usage of each pod
	milli.Store(50)
	serveSummary(t, s, "n1", func(w http.ResponseWriter, r *http.Request) {
		writeUsage(t, s, w, r, milli.Load())
	})
	s.patchPodStatus(t, func(pod *corev1.Pod) string {
		if pod.Status.StartTime != nil && len(pod.Status.Conditions) > 1 || pod.Spec.NodeName == "" {
			return ""
		}
		return `{"status":{"phase":"Running","startTime":"2026-01-02T03:04:05Z",` +
			`"conditions":[{"type":"Ready","status":"True","lastTransitionTime":"2026-01-02T03:04:05Z"}]}}`
	})
	s.Apply(t, `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: example/web, resources: {requests: {cpu: 100m}}}]}
`)
	s.Kubectl(t, "rollout", "status", "deployment/web", "--timeout=4m")
	out := s.Kubectl(t, "autoscale", "deployment", "web", "--cpu-percent=50", "--min=1", "--max=3")
	if strings.Contains(out, "Warning") {
		t.Errorf("kubectl autoscale: got %q, want no warning", out)
	}
	f := autoscalingTest{t, s}
	f.waitForRow("web Deployment/web cpu: 50%/50% 1 3 1")
	milli.Store(250)
	f.waitForRow("web Deployment/web cpu: 250%/50% 1 3 3")
	f.testDescription()
	f.testVersions()
	milli.Store(1)
	f.testScaleDown()
	milli.Store(105)
	f.testContainerMetric()
	f.testFailures()
}

// writeUsage writes a stats summary with the usage of all pods.
func writeUsage(t *testing.T, s *Server, w http.ResponseWriter, r *http.Request, milli int64) {
	t.Helper()
	pods, err := s.Client.CoreV1().Pods("default").List(r.Context(), metav1.ListOptions{})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	at := time.Now().Format(time.RFC3339Nano)
	usage := func(milli int64) string {
		return fmt.Sprintf(`"cpu": {"time": %q, "usageNanoCores": %d}, `+
			`"memory": {"time": %q, "workingSetBytes": 1048576}`,
			at, milli*1000000, at)
	}
	out := make([]string, 0, len(pods.Items))
	for i := range pods.Items {
		p := &pods.Items[i]
		out = append(out, fmt.Sprintf(`{"podRef": {"name": %q, "namespace": "default", "uid": %q}, `+
			`"containers": [{"name": %q, %s}]}`, p.Name, p.UID, p.Spec.Containers[0].Name, usage(milli)))
	}
	fmt.Fprintf(w, `{"node": {"nodeName": "n1", %s}, "pods": [%s]}`, usage(1000), strings.Join(out, ","))
}

// autoscalingTest tests the autoscaler "web".
type autoscalingTest struct {
	t *testing.T
	s *Server
}

// waitForRow waits for the row of kubectl get, without the age.
func (f autoscalingTest) waitForRow(want string) {
	f.t.Helper()
	eventually(f.t, "the autoscaler as "+want, func() (bool, string) {
		out, _ := f.s.TryKubectl(f.t, "", "get", "hpa", "web", "--no-headers")
		row := strings.Join(strings.Fields(out), " ")
		return strings.HasPrefix(row, want+" "), row + "\n" + f.describe()
	})
}

func (f autoscalingTest) describe() string {
	out, _ := f.s.TryKubectl(f.t, "", "describe", "hpa", "web")
	return out
}

// waitForDescription waits until kubectl describe prints all texts. Events come a moment after the status.
func (f autoscalingTest) waitForDescription(texts ...string) {
	f.t.Helper()
	eventually(f.t, "the description of the autoscaler", func() (bool, string) {
		out := f.describe()
		for _, want := range texts {
			if !strings.Contains(out, want) {
				return false, fmt.Sprintf("no %q in\n%s", want, out)
			}
		}
		return true, out
	})
}

// testDescription checks conditions and events, and that the controller acts as its service account.
func (f autoscalingTest) testDescription() {
	f.t.Helper()
	f.waitForDescription("SuccessfulRescale",
		"New size: 3; reason: cpu resource utilization (percentage of request) above target",
		"AbleToScale", "ScalingActive", "ValidMetricFound", "ScalingLimited", "TooManyReplicas")
	waitForOutput(f.t, f.s, "horizontal-pod-autoscaler", "get", "events", "--field-selector",
		"involvedObject.kind=HorizontalPodAutoscaler,reason=SuccessfulRescale", "-o",
		"jsonpath={.items[0].source.component}")
	metrics := f.s.Kubectl(f.t, "get", "--raw", "/metrics")
	if !strings.Contains(metrics, `workqueue_adds_total{name="horizontalpodautoscaler"}`) {
		f.t.Error("/metrics has no work queue of the autoscaler")
	}
}

// testVersions reads and writes the autoscaler as autoscaling/v1.
func (f autoscalingTest) testVersions() {
	f.t.Helper()
	v1 := "horizontalpodautoscalers.v1.autoscaling/web"
	got := f.s.Kubectl(f.t, "get", v1, "-o", "jsonpath={.apiVersion} {.spec.targetCPUUtilizationPercentage} "+
		"{.status.currentCPUUtilizationPercentage}")
	if got != "autoscaling/v1 50 250" {
		f.t.Errorf("as autoscaling/v1: %q", got)
	}
	conditions := f.s.Kubectl(f.t, "get", v1, "-o",
		`jsonpath={.metadata.annotations.autoscaling\.alpha\.kubernetes\.io/conditions}`)
	var decoded []metav1.Condition
	if err := json.Unmarshal([]byte(conditions), &decoded); err != nil || len(decoded) != 4 {
		f.t.Errorf("annotation with conditions: %q, %v", conditions, err)
	}
	f.s.Kubectl(f.t, "patch", v1, "--type=merge", "-p", `{"spec":{"targetCPUUtilizationPercentage":60}}`)
	got = f.s.Kubectl(f.t, "get", "hpa.v2.autoscaling", "web", "-o", "jsonpath={.metadata.annotations}"+
		"{.spec.metrics[*].resource.target.averageUtilization} {.metadata.generation}")
	if got != "60 2" {
		f.t.Errorf("as autoscaling/v2 after a patch of autoscaling/v1: %q", got)
	}
	if got := f.s.Kubectl(f.t, "get", "--raw", "/apis/autoscaling"); !strings.Contains(got,
		`"preferredVersion":{"groupVersion":"autoscaling/v2"`) {
		f.t.Errorf("discovery of the group: %s", got)
	}
	for _, manifest := range []string{"autoscaling/v1", "autoscaling/v2"} {
		out := f.s.Apply(f.t, fmt.Sprintf("{apiVersion: %s, kind: HorizontalPodAutoscaler, metadata: {name: other}, "+
			"spec: {maxReplicas: 2, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: none}}}", manifest),
			"--server-side", "--field-manager=test")
		if !strings.Contains(out, "serverside-applied") {
			f.t.Errorf("server-side apply of %s: %s", manifest, out)
		}
	}
	got = f.s.Kubectl(f.t, "get", "hpa", "other", "-o",
		"jsonpath={.spec.minReplicas} {.spec.metrics[0].resource.target.averageUtilization}")
	if got != "1 80" {
		f.t.Errorf("defaults: %q", got)
	}
}

// testScaleDown scales down without a stabilization window, one pod at a time.
func (f autoscalingTest) testScaleDown() {
	f.t.Helper()
	f.s.Kubectl(f.t, "patch", "hpa", "web", "--type=merge", "-p",
		`{"spec":{"minReplicas":2,"behavior":{"scaleDown":`+
			`{"stabilizationWindowSeconds":0,"policies":[{"type":"Pods","value":1,"periodSeconds":60}]}}}}`)
	f.waitForRow("web Deployment/web cpu: 1%/60% 2 3 2")
	f.waitForDescription("New size: 2; reason: All metrics below target")
}

// testContainerMetric scales up by the usage of one container, which exceeds its target by less than the default
// tolerance.
func (f autoscalingTest) testContainerMetric() {
	f.t.Helper()
	f.s.Kubectl(f.t, "patch", "hpa", "web", "--type=merge", "-p",
		`{"spec":{"behavior":{"scaleUp":{"tolerance":"0.01"}},`+
			`"metrics":[{"type":"ContainerResource","containerResource":{"name":"cpu","container":"web",`+
			`"target":{"type":"Utilization","averageUtilization":100}}}]}}`)
	f.waitForRow("web Deployment/web cpu: 105%/100% 2 3 3")
	waitForOutput(f.t, f.s, "ContainerResource web", "get", "hpa", "web", "-o",
		"jsonpath={.status.currentMetrics[0].type} {.status.currentMetrics[0].containerResource.container}")
}

// testFailures checks an unknown target, and metrics of APIs that are not registered.
func (f autoscalingTest) testFailures() {
	f.t.Helper()
	waitForOutput(f.t, f.s, "False FailedGetScale", "get", "hpa", "other", "-o",
		`jsonpath={.status.conditions[?(@.type=="AbleToScale")].status} `+
			`{.status.conditions[?(@.type=="AbleToScale")].reason}`)
	f.s.Kubectl(f.t, "patch", "hpa", "web", "--type=merge", "-p",
		`{"spec":{"metrics":[{"type":"Pods","pods":{"metric":{"name":"m"},`+
			`"target":{"type":"AverageValue","averageValue":"1"}}}]}}`)
	active := `jsonpath={.status.conditions[?(@.type=="ScalingActive")].status} ` +
		`{.status.conditions[?(@.type=="ScalingActive")].reason}`
	waitForOutput(f.t, f.s, "False FailedGetPodsMetric", "get", "hpa", "web", "-o", active)
	f.waitForDescription("unable to get metric m: unable to fetch metrics from custom metrics API: " +
		"no custom metrics API (custom.metrics.k8s.io) registered")
	f.s.Kubectl(f.t, "patch", "hpa", "web", "--type=merge", "-p",
		`{"spec":{"metrics":[{"type":"External","external":{"metric":{"name":"m"},`+
			`"target":{"type":"AverageValue","averageValue":"1"}}}]}}`)
	waitForOutput(f.t, f.s, "False FailedGetExternalMetric", "get", "hpa", "web", "-o", active)
	f.s.Kubectl(f.t, "scale", "deployment", "web", "--replicas=0")
	f.s.Kubectl(f.t, "patch", "hpa", "web", "--type=merge", "-p", `{"spec":{"maxReplicas":4}}`)
	waitForOutput(f.t, f.s, "ScalingDisabled", "get", "hpa", "web", "-o",
		`jsonpath={.status.conditions[?(@.type=="ScalingActive")].reason}`)
}
