package plan

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// size gives a container a memory request and limit of so many MiB.
func size(mib int64, policies ...corev1.ContainerResizePolicy) func(*corev1.Container) {
	return func(c *corev1.Container) {
		q := func() corev1.ResourceList {
			return corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(mib<<20, resource.BinarySI)}
		}
		c.Resources = corev1.ResourceRequirements{Requests: q(), Limits: q()}
		c.ResizePolicy = policies
	}
}

// given is the room's yes to what is wished now.
func (w *walk) given() *walk {
	w.in.Reserved, w.in.Resize = ResourcesOf(w.in.Pod), Resize{}
	return w
}

// TestResizePage is tasks/configure-pod-container/resize-container-resources and
// the part on resizing of concepts/workloads/pods.
func TestResizePage(t *testing.T) {
	t.Parallel()
	restart := corev1.ContainerResizePolicy{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer}
	other := corev1.ContainerResizePolicy{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.RestartContainer}
	wants := func(mib int64, p ...corev1.ContainerResizePolicy) *walk {
		return up(mains(con("app", size(64, p...)), con("b"))).edit(func(pod *corev1.Pod) {
			pod.Generation = 2
			mains(con("app", size(mib, p...)), con("b"))(pod)
		})
	}
	deferred := func(reason string) *walk {
		return wants(128).with(func(in *Input) { in.Resize = Resize{Reason: reason, Message: "full"} })
	}
	refused := &Error{Err: errors.New("below current usage")}
	check(t, []row{
		{"nothing changes before the room has what is desired", wants(128), "-", []string{"!PodResize"}},
		{"a resize that is possible, but not now, is Deferred", deferred("Deferred"), "-", []string{"PodResizePending=True/Deferred", "why    ResizeDeferred", "app    running since+0s started ready restarts=0"}},
		{"one that the node can never grant is Infeasible", deferred("Infeasible"), "-", []string{"PodResizePending=True/Infeasible"}},
		{"growing, the pod's cgroup comes first", wants(128).given(), "resize cgroup", []string{"PodResizeInProgress=True", "why    ResizeStarted"}},
		{"then the container, which goes on running", wants(128).given().begin().obey(), "resize app-0", []string{"app    running since+0s started ready restarts=0"}},
		{"then it is over", wants(128).given().begin().obey().begin().obey(), "-", []string{"!PodResizeInProgress", "why    ResizeCompleted"}},
		{"shrinking, the container comes first", wants(32).given(), "resize app-0", nil},
		{"then the pod's cgroup", wants(32).given().begin().obey(), "resize cgroup", []string{"PodResizeInProgress=True"}},
		{"a policy RestartContainer for the resource restarts the container", wants(32, restart).given(), "stop app-0 30s", []string{"Killing app \"Container app resize requires restart\""}},
		{"… whatever the pod's restart policy", wants(32, restart).edit(never).given().begin().obey(), "resize cgroup, start app#1", nil},
		{"… the new instance is made with what is allocated", wants(32, restart).given().begin().obey().begin().obey(), "-", []string{"!PodResizeInProgress", "ResizeCompleted"}},
		{"one for another resource does not", wants(32, other).given(), "resize app-0", nil},
		{"a change that fails is told and tried again", wants(32).given().fails("resize/app-0", refused), "-", []string{"PodResizeInProgress=True/Error", "app    running"}},
		{"… after a while", wants(32).given().fails("resize/app-0", refused).after(time.Second), "resize app-0", nil},
		{"taking it back ends it", wants(32).given().fails("resize/app-0", refused).edit(mains(con("app", size(64)), con("b"))).given().after(time.Second).begin().obey(), "-", []string{"!PodResizeInProgress"}},
		{"a container that is not running starts with the new size", wants(128).exit("app", 1).given(), "resize cgroup, start app#1", nil},
		{"an agent that died after the change looks no further", wants(128).given().begin().obey().begin().obey().begin().newAgent().with(func(in *Input) { in.Seen.Sized, in.Seen.Resized, in.Reserved = nil, nil, nil }), "-", []string{"!PodResizeInProgress"}},
		{"one that died in the middle makes the change again", wants(128).given().begin().obey().begin().newAgent().with(func(in *Input) { in.Seen.Sized, in.Seen.Resized, in.Reserved = nil, nil, nil }), "resize app-0", []string{"PodResizeInProgress=True"}},
		{"what was desired and not given before a restart is still not given", deferred("Deferred").begin().newAgent().with(func(in *Input) { in.Resize = Resize{} }), "-", []string{"!PodResizeInProgress"}},
		{"a pod that ends is not resized", wants(128).given().deleted(30 * time.Second), "stop b-0 30s, stop app-0 30s", []string{"!PodResize"}},
	})
	st := wants(128).decide().Status.ContainerStatuses[0]
	if a, r := st.AllocatedResources.Memory(), st.Resources.Limits.Memory(); a.String() != "64Mi" || r.String() != "64Mi" {
		t.Errorf("before it is given: allocated %s, actual %s", a, r)
	}
	st = wants(128).given().decide().Status.ContainerStatuses[0]
	if a, r := st.AllocatedResources.Memory(), st.Resources.Limits.Memory(); a.String() != "128Mi" || r.String() != "64Mi" {
		t.Errorf("while it is made: allocated %s, actual %s", a, r)
	}
}
