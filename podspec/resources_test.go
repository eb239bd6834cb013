package podspec

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// amounts formats a list as in a manifest.
func amounts(list corev1.ResourceList) map[string]string {
	out := map[string]string{}
	for name, q := range list {
		out[string(name)] = q.String()
	}
	return out
}

func TestRequestsAndLimits(t *testing.T) {
	type list = map[string]string
	for _, row := range []struct {
		sentence, spec   string
		requests, limits list
	}{
		{"main containers add up",
			"containers: [{name: a, image: x, resources: {requests: {cpu: 1, memory: 1Mi}}}, {name: b, image: x, " +
				"resources: {requests: {cpu: 500m}}}]",
			list{"cpu": "1500m", "memory": "1Mi"}, list{}},
		{"the largest init container counts if it is larger, resource by resource",
			"{initContainers: [{name: i, image: x, resources: {requests: {cpu: 2}}}, {name: j, image: x, resources: " +
				"{requests: {memory: 1Mi}}}], containers: [{name: a, image: x, resources: {requests: {cpu: 1, " +
				"memory: 2Mi}}}]}",
			list{"cpu": "2", "memory": "2Mi"}, list{}},
		{"a sidecar adds to the main containers",
			"{initContainers: [{name: i, image: x, restartPolicy: Always, resources: {requests: {cpu: 1}}}], " +
				"containers: [{name: a, image: x, resources: {requests: {cpu: 2}}}]}",
			list{"cpu": "3"}, list{}},
		{"a sidecar adds to the init containers after it",
			"{initContainers: [{name: i, image: x, restartPolicy: Always, resources: {requests: {cpu: 1}}}, {name: " +
				"j, image: x, resources: {requests: {cpu: 5}}}], containers: [{name: a, image: x, resources: " +
				"{requests: {cpu: 2}}}]}",
			list{"cpu": "6"}, list{}},
		{"a sidecar does not add to the init containers before it",
			"{initContainers: [{name: j, image: x, resources: {requests: {cpu: 5}}}, {name: i, image: x, " +
				"restartPolicy: Always, resources: {requests: {cpu: 1}}}], containers: [{name: a, image: x, " +
				"resources: {requests: {cpu: 2}}}]}",
			list{"cpu": "5"}, list{}},
		{"overhead is added to requests, and to limits if there are any",
			"{overhead: {cpu: 100m, memory: 1Mi}, containers: [{name: a, image: x, resources: {limits: {cpu: 1}}}]}",
			list{"cpu": "1100m", "memory": "1Mi"}, list{"cpu": "1100m"}},
		{"a sidecar that starts later does not add to its predecessors, and overhead is added once",
			"{overhead: {cpu: 1}, initContainers: [{name: i, image: x, resources: {limits: {cpu: 5, memory: 1Mi}}}, " +
				"{name: s, image: x, restartPolicy: Always, resources: {limits: {cpu: 1, memory: 2Mi}}}, {name: j, " +
				"image: x, resources: {limits: {cpu: 5}}}], containers: [{name: a, image: x, resources: {limits: " +
				"{cpu: 2}}}]}",
			list{"cpu": "7", "memory": "2Mi"}, list{"cpu": "7", "memory": "2Mi"}},
		{"pod-level huge pages take precedence, pod-level extended resources do not exist",
			"{resources: {limits: {cpu: 2, hugepages-2Mi: 4Mi}}, containers: [{name: a, image: x, resources: " +
				"{limits: {cpu: 1, hugepages-2Mi: 2Mi, example.com/gpu: 1}}}]}",
			list{"cpu": "1", "hugepages-2Mi": "4Mi", "example.com/gpu": "1"}, list{"cpu": "2", "hugepages-2Mi": "4Mi",
				"example.com/gpu": "1"}},
		{"pod-level resources take precedence",
			"{resources: {requests: {cpu: 3}, limits: {cpu: 4}}, overhead: {cpu: 1}, containers: [{name: a, image: " +
				"x, resources: {limits: {cpu: 1, ephemeral-storage: 1Gi}}}]}",
			list{"cpu": "4", "ephemeral-storage": "1Gi"}, list{"cpu": "5", "ephemeral-storage": "1Gi"}},
		{"an ephemeral container is given nothing",
			"{ephemeralContainers: [{name: e, image: x, resources: {requests: {cpu: 1}}}]}", list{}, list{}},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			pod := podOf(t, row.spec)
			before := pod.DeepCopy()
			if diff := cmp.Diff(row.requests, amounts(Requests(pod))); diff != "" {
				t.Errorf("requests, want (-) got (+):\n%s", diff)
			}
			if diff := cmp.Diff(row.limits, amounts(Limits(pod))); diff != "" {
				t.Errorf("limits, want (-) got (+):\n%s", diff)
			}
			if diff := cmp.Diff(before, pod); diff != "" {
				t.Errorf("the pod was changed:\n%s", diff)
			}
		})
	}
}

