package control

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"berth/control"
	"berth/control/controllers"
)

// withoutControllers disables all controllers, except those that pods require: for system namespaces and
// for service accounts.
func withoutControllers(c *control.Config) {
	for _, name := range control.ControllerNames() {
		if name != control.SystemNamespaces && name != controllers.ServiceAccounts {
			c.Controllers = append(c.Controllers, "-"+name)
		}
	}
}

// mustBeRejected runs kubectl and requires an error that contains all texts.
func mustBeRejected(t *testing.T, s *Server, input string, texts []string, args ...string) {
	t.Helper()
	out, err := s.TryKubectl(t, input, args...)
	if err == nil {
		t.Errorf("kubectl %s succeeded:\n%s", strings.Join(args, " "), out)
	}
	for _, w := range texts {
		if !strings.Contains(out, w) {
			t.Errorf("kubectl %s: %q not found in\n%s", strings.Join(args, " "), w, out)
		}
	}
}

// TestKubectlGetPods checks the columns of pods, also wide, and of other kinds.
func TestKubectlGetPods(t *testing.T) {
	t.Parallel()
	s := SharedWithoutControllers(t)
	s.Apply(t, somePod)
	if got := strings.Fields(strings.Split(s.Kubectl(t, "get", "pods"), "\n")[1]); strings.Join(got[:4],
		" ") != "web 0/1 Pending 0" {
		t.Errorf("kubectl get pods: got %v", got)
	}
	wide := s.Kubectl(t, "get", "pods", "-o", "wide")
	if heads := strings.Join(strings.Fields(strings.Split(wide, "\n")[0]),
		" "); heads != "NAME READY STATUS RESTARTS AGE IP NODE NOMINATED NODE READINESS GATES" {
		t.Errorf("kubectl get pods -o wide: got header %s", heads)
	}
	if got := s.Kubectl(t, "get", "pods", "-o",
		"custom-columns=N:.metadata.name,Q:.status.qosClass,G:.metadata.generation"); !strings.Contains(got,
		"web   BestEffort   1") {
		t.Errorf("custom columns: got %s", got)
	}
	if got := s.Kubectl(t, "get", "pod", "web", "-o", "yaml"); !strings.Contains(got,
		"terminationGracePeriodSeconds: 30") || !strings.Contains(got, "phase: Pending") {
		t.Errorf("kubectl get pod -o yaml: got %s", got)
	}
	s.Kubectl(t, "create", "deployment", "front", "--image=example/web", "--replicas=2")
	lines := strings.Split(s.Kubectl(t, "get", "deploy", "-o", "wide"), "\n")
	if heads := strings.Join(strings.Fields(lines[0]), " "); heads != "NAME READY UP-TO-DATE AVAILABLE AGE CONTAINERS "+
		"IMAGES SELECTOR" {
		t.Errorf("kubectl get deploy -o wide: got header %s", heads)
	}
	if row := strings.Fields(lines[1]); strings.Join(append(row[:4], row[5:]...),
		" ") != "front 0/2 0 0 web example/web app=front" {
		t.Errorf("kubectl get deploy -o wide: got row %v", row)
	}
	if got := s.Kubectl(t, "get", "namespaces", s.Namespace, "--no-headers"); strings.Fields(got)[1] != "Active" {
		t.Errorf("kubectl get namespaces: got %s", got)
	}
}

