package podspec

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podresources "k8s.io/component-helpers/resource"
)

// TestRequestsAndLimitsWithStatus has one state of a resize per row.
func TestRequestsAndLimitsWithStatus(t *testing.T) {
	cpu := func(text string) corev1.ResourceList {
		if text == "" {
			return nil
		}
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(text)}
	}
	const two = "containers: [{name: a, image: x, resources: {requests: {cpu: 2, ephemeral-storage: 1Gi}, limits: " +
		"{cpu: 3}}}, {name: b, image: x, resources: {requests: {cpu: 100m}}}]"
	const whole = "{resources: {requests: {cpu: 2}, limits: {cpu: 3}}, containers: [{name: a, image: x, resources: " +
		"{requests: {cpu: 1}}}]}"
	for _, row := range []struct {
		sentence, spec           string
		allocated, actual, bound string // of container a, or of the pod if whole
		pending                  string
		behind                   int64
		requests, limit          string
	}{
		{"without a status, the desired resources count", two, "", "", "", "", 0, "2100m", "3"},
		{"without a resize, the desired resources count", two, "2", "2", "3", "", 0, "2100m", "3"},
		{"a deferred increase counts", two, "1", "1", "2", corev1.PodReasonDeferred, 0, "2100m", "3"},
		{"an infeasible increase does not count", two, "1", "1", "2", corev1.PodReasonInfeasible, 0, "1100m", "2"},
		{"an infeasible condition of an earlier generation is ignored", two, "1", "1", "2", corev1.PodReasonInfeasible,
			1, "2100m", "3"},
		{"a decrease counts after it is actuated", two, "2", "4", "5", "", 0, "4100m", "5"},
		{"allocated resources count", two, "5", "4", "5", "", 0, "5100m", "5"},
		{"an infeasible decrease does not count", two, "4", "4", "5", corev1.PodReasonInfeasible, 0, "4100m", "5"},
		{"an infeasible increase at pod level does not count", whole, "1", "1", "2", corev1.PodReasonInfeasible, 0, "1",
			"2"},
		{"a decrease at pod level counts after it is actuated", whole, "2", "4", "5", "", 0, "4", "5"},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			pod := podOf(t, row.spec)
			pod.Generation = 5
			actual := &corev1.ResourceRequirements{Requests: cpu(row.actual), Limits: cpu(row.bound)}
			switch st := &pod.Status; {
			case row.actual == "":
			case pod.Spec.Resources != nil:
				st.AllocatedResources, st.Resources = cpu(row.allocated), actual
			default:
				st.ContainerStatuses = []corev1.ContainerStatus{
					{Name: "a", AllocatedResources: cpu(row.allocated), Resources: actual},
				}
			}
			if row.pending != "" {
				pod.Status.Conditions = []corev1.PodCondition{
					{
						Type:               corev1.PodResizePending,
						Status:             corev1.ConditionTrue,
						Reason:             row.pending,
						ObservedGeneration: 5 - row.behind,
					},
				}
			}
			before := pod.DeepCopy()
			requests, limits := RequestsWithStatus(pod), LimitsWithStatus(pod)
			if got := requests.Cpu().String(); got != row.requests {
				t.Errorf("requests %s, want %s", got, row.requests)
			}
			if got := limits.Cpu().String(); got != row.limit {
				t.Errorf("limits %s, want %s", got, row.limit)
			}
			if _, disk := requests[corev1.ResourceEphemeralStorage]; disk != (row.spec == two) {
				t.Errorf("resources that cannot be resized: %v", requests)
			}
			if diff := cmp.Diff(before, pod); diff != "" {
				t.Errorf("the pod was changed:\n%s", diff)
			}
		})
	}
}

// TestWithStatusMatchesComponentHelpers compares with upstream's computation for pods whose
// containers all have a status and are resized in the same direction. Package documentation lists
// the cases in which the results differ.
func TestWithStatusMatchesComponentHelpers(t *testing.T) {
	t.Parallel()
	list := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse(cpu),
			corev1.ResourceMemory: resource.MustParse(memory),
		}
	}
	status := func(name, cpu, memory string) corev1.ContainerStatus {
		actual := &corev1.ResourceRequirements{Requests: list(cpu, memory), Limits: list(cpu, memory)}
		return corev1.ContainerStatus{Name: name, AllocatedResources: list(cpu, memory), Resources: actual}
	}
	const containers = "containers: [{name: a, image: x, resources: {limits: {cpu: 2, memory: 2Gi}}}," +
		" {name: b, image: x, resources: {limits: {cpu: 1, memory: 1Gi}}}]"
	const initContainers = "initContainers: [{name: s, image: x, restartPolicy: Always, resources: {limits: {cpu: 3, " +
		"memory: 3Gi}}}," +
		" {name: i, image: x, resources: {limits: {cpu: 4, memory: 100Mi}}}]"
	for _, row := range []struct {
		sentence, spec string
		statuses       []corev1.ContainerStatus
		initStatuses   []corev1.ContainerStatus
		pending        string
	}{
		{sentence: "no status", spec: "{" + containers + "}"},
		{
			sentence: "no resize", spec: "{" + containers + "}",
			statuses: []corev1.ContainerStatus{status("a", "2", "2Gi"), status("b", "1", "1Gi")},
		},
		{
			sentence: "a container grows", spec: "{" + containers + "}",
			statuses: []corev1.ContainerStatus{status("a", "1", "1Gi"), status("b", "1", "1Gi")},
			pending:  corev1.PodReasonDeferred,
		},
		{
			sentence: "a container shrinks", spec: "{overhead: {cpu: 100m}, " + containers + "}",
			statuses: []corev1.ContainerStatus{status("a", "5", "3Gi"), status("b", "1", "1Gi")},
		},
		{
			sentence: "a resize is infeasible", spec: "{" + containers + "}",
			statuses: []corev1.ContainerStatus{status("a", "1", "1Gi"), status("b", "500m", "1Gi")},
			pending:  corev1.PodReasonInfeasible,
		},
		{
			sentence: "a sidecar shrinks", spec: "{" + initContainers + ", " + containers + "}",
			statuses:     []corev1.ContainerStatus{status("a", "2", "2Gi"), status("b", "1", "1Gi")},
			initStatuses: []corev1.ContainerStatus{status("s", "6", "4Gi"), status("i", "4", "100Mi")},
		},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			pod := podOf(t, row.spec)
			pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses = row.statuses, row.initStatuses
			if row.pending != "" {
				pod.Status.Conditions = []corev1.PodCondition{
					{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: row.pending},
				}
			}
			o := podresources.PodResourcesOptions{
				UseStatusResources: true,
				InPlacePodLevelResourcesVerticalScalingEnabled: true,
			}
			if diff := cmp.Diff(amounts(podresources.PodRequests(pod, o)),
				amounts(RequestsWithStatus(pod))); diff != "" {
				t.Errorf("requests, want (-) got (+):\n%s", diff)
			}
			if diff := cmp.Diff(amounts(podresources.PodLimits(pod, o)), amounts(LimitsWithStatus(pod))); diff != "" {
				t.Errorf("limits, want (-) got (+):\n%s", diff)
			}
		})
	}
}