// Quantities beyond 64 bits share memory when they are copied as values.
func TestRequestsDoesNotMutateLargeQuantities(t *testing.T) {
	huge := resource.MustParse("9000000000000000000")
	huge.Add(huge)
	c := corev1.Container{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": huge}}}
	pod := &corev1.Pod{
		Spec: corev1.PodSpec{Containers: []corev1.Container{c, c}, Overhead: corev1.ResourceList{"cpu": huge}},
	}
	want := huge.DeepCopy()
	Requests(pod)
	pod.Spec.Resources = &corev1.ResourceRequirements{
		Requests: corev1.ResourceList{"cpu": huge.DeepCopy()}, Limits: corev1.ResourceList{"cpu": huge.DeepCopy()},
	}
	Requests(pod)
	Limits(pod)
	for name, list := range map[string]corev1.ResourceList{"request": pod.Spec.Resources.Requests,
		"limit": pod.Spec.Resources.Limits} {
		if got := list["cpu"]; got.Cmp(want) != 0 {
			t.Errorf("the pod-level %s is now %s", name, got.String())
		}
	}
	if got := pod.Spec.Containers[0].Resources.Requests["cpu"]; got.Cmp(want) != 0 {
		t.Errorf("the request is now %s", got.String())
	}
}

func TestLimited(t *testing.T) {
	for _, row := range []struct {
		sentence, spec string
		want           bool
	}{
		{"every container is limited", "containers: [{name: a, image: x, resources: {limits: {memory: 1}}}, {name: " +
			"b, image: x, resources: {limits: {memory: 1}}}]", true},
		{"one is not", "containers: [{name: a, image: x, resources: {limits: {memory: 1}}}, {name: b, image: x}]",
			false},
		{"an init container is not", "{initContainers: [{name: i, image: x}], containers: [{name: a, image: x, " +
			"resources: {limits: {memory: 1}}}]}", false},
		{"a limit of nothing is none", "containers: [{name: a, image: x, resources: {limits: {memory: 0}}}]", false},
		{"the pod is", "{resources: {limits: {memory: 1}}, containers: [{name: a, image: x}]}", true},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			if got := Limited(podOf(t, row.spec), corev1.ResourceMemory); got != row.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestQOSClass(t *testing.T) {
	for _, row := range []struct {
		sentence, spec string
		want           corev1.PodQOSClass
	}{
		{"no requests and limits", "{}", corev1.PodQOSBestEffort},
		{"other resources do not count", one("resources: {limits: {ephemeral-storage: 1Gi}}"), corev1.PodQOSBestEffort},
		{"zero does not count", one("resources: {requests: {cpu: 0}}"), corev1.PodQOSBestEffort},
		{"limits of both, and requests follow, are guaranteed", one("resources: {limits: {cpu: 1, memory: 1Mi}}"),
			corev1.PodQOSGuaranteed},
		{"one amount written in two ways is the same",
			one("resources: {limits: {cpu: 1, memory: 1Mi}, requests: {cpu: 1000m, memory: '1048576'}}"),
			corev1.PodQOSGuaranteed},
		{"a smaller request bursts", one("resources: {limits: {cpu: 1, memory: 1Mi}, requests: {cpu: 500m}}"),
			corev1.PodQOSBurstable},
		{"a limit of one resource bursts", one("resources: {limits: {cpu: 1}}"), corev1.PodQOSBurstable},
		{"a request alone bursts", one("resources: {requests: {memory: 1}}"), corev1.PodQOSBurstable},
		{"one container without limits bursts", "containers: [{name: a, image: x, resources: {limits: {cpu: 1, " +
			"memory: 1Mi}}}, {name: b, image: x}]", corev1.PodQOSBurstable},
		{"an init container counts", "{initContainers: [{name: i, image: x}], containers: [{name: a, image: x, " +
			"resources: {limits: {cpu: 1, memory: 1Mi}}}]}", corev1.PodQOSBurstable},
		{"the pod's own resources count instead", "{resources: {limits: {cpu: 1, memory: 1Gi}}, containers: [{name: " +
			"a, image: x}]}", corev1.PodQOSGuaranteed},
		{"the pod's own request alone bursts", "{resources: {requests: {cpu: 1}}}", corev1.PodQOSBurstable},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			if got := QOSClass(podOf(t, row.spec)); got != row.want {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}

func TestIsExtended(t *testing.T) {
	for name, want := range map[corev1.ResourceName]bool{
		"cpu": false, "hugepages-2Mi": false, "kubernetes.io/x": false, "x.kubernetes.io/y": false,
		"example.com/gpu": true, "requests.example.com/gpu": false,
	} {
		if got := IsExtended(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