// TestKubectlGetWorkloads checks the wide columns of all kinds of workloads.
func TestKubectlGetWorkloads(t *testing.T) {
	t.Parallel()
	s := SharedWithoutControllers(t)
	const template = `{metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: example/web}]}}`
	s.Apply(t, `{apiVersion: v1, kind: List, items: [
{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: set},
  spec: {replicas: 2, selector: {matchLabels: {app: web}}, template: `+template+`}},
{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db},
  spec: {selector: {matchLabels: {app: web}}, template: `+template+`}},
{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: logs},
  spec: {selector: {matchLabels: {app: web}}, template: `+template+`}},
{apiVersion: batch/v1, kind: Job, metadata: {name: pi}, spec: {completions: 2, template:
  {spec: {restartPolicy: Never, containers: [{name: c, image: example/pi}]}}}},
{apiVersion: batch/v1, kind: CronJob, metadata: {name: tick}, spec: {schedule: "@daily", timeZone: UTC, jobTemplate:
  {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: example/tick}]}}}}}},
{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: web},
  spec: {maxReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}}}]}
`)
	out := s.Kubectl(t, "get", "rs,sts,ds,jobs,cronjobs,hpa", "-o", "wide")
	uid := s.Kubectl(t, "get", "job", "pi", "-o", "jsonpath={.metadata.uid}")
	rows := regexp.MustCompile(`\b\d+(m\d+)?s\b`).ReplaceAllString(normalizeSpaces(out), "AGE")
	for _, want := range []string{
		"NAME DESIRED CURRENT READY AGE CONTAINERS IMAGES SELECTOR\n" +
			"replicaset.apps/set 2 0 0 AGE c example/web app=web",
		"NAME READY AGE CONTAINERS IMAGES\nstatefulset.apps/db 0/1 AGE c example/web",
		"NAME DESIRED CURRENT READY UP-TO-DATE AVAILABLE NODE SELECTOR AGE CONTAINERS IMAGES SELECTOR\n" +
			"daemonset.apps/logs 0 0 0 0 0 <none> AGE c example/web app=web",
		"NAME STATUS COMPLETIONS DURATION AGE CONTAINERS IMAGES SELECTOR\n" +
			"job.batch/pi Running 0/2 AGE c example/pi batch.kubernetes.io/controller-uid=" + uid,
		"NAME SCHEDULE TIMEZONE SUSPEND ACTIVE LAST SCHEDULE AGE CONTAINERS IMAGES SELECTOR\n" +
			"cronjob.batch/tick @daily UTC False 0 <none> AGE c example/tick <none>",
		"NAME REFERENCE TARGETS MINPODS MAXPODS REPLICAS AGE\n" +
			"horizontalpodautoscaler.autoscaling/web Deployment/web cpu: <unknown>/80% 1 3 0 AGE",
	} {
		if !strings.Contains(rows, want) {
			t.Errorf("kubectl get -o wide has no\n%s\nin\n%s", want, rows)
		}
	}
}

// TestInvalidManifestsAreRejected checks the path of the field in the error.
func TestInvalidManifestsAreRejected(t *testing.T) {
	t.Parallel()
	s := SharedWithoutControllers(t)
	mustBeRejected(t, s, strings.Replace(somePod, "image: example/web", "image: ''", 1),
		[]string{`The Pod "web" is invalid: spec.containers[0].image: Required value`}, "create", "-f", "-")
	mustBeRejected(t, s, strings.Replace(somePod, "spec:", "spec:\n  restartPolcy: Never", 1),
		[]string{"unknown field", "restartPolcy"}, "create", "-f", "-")
	mustBeRejected(t, s, `{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": `+
		`{"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "c"}}, "spec": `+
		`{"containers": [{"name": "c", "image": "i"}]}}}}`,
		[]string{"spec.template.metadata.labels: Invalid value", "`selector` does not match template `labels`"},
		"create",
		"-f", "-")
	mustBeRejected(t, s, `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": `+
		`[{"port": 70000}]}}`,
		[]string{"spec.ports[0].port: Invalid value: 70000"}, "create", "-f", "-")
}

