package quota

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

func parse[T any](t *testing.T, text string) *T {
	t.Helper()
	out := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), out); err != nil {
		t.Fatal(err)
	}
	return out
}

func formatResources(list corev1.ResourceList) string {
	var out []string
	for name, q := range list {
		out = append(out, fmt.Sprintf("%s=%s", name, q.String()))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestPodUsage(t *testing.T) {
	now := time.Unix(1000, 0)
	text := `spec: {containers: [{name: a, image: x, resources: {requests: {cpu: 1, memory: 1Gi, example.com/gpu: ` +
		`2}, limits: {cpu: 2, example.com/gpu: 2}}}, {name: b, image: x, resources: {requests: {cpu: 500m}}}]}`
	pod := parse[corev1.Pod](t, text)
	const all = "count/pods=1 cpu=1500m limits.cpu=2 memory=1Gi pods=1 requests.cpu=1500m requests.example.com/gpu=2 " +
		"requests.memory=1Gi"
	if got := formatResources(PodUsage(pod, now)); got != all {
		t.Errorf("got  %s\nwant %s", got, all)
	}
	allocated := corev1.ResourceList{"cpu": resource.MustParse("3"), "memory": resource.MustParse("1Mi")}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{
		{Name: "a", AllocatedResources: allocated,
			Resources: &corev1.ResourceRequirements{Requests: allocated, Limits: allocated}},
	}
	if got, want := formatResources(PodUsage(pod, now)),
		"count/pods=1 cpu=3500m limits.cpu=3 limits.memory=1Mi memory=1Gi pods=1 requests.cpu=3500m "+
			"requests.example.com/gpu=2 requests.memory=1Gi"; got != want {
		t.Errorf("resized pod: got  %s\nwant %s", got, want)
	}
	pod.Status.ContainerStatuses = nil
	pod.Status.Phase = corev1.PodSucceeded
	if got := formatResources(PodUsage(pod, now)); got != "count/pods=1" {
		t.Errorf("terminated pod: %s", got)
	}
	pod.Status.Phase = corev1.PodRunning
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &metav1.Time{Time: now.Add(-time.Second)}, new(int64)
	if got := formatResources(PodUsage(pod, now)); got != "count/pods=1" {
		t.Errorf("pod with expired grace period: %s", got)
	}
	pod.DeletionTimestamp.Time = now.Add(time.Minute)
	if got := formatResources(PodUsage(pod, now)); got != all {
		t.Errorf("terminating pod: %s", got)
	}
}

func TestServiceAndClaimUsage(t *testing.T) {
	for text, want := range map[string]string{
		"spec: {ports: [{port: 1}]}":                            "",
		"spec: {type: NodePort, ports: [{port: 1}, {port: 2}]}": "services.nodeports=2",
		"spec: {type: LoadBalancer, ports: " +
			"[{port: 1}]}": "services.loadbalancers=1 services.nodeports=1",
		"spec: {type: LoadBalancer, allocateLoadBalancerNodePorts: false, ports: " +
			"[{port: 1}]}": "services.loadbalancers=1",
	} {
		if got := formatResources(ServiceUsage(parse[corev1.Service](t, text))); got != want {
			t.Errorf("%s: got %s", text, got)
		}
	}
	claim := parse[corev1.PersistentVolumeClaim](t,
		"spec: {storageClassName: fast, resources: {requests: {storage: 5Gi}}}")
	want := "fast.storageclass.storage.k8s.io/persistentvolumeclaims=1 " +
		"fast.storageclass.storage.k8s.io/requests.storage=5Gi requests.storage=5Gi"
	if got := formatResources(ClaimUsage(claim)); got != want {
		t.Errorf("claim: %s", got)
	}
}

func TestMatches(t *testing.T) {
	const bestEffort, burstable = "spec: {containers: [{name: a, image: x}]}",
		"spec: {priorityClassName: high, activeDeadlineSeconds: 5, containers: [{name: a, image: x, resources: " +
			"{requests: {cpu: 1}}}]}"
	crossNamespace := "spec: {containers: [{name: a, image: x}], affinity: {podAntiAffinity: " +
		"{requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: zone, namespaces: [other]}]}}}"
	for _, row := range []struct {
		quota, pod string
		want       bool
	}{
		{"spec: {}", bestEffort, true},
		{"spec: {scopes: [BestEffort]}", bestEffort, true},
		{"spec: {scopes: [BestEffort]}", burstable, false},
		{"spec: {scopes: [NotBestEffort, Terminating]}", burstable, true},
		{"spec: {scopes: [NotBestEffort, NotTerminating]}", burstable, false},
		{"spec: {scopeSelector: {matchExpressions: [{scopeName: PriorityClass, operator: In, values: [high]}]}}",
			burstable,
			true},
		{"spec: {scopeSelector: {matchExpressions: [{scopeName: PriorityClass, operator: In, values: [high]}]}}",
			bestEffort,
			false},
		{"spec: {scopeSelector: {matchExpressions: [{scopeName: PriorityClass, operator: NotIn, values: [low]}]}}",
			burstable,
			true},
		{"spec: {scopeSelector: {matchExpressions: [{scopeName: PriorityClass, operator: DoesNotExist}]}}", bestEffort,
			true},
		{"spec: {scopeSelector: {matchExpressions: [{scopeName: CrossNamespacePodAffinity, operator: Exists}]}}",
			crossNamespace, true},
		{"spec: {scopeSelector: {matchExpressions: [{scopeName: CrossNamespacePodAffinity, operator: Exists}]}}",
			bestEffort,
			false},
	} {
		if got := Matches(parse[corev1.ResourceQuota](t, row.quota), parse[corev1.Pod](t, row.pod)); got != row.want {
			t.Errorf("%s on %s: got %v", row.quota, row.pod, got)
		}
	}
}

func TestObjectCountNames(t *testing.T) {
	if got := ObjectCountNames(schema.GroupResource{Resource: "pods"}); !slices.Equal(
		got,
		[]corev1.ResourceName{"count/pods", "pods"},
	) {
		t.Error(got)
	}
	if got := ObjectCountNames(schema.GroupResource{Group: "apps", Resource: "deployments"}); !slices.Equal(
		got,
		[]corev1.ResourceName{"count/deployments.apps"},
	) {
		t.Error(got)
	}
	if of, ok := ParseObjectCountName("count/deployments.apps"); !ok || of.Group != "apps" {
		t.Error(of, ok)
	}
	if _, ok := ParseObjectCountName("requests.cpu"); ok {
		t.Error("requests.cpu counts as an object count")
	}
}

func TestMissingConstraints(t *testing.T) {
	names := []corev1.ResourceName{"requests.cpu", "limits.memory", "requests.ephemeral-storage", "pods"}
	for name, row := range map[string]struct{ spec, want string }{
		"a container": {"{containers: [{name: a, resources: {requests: {cpu: 1}}}, {name: b, resources: {requests: " +
			"{cpu: 1}, limits: {memory: 1Gi}}}]}",
			"map[limits.memory:[a]]"},
		"an init container and a sidecar": {"{initContainers: [{name: s, restartPolicy: Always}, {name: i, " +
			"resources: {limits: {memory: 1}}}], containers: [{name: a, resources: {requests: {cpu: 1}, limits: " +
			"{memory: 1}}}]}",
			"map[limits.memory:[s] requests.cpu:[i s]]"},
		"pod-level resources": {"{resources: {requests: {cpu: 1}, limits: {memory: 1}}, initContainers: [{name: i}], " +
			"containers: [{name: a}]}", "map[]"},
	} {
		if got := fmt.Sprint(MissingConstraints(names, parse[corev1.Pod](t, "spec: "+row.spec))); got != row.want {
			t.Errorf("%s: got %s, want %s", name, got, row.want)
		}
	}
}