// TestPodImmutableFields updates mutable and immutable fields.
func TestPodImmutableFields(t *testing.T) {
	t.Parallel()
	s := SharedWithoutControllers(t)
	s.Apply(t, somePod)
	mustBeRejected(t, s, "", []string{"spec: Forbidden: pod updates may not change fields other than",
		"spec.containers[0].command"},
		"patch", "pod", "web", "-p", `{"spec": {"containers": [{"name": "main", "command": ["x"]}]}}`)
	s.Kubectl(t, "set", "image", "pod/web", "main=example/web:2")
	s.Kubectl(t, "patch", "pod", "web", "--type=json", "-p",
		`[{"op": "add", "path": "/spec/activeDeadlineSeconds", "value": 60},
		{"op": "add", "path": "/spec/tolerations/-", "value": {"key": "k", "operator": "Exists"}}]`)
	if got := s.Kubectl(t, "get", "pod", "web", "-o",
		"jsonpath={.metadata.generation} {.spec.containers[0].image}"); got != "3 example/web:2" {
		t.Errorf("after the updates: got %s", got)
	}
	mustBeRejected(t, s, "", []string{"must be less than or equal to previous value"}, "patch", "pod", "web", "-p",
		`{"spec": {"activeDeadlineSeconds": 61}}`)
	s.Kubectl(t, "patch", "pod", "web", "--subresource=resize", "-p",
		`{"spec": {"containers": [{"name": "main", "image": "not/taken"}]}}`)
	mustBeRejected(t, s, "", []string{"Pod QOS Class may not change as a result of resizing"},
		"patch", "pod", "web", "--subresource=resize", "-p",
		`{"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]}}`)
	if got := s.Kubectl(t, "get", "pod", "web", "-o", "jsonpath={.spec.containers[0].image}"); got != "example/web:2" {
		t.Errorf("resize changed the image to %s", got)
	}
	s.Kubectl(t, "create", "deployment", "front", "--image=example/web")
	mustBeRejected(t, s, "", []string{"spec.selector: Invalid value", "field is immutable"},
		"patch", "deployment", "front", "--type=merge", "-p",
		`{"spec": {"selector": {"matchLabels": {"app": "x"}}, "template": {"metadata": {"labels": {"app": "x"}}}}}`)
	s.Kubectl(t, "create", "secret", "generic", "key", "--from-literal=a=b")
	mustBeRejected(t, s, "", []string{"type: Invalid value", "field is immutable"}, "patch", "secret", "key", "-p",
		`{"type": "x/y"}`)
}

// TestPodResize uses the resize subresource. The QoS class must not change.
func TestPodResize(t *testing.T) {
	t.Parallel()
	s := SharedWithoutControllers(t)
	s.Apply(t, strings.Replace(somePod, "image: example/web", "image: example/web, resources: {requests: {cpu: 100m}}",
		1))
	s.Kubectl(t, "patch", "pod", "web", "--subresource=resize", "-p",
		`{"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "200m"}}}]}}`)
	pod, err := s.Client.CoreV1().Pods(s.Namespace).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if q := pod.Spec.Containers[0].Resources.Requests.Cpu(); q.Cmp(resource.MustParse("200m")) != 0 ||
		pod.Generation != 2 {
		t.Errorf("after the resize: got %s at generation %d", q, pod.Generation)
	}
	s.Apply(t, `{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [{name: main, resources: `+
		`{requests: {cpu: 300m}}}]}}`,
		"--server-side", "--force-conflicts", "--subresource=resize")
	if got := s.Kubectl(t, "get", "pod", "web", "--subresource=resize", "-o",
		"jsonpath={.spec.containers[0].resources.requests.cpu} "+
			"{.spec.containers[0].image}"); got != "300m example/web" {
		t.Errorf("after the applied resize: got %s", got)
	}
	out, err := s.TryKubectl(t, "", "debug", "web", "--image=example/debug", "--target=main", "--attach=false", "-c",
		"debugger")
	if err != nil {
		t.Fatalf("kubectl debug: %v\n%s", err, out)
	}
	if got := s.Kubectl(t, "get", "pod", "web", "-o",
		"jsonpath={.spec.ephemeralContainers[*].name}"); got != "debugger" {
		t.Errorf("ephemeral containers: got %s", got)
	}
}

// TestPodResizeRespectsQuotaAndLimitRange resizes a pod beyond its quota and LimitRange, and checks the
// usage of the quota.
func TestPodResizeRespectsQuotaAndLimitRange(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	s.Apply(t, strings.Replace(somePod, "image: example/web", "image: example/web, resources: {requests: {cpu: 100m, "+
		"memory: 8Mi}, limits: {memory: 64Mi}}", 1))
	s.Kubectl(t, "create", "quota", "few", "--hard=requests.cpu=500m")
	used := func() string {
		return s.Kubectl(t, "get", "quota", "few", "-o", `jsonpath={.status.used.requests\.cpu}`)
	}
	waitForResult(t, "quota usage after creation", used, "100m")
	resize := func(cpu, memory string) []string {
		return []string{"patch", "pod", "web", "--subresource=resize", "-p",
			fmt.Sprintf(`{"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": %q, `+
				`"memory": %q}}}]}}`,
				cpu, memory)}
	}
	mustBeRejected(t, s, "", []string{"exceeded quota: few, requested: requests.cpu=500m, used: requests.cpu=100m, " +
		"limited: " +
		"requests.cpu=500m"}, resize("600m", "8Mi")...)
	s.Kubectl(t, resize("400m", "8Mi")...)
	waitForResult(t, "quota usage after an increase", used, "400m")
	s.Apply(t, `{apiVersion: v1, kind: LimitRange, metadata: {name: range}, spec: {limits: [{type: Container, max: `+
		`{memory: 64Mi}, min: {memory: 4Mi}, default: {cpu: 300m}}]}}`)
	waitForResult(t, "resize below the LimitRange", func() string {
		out, err := s.TryKubectl(t, "", append(resize("400m", "2Mi"), "--dry-run=server")...)
		return fmt.Sprint(err != nil && strings.Contains(out,
			"minimum memory usage per Container is 4Mi, but request is 2Mi"))
	}, "true")
	s.Kubectl(t, resize("200m", "8Mi")...)
	waitForResult(t, "quota usage after a decrease", used, "200m")
	// The defaults of the LimitRange apply to new pods only.
	if got := s.Kubectl(t, "get", "pod", "web", "-o",
		"jsonpath={.spec.containers[0].resources.limits}"); got != `{"memory":"64Mi"}` {
		t.Errorf("got limits %s, want memory only", got)
	}
}

// bindPod binds a pod to a node, like the scheduler.
func bindPod(t *testing.T, s *Server, name, node string) error {
	return s.Client.CoreV1().Pods(s.Namespace).Bind(t.Context(), &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.Namespace}, Target: corev1.ObjectReference{Kind: "Node",
			Name: node}}, metav1.CreateOptions{})
}

// TestPodBinding checks valid and invalid bindings, and the graceful deletion of a bound pod.
func TestPodBinding(t *testing.T) {
	t.Parallel()
	s := SharedWithoutControllers(t)
	pods := s.Client.CoreV1().Pods(s.Namespace)
	s.Apply(t, strings.Replace(somePod, "spec:", "spec:\n  schedulingGates: [{name: later}]", 1))
	if got := s.Kubectl(t, "get", "pod", "web", "--no-headers"); strings.Fields(got)[2] != "SchedulingGated" {
		t.Errorf("gated pod: got %s", got)
	}
	if err := bindPod(t, s, "web", "n1"); !apierrors.IsConflict(err) ||
		!strings.Contains(err.Error(), "schedulingGates") {
		t.Errorf("binding of a gated pod: got %v, want Conflict", err)
	}
	s.Kubectl(t, "patch", "pod", "web", "--type=json", "-p", `[{"op": "remove", "path": "/spec/schedulingGates"}]`)
	if err := bindPod(t, s, "web", "BAD_NODE"); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(),
		"target.name") {
		t.Errorf("binding to an invalid node name: got %v, want Invalid", err)
	}
	if err := bindPod(t, s, "web", "n1"); err != nil {
		t.Fatal(err)
	}
	if err := bindPod(t, s, "web", "n2"); !apierrors.IsConflict(err) || !strings.Contains(err.Error(),
		`already assigned to node "n1"`) {
		t.Errorf("second binding: got %v, want Conflict", err)
	}
	pod, err := pods.Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || pod.Spec.NodeName != "n1" {
		t.Fatalf("bound pod: got %+v, %v", pod, err)
	}
	s.Kubectl(t, "delete", "pod", "web", "--wait=false", "--grace-period=20")
	pod, err = pods.Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || pod.DeletionTimestamp == nil || *pod.DeletionGracePeriodSeconds != 20 {
		t.Fatalf("deleted bound pod: got %+v, %v", pod, err)
	}
	s.Kubectl(t, "delete", "pod", "web", "--wait=false", "--grace-period=40")
	if pod, err = pods.Get(t.Context(), "web", metav1.GetOptions{}); err != nil ||
		*pod.DeletionGracePeriodSeconds != 20 {
		t.Errorf("second delete increased the grace period: got %+v, %v", pod, err)
	}
	if got := s.Kubectl(t, "get", "pod", "web", "--no-headers"); strings.Fields(got)[2] != "Terminating" {
		t.Errorf("deleted bound pod: got %s", got)
	}
	// The node deletes the pod with its UID after termination.
	none, otherUID := int64(0), types.UID("another")
	if err := pods.Delete(t.Context(), "web", metav1.DeleteOptions{GracePeriodSeconds: &none,
		Preconditions: &metav1.Preconditions{UID: &otherUID}}); !apierrors.IsConflict(err) {
		t.Errorf("deletion with another UID: got %v, want Conflict", err)
	}
	if err := pods.Delete(t.Context(), "web", metav1.DeleteOptions{GracePeriodSeconds: &none,
		Preconditions: &metav1.Preconditions{UID: &pod.UID}}); err != nil {
		t.Fatal(err)
	}
	if _, err := pods.Get(t.Context(), "web", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the pod still exists: %v", err)
	}
}

// TestTerminatedPodsAreDeletedImmediately deletes a bound pod that has succeeded, without a grace
// period. It also checks that the QoS class is immutable.
func TestTerminatedPodsAreDeletedImmediately(t *testing.T) {
	t.Parallel()
	s := SharedWithoutControllers(t)
	s.Apply(t, somePod)
	if err := bindPod(t, s, "web", "n1"); err != nil {
		t.Fatal(err)
	}
	s.Kubectl(t, "patch", "pod", "web", "--subresource=status", "-p",
		`{"status": {"phase": "Succeeded", "qosClass": "Guaranteed"}}`)
	if got := s.Kubectl(t, "get", "pod", "web", "-o",
		"jsonpath={.status.phase} {.status.qosClass}"); got != "Succeeded BestEffort" {
		t.Errorf("pod status: got %s", got)
	}
	s.Kubectl(t, "delete", "pod", "web", "--wait=false")
	if _, err := s.Client.CoreV1().Pods(s.Namespace).Get(t.Context(), "web",
		metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the pod still exists: %v", err)
	}
}

// TestEvictionRespectsDisruptionBudget evicts pods with and without allowed disruptions.
func TestEvictionRespectsDisruptionBudget(t *testing.T) {
	t.Parallel()
	s := SharedWithoutControllers(t)
	ctx, pods, budgets := t.Context(), s.Client.CoreV1().Pods(s.Namespace),
		s.Client.PolicyV1().PodDisruptionBudgets(s.Namespace)
	for _, name := range []string{"web", "two"} {
		s.Apply(t, strings.Replace(somePod, "name: web,", "name: "+name+",", 1))
		if err := bindPod(t, s, name, "n1"); err != nil {
			t.Fatal(err)
		}
		s.Kubectl(t, "patch", "pod", name, "--subresource=status", "-p",
			`{"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}`)
	}
	s.Kubectl(t, "create", "pdb", "keep", "--selector=app=web", "--min-available=1")
	evict := func(name string) error {
		return pods.EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.Namespace}})
	}
	setDisruptionsAllowed := func(allowed int32) {
		t.Helper()
		b, err := budgets.Get(ctx, "keep", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		b.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: b.Generation, DisruptionsAllowed: allowed,
			CurrentHealthy: 2, DesiredHealthy: 1, ExpectedPods: 2}
		if _, err := budgets.UpdateStatus(ctx, b, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	setDisruptionsAllowed(0)
	err := evict("web")
	if !apierrors.IsTooManyRequests(err) || !apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause) ||
		!strings.Contains(err.Error(), "Cannot evict pod as it would violate the pod's disruption budget.") {
		t.Fatalf("eviction without allowed disruptions: got %v, want TooManyRequests", err)
	}
	setDisruptionsAllowed(1)
	if err := evict("web"); err != nil {
		t.Fatal(err)
	}
	pod, err := pods.Get(ctx, "web", metav1.GetOptions{})
	if err != nil || pod.DeletionTimestamp == nil {
		t.Fatalf("evicted pod has no deletionTimestamp: %+v, %v", pod, err)
	}
	if c := pod.Status.Conditions[len(pod.Status.Conditions)-1]; c.Type != corev1.DisruptionTarget ||
		c.Reason != "EvictionByEvictionAPI" {
		t.Errorf("evicted pod: got condition %+v, want DisruptionTarget", c)
	}
	b, err := budgets.Get(ctx, "keep", metav1.GetOptions{})
	if err != nil || b.Status.DisruptionsAllowed != 0 || len(b.Status.DisruptedPods) != 1 {
		t.Errorf("after the eviction: got status %+v, %v", b.Status, err)
	}
	if err := evict("two"); !apierrors.IsTooManyRequests(err) {
		t.Errorf("second eviction: got %v, want TooManyRequests", err)
	}
	// The disruption budget does not apply to a pod that is not running.
	s.Apply(t, strings.Replace(somePod, "name: web,", "name: new,", 1))
	if err := evict("new"); err != nil {
		t.Error(err)
	}
	if _, err := pods.Get(ctx, "new", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the pod still exists: %v", err)
	}
}

// TestDisruptionBudgetStatusDuringDrain evicts two pods with minAvailable: 1. Only one eviction succeeds.
func TestDisruptionBudgetStatusDuringDrain(t *testing.T) {
	t.Parallel()
	s := Start(t, withoutControllers, func(c *control.Config) {
		c.Controllers = slices.DeleteFunc(c.Controllers, func(name string) bool {
			return name == "-"+controllers.Disruption
		})
	})
	ctx := t.Context()
	for _, name := range []string{"web", "two"} {
		s.Apply(t, strings.Replace(somePod, "name: web,", "name: "+name+",", 1))
		if err := bindPod(t, s, name, "n1"); err != nil {
			t.Fatal(err)
		}
		s.Kubectl(t, "patch", "pod", name, "--subresource=status", "-p",
			`{"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}`)
	}
	s.Kubectl(t, "create", "pdb", "keep", "--selector=app=web", "--min-available=1")
	s.Kubectl(t, "wait", "pdb/keep", "--for=jsonpath={.status.disruptionsAllowed}=1", "--timeout=4m")
	if row := strings.Fields(s.Kubectl(t, "get", "pdb", "keep", "--no-headers")); strings.Join(row[:4],
		" ") != "keep 1 N/A 1" {
		t.Errorf("kubectl get pdb: got %v", row)
	}
	evict := func(name string) error {
		return s.Client.CoreV1().Pods(s.Namespace).EvictV1(ctx,
			&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name,
				Namespace: s.Namespace}})
	}
	if err := evict("web"); err != nil {
		t.Fatal(err)
	}
	if err := evict("two"); !apierrors.IsTooManyRequests(err) {
		t.Fatalf("second eviction: got %v, want TooManyRequests", err)
	}
	// The controller updates the status of the budget after it has observed the deletion.
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 2*time.Minute, true, func(ctx context.Context) (bool,
		error) {
		b, err := s.Client.PolicyV1().PodDisruptionBudgets(s.Namespace).Get(ctx, "keep", metav1.GetOptions{})
		return err == nil && b.Status.CurrentHealthy == 1 && b.Status.DesiredHealthy == 1, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := evict("two"); !apierrors.IsTooManyRequests(err) {
		t.Fatalf("second eviction after the status update: got %v, want TooManyRequests", err)
	}
}

// TestUnsupportedFieldsAreStored checks that the server stores fields that the agent does not support.
func TestUnsupportedFieldsAreStored(t *testing.T) {
	t.Parallel()
	s := SharedWithoutControllers(t)
	s.Apply(t, `
apiVersion: v1
kind: Pod
metadata: {name: rich}
spec:
  volumes:
  - {name: a, persistentVolumeClaim: {claimName: data}}
  - {name: b, nfs: {server: s, path: /x}}
  - {name: c, projected: {sources: [{serviceAccountToken: {path: token}}]}}
  resourceClaims: [{name: gpu, resourceClaimName: one}]
  containers:
  - {name: main, image: example/web, resources: {claims: [{name: gpu}]}, readinessProbe: {tcpSocket: {port: later}}}
`)
	pod, err := s.Client.CoreV1().Pods(s.Namespace).Get(t.Context(), "rich", metav1.GetOptions{})
	if err != nil || len(pod.Spec.Volumes) < 3 || pod.Spec.Containers[0].ReadinessProbe == nil {
		t.Errorf("got pod %v, %v", runtime.Object(pod), err)
	}
}
