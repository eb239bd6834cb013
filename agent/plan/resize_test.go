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

// grantResize is the room's yes to what is wished now.
func (w *driver) grantResize() *driver {
	w.in.Reserved, w.in.Resize = ResourcesOf(w.in.Pod), ResizeStatus{}
	return w
}

// whole gives the pod itself a memory request and limit of so many MiB.
func whole(mib int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		var c corev1.Container
		size(mib)(&c)
		p.Spec.Resources = &c.Resources
	}
}

// TestResizePodResourcesPage is tasks/configure-pod-container/resize-pod-resources,
// and what concepts/workloads/pods/sidecar-containers says of resizing them.
func TestResizePodResourcesPage(t *testing.T) {
	t.Parallel()
	wants := func(was, is, app int64) *driver {
		return up(whole(was), mains(con("app", size(16)))).edit(func(pod *corev1.Pod) {
			pod.Generation = 2
			whole(is)(pod)
			mains(con("app", size(app)))(pod)
		})
	}
	carWants := func(mib int64) *driver {
		return up(inits(sidecar("car", size(64)))).edit(func(pod *corev1.Pod) {
			pod.Generation = 2
			inits(sidecar("car", size(mib)))(pod)
		})
	}
	refused := &Error{Err: errors.New("below current usage")}
	restarts := func(c *corev1.Container) {
		c.ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer}}
	}
	runCases(t, []testCase{
		{"nothing changes before the room has what is desired", wants(64, 128, 16), "-", []string{"!PodResize"}},
		{"what the pod as a whole has grows in its cgroup alone", wants(64, 128, 16).grantResize(), "resize cgroup", []string{"PodResizeInProgress=True", "app    running since+0s started ready restarts=0"}},
		{"… then it is over", wants(64, 128, 16).grantResize().begin().finish(), "-", []string{"!PodResizeInProgress", "why    ResizeCompleted"}},
		{"it shrinks likewise", wants(64, 32, 16).grantResize(), "resize cgroup", nil},
		{"with a container that grows the pod comes first", wants(64, 128, 32).grantResize(), "resize cgroup", nil},
		{"… then the container", wants(64, 128, 32).grantResize().begin().finish(), "resize app-0", nil},
		{"with one that shrinks the container comes first", wants(64, 32, 8).grantResize(), "resize app-0", nil},
		{"… then the pod", wants(64, 32, 8).grantResize().begin().finish(), "resize cgroup", nil},
		{"a limit below what is used is refused and told", wants(64, 32, 16).grantResize().fails("resize/cgroup", refused), "-", []string{"PodResizeInProgress=True/Error"}},
		{"… and tried again", wants(64, 32, 16).grantResize().fails("resize/cgroup", refused).after(time.Second), "resize cgroup", nil},
		{"… until it is taken back", wants(64, 32, 16).grantResize().fails("resize/cgroup", refused).edit(whole(64)).grantResize().after(time.Second).begin().finish(), "-", []string{"!PodResizeInProgress"}},
		{"a sidecar is resized as the others are", carWants(128).grantResize().begin().finish(), "resize car-0", nil},
		{"… and goes on running", carWants(128).grantResize().begin().finish().begin().finish(), "-", []string{"car    running since+0s started ready restarts=0", "ResizeCompleted"}},
	})
	inherits := func(was, is int64) *driver {
		return up(whole(was), mains(con("app"), con("b", size(8)))).edit(func(pod *corev1.Pod) {
			pod.Generation = 2
			whole(is)(pod)
		})
	}
	runCases(t, []testCase{
		{"a container without a limit of its own has the pod's, from the outside in", inherits(64, 128).grantResize(), "resize cgroup", nil},
		{"… then the container, which goes on running; one with its own stays", inherits(64, 128).grantResize().begin().finish(), "resize app-0", []string{"app    running since+0s started ready restarts=0"}},
		{"… then it is over", inherits(64, 128).grantResize().begin().finish().begin().finish(), "-", []string{"!PodResizeInProgress", "why    ResizeCompleted"}},
		{"a smaller one from the inside out", inherits(64, 32).grantResize(), "resize app-0", nil},
		{"… then the pod's cgroup", inherits(64, 32).grantResize().begin().finish(), "resize cgroup", nil},
		{"a container of a release that did not give it the pod's limit gets it", inherits(64, 64).input(func(in *Input) {
			s := &in.Memory.Resources
			s.Containers = withKey(s.Containers, "app", ActualResources{})
		}), "resize app-0", nil},
		{"the container's policy is not asked about the pod's limit", up(whole(64), mains(con("app", restarts), con("b"))).edit(whole(128)).grantResize().begin().finish(), "resize app-0, resize b-0", []string{"!Killing"}},
	})
	amounts := func(w *driver) string {
		st := w.decide().Status
		return st.AllocatedResources.Memory().String() + " " + st.Resources.Limits.Memory().String()
	}
	for _, c := range []struct {
		when string
		w    *driver
		want string
	}{
		{"before it is given", wants(64, 128, 16), "64Mi 64Mi"},
		{"while it is made", wants(64, 128, 16).grantResize(), "128Mi 64Mi"},
		{"when it was refused", wants(64, 32, 16).grantResize().fails("resize/cgroup", refused), "32Mi 64Mi"},
		{"after it was made", wants(64, 128, 16).grantResize().begin().finish(), "128Mi 128Mi"},
	} {
		if got := amounts(c.w); got != c.want {
			t.Errorf("%s: allocated and actual are %s, want %s", c.when, got, c.want)
		}
	}
}

// TestResizePage is tasks/configure-pod-container/resize-container-resources and
// the part on resizing of concepts/workloads/pods.
func TestResizePage(t *testing.T) {
	t.Parallel()
	restart := corev1.ContainerResizePolicy{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer}
	other := corev1.ContainerResizePolicy{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.RestartContainer}
	wants := func(mib int64, p ...corev1.ContainerResizePolicy) *driver {
		return up(mains(con("app", size(64, p...)), con("b"))).edit(func(pod *corev1.Pod) {
			pod.Generation = 2
			mains(con("app", size(mib, p...)), con("b"))(pod)
		})
	}
	sized := func(mib, milli int64, p ...corev1.ContainerResizePolicy) corev1.Container {
		c := con("app", size(mib, p...))
		c.Resources.Requests[corev1.ResourceCPU] = *resource.NewMilliQuantity(milli, resource.DecimalSI)
		return c
	}
	both := func(p ...corev1.ContainerResizePolicy) *driver {
		return up(mains(sized(64, 100, p...), con("b"))).edit(mains(sized(128, 200, p...), con("b"))).grantResize().begin().finish()
	}
	// again is a container that runs anew for the n-th resize of its memory.
	again := func(n int) *driver {
		w := up(mains(con("app", size(64, restart)), con("b")))
		for i := range n {
			w.edit(mains(con("app", size(int64(32-i), restart)), con("b"))).grantResize().settle().after(time.Minute)
		}
		return w
	}
	deferred := func(reason string) *driver {
		return wants(128).input(func(in *Input) { in.Resize = ResizeStatus{Reason: reason, Message: "full"} })
	}
	refused := &Error{Err: errors.New("below current usage")}
	runCases(t, []testCase{
		{"nothing changes before the room has what is desired", wants(128), "-", []string{"!PodResize"}},
		{"a resize that is possible, but not now, is Deferred", deferred("Deferred"), "-", []string{"PodResizePending=True/Deferred", "why    ResizeDeferred", "app    running since+0s started ready restarts=0"}},
		{"one that the node can never grant is Infeasible", deferred("Infeasible"), "-", []string{"PodResizePending=True/Infeasible"}},
		{"growing, the pod's cgroup comes first", wants(128).grantResize(), "resize cgroup", []string{"PodResizeInProgress=True", "why    ResizeStarted"}},
		{"then the container, which goes on running", wants(128).grantResize().begin().finish(), "resize app-0", []string{"app    running since+0s started ready restarts=0"}},
		{"then it is over", wants(128).grantResize().begin().finish().begin().finish(), "-", []string{"!PodResizeInProgress", "why    ResizeCompleted"}},
		{"shrinking, the container comes first", wants(32).grantResize(), "resize app-0", nil},
		{"then the pod's cgroup", wants(32).grantResize().begin().finish(), "resize cgroup", []string{"PodResizeInProgress=True"}},
		{"a policy RestartContainer for the resource restarts the container", wants(32, restart).grantResize(), "stop app-0 30s", []string{"Killing app \"Container app resize requires restart\""}},
		{"… whatever the pod's restart policy", wants(32, restart).edit(never).grantResize().begin().finish(), "resize cgroup, start app#1", nil},
		{"… the new instance is made with what is allocated", wants(32, restart).grantResize().begin().finish().begin().finish(), "-", []string{"!PodResizeInProgress", "ResizeCompleted"}},
		{"… that is no crash: the second is not held back", again(1).edit(mains(con("app", size(16, restart)), con("b"))).grantResize().begin().finish(), "resize cgroup, start app#2", []string{"!CrashLoopBackOff"}},
		{"… nor the third", again(2).edit(mains(con("app", size(16, restart)), con("b"))).grantResize().begin().finish(), "resize cgroup, start app#3", []string{"!CrashLoopBackOff"}},
		{"… and a crash after them is the first", again(3).exit("app", 1), "start app#4", nil},
		{"… one that was in a crash loop is in it still", again(1).crash("app").crash("app").edit(mains(con("app", size(16, restart)), con("b"))).grantResize().settle().exit("app", 1), "-", []string{"back-off 20s "}},
		{"one for another resource does not", wants(32, other).grantResize(), "resize app-0", nil},
		{"CPU and memory changed together restart it if memory's policy says so", both(corev1.ContainerResizePolicy{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.NotRequired}, restart), "stop app-0 30s", []string{"Killing app \"Container app resize requires restart\""}},
		{"… and CPU alone does not", both(corev1.ContainerResizePolicy{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.NotRequired}, restart).edit(func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Resources = sized(64, 200, restart).Resources
		}).grantResize(), "resize app-0", []string{"app    running since+0s started ready restarts=0"}},
		{"a change that fails is told and tried again", wants(32).grantResize().fails("resize/app-0", refused), "-", []string{"PodResizeInProgress=True/Error", "app    running"}},
		{"… after a while", wants(32).grantResize().fails("resize/app-0", refused).after(time.Second), "resize app-0", nil},
		{"taking it back ends it", wants(32).grantResize().fails("resize/app-0", refused).edit(mains(con("app", size(64)), con("b"))).grantResize().after(time.Second).begin().finish(), "-", []string{"!PodResizeInProgress"}},
		{"a container that is not running starts with the new size", wants(128).exit("app", 1).grantResize(), "resize cgroup, start app#1", nil},
		{"an agent that died after the change looks no further", wants(128).grantResize().begin().finish().begin().finish().begin().restartAgent().input(func(in *Input) {
			in.Observed.CgroupResources, in.Observed.ResizedContainers, in.Reserved = nil, nil, nil
		}), "-", []string{"!PodResizeInProgress"}},
		{"one that died in the middle makes the change again", wants(128).grantResize().begin().finish().begin().restartAgent().input(func(in *Input) {
			in.Observed.CgroupResources, in.Observed.ResizedContainers, in.Reserved = nil, nil, nil
		}), "resize app-0", []string{"PodResizeInProgress=True"}},
		{"what was desired and not given before a restart is still not given, and shown to wait", deferred("Deferred").begin().restartAgent().input(func(in *Input) { in.Resize = ResizeStatus{} }), "-", []string{"!PodResizeInProgress", "PodResizePending=True/Deferred"}},
		{"an init container that ends cannot be resized", up(inits(con("one", size(64)))).edit(inits(con("one", size(128)))).grantResize(), "-", []string{"!PodResize"}},
		{"a pod that ends is not resized", wants(128).grantResize().deleted(30 * time.Second), "stop b-0 30s, stop app-0 30s", []string{"!PodResize"}},
	})
	edited := func(c corev1.Container) *driver {
		return up(mains(con("app", size(64)), con("b"))).edit(func(pod *corev1.Pod) {
			pod.Generation = 2
			pod.Spec.Containers[1] = c
		})
	}
	infeasible := func(w *driver) *driver {
		return w.input(func(in *Input) { in.Resize = ResizeStatus{Reason: "Infeasible", Message: "full"} })
	}
	adds := func() *driver { return edited(con("b", size(128))) }
	limit := func(c *corev1.Container) { size(32)(c); c.Resources.Requests = nil }
	removes := func() *driver { return wants(64).edit(mains(con("app"), con("b"))) }
	runCases(t, []testCase{
		{"what a container had not is added when the room has it, not before", adds(), "-", []string{"!PodResize"}},
		{"… it is shown to wait", infeasible(adds()), "-", []string{"PodResizePending=True/Infeasible", "why    ResizeInfeasible"}},
		{"… also after a restart of the agent", infeasible(adds()).begin().restartAgent().input(func(in *Input) { in.Reserved = nil }), "-", []string{"PodResizePending=True/Infeasible"}},
		{"what is added takes effect from the inside out if it is a limit", edited(con("b", limit)).grantResize(), "resize b-0", []string{"PodResizeInProgress=True"}},
		{"… then the pod's cgroup is limited", edited(con("b", limit)).grantResize().begin().finish(), "resize cgroup", nil},
		{"a request is added from the outside in", adds().grantResize(), "resize cgroup", []string{"PodResizeInProgress=True"}},
		{"… then the container, which goes on running", adds().grantResize().begin().finish(), "resize b-0", []string{"b      running since+0s started ready restarts=0"}},
		{"… then the limits of the pod", adds().grantResize().begin().finish().begin().finish(), "resize cgroup", nil},
		{"… then it is over", adds().grantResize().begin().finish().begin().finish().begin().finish(), "-", []string{"!PodResizeInProgress", "why    ResizeCompleted"}},
		{"a record of a release that did not note containers without amounts", adds().input(func(in *Input) { in.Memory.Resources.Containers = nil }).grantResize().begin().finish(), "resize b-0", nil},
		{"what is taken away is kept until somebody grants it", infeasible(removes()), "-", []string{"PodResizePending=True/Infeasible", "app    running since+0s started ready restarts=0"}},
		{"… and taken away if somebody does", removes().grantResize(), "resize cgroup", nil},
		{"a pod's own amounts that are taken away are kept", infeasible(up(whole(64)).edit(func(p *corev1.Pod) { p.Spec.Resources = nil })), "-", []string{"PodResizePending=True/Infeasible"}},
		{"… and those that are added wait", infeasible(up().edit(whole(64))), "-", []string{"PodResizePending=True/Infeasible"}},
	})
	for _, w := range []*driver{adds(), infeasible(adds()), edited(con("b", limit))} {
		if st := w.decide().Status.ContainerStatuses[1]; len(st.AllocatedResources)+len(st.Resources.Requests)+len(st.Resources.Limits) > 0 {
			t.Errorf("what was not given is shown: %+v", st)
		}
	}
	st := adds().grantResize().decide().Status.ContainerStatuses[1]
	if len(st.AllocatedResources) != 1 || len(st.Resources.Requests)+len(st.Resources.Limits) > 0 {
		t.Errorf("while an addition is made: %+v", st)
	}
	st = infeasible(removes()).decide().Status.ContainerStatuses[0]
	if a, r := st.AllocatedResources.Memory(), st.Resources.Limits.Memory(); a.String() != "64Mi" || r.String() != "64Mi" {
		t.Errorf("what is taken away unasked: allocated %s, actual %s", a, r)
	}
	st = wants(128).decide().Status.ContainerStatuses[0]
	if a, r := st.AllocatedResources.Memory(), st.Resources.Limits.Memory(); a.String() != "64Mi" || r.String() != "64Mi" {
		t.Errorf("before it is given: allocated %s, actual %s", a, r)
	}
	st = wants(128).grantResize().decide().Status.ContainerStatuses[0]
	if a, r := st.AllocatedResources.Memory(), st.Resources.Limits.Memory(); a.String() != "128Mi" || r.String() != "64Mi" {
		t.Errorf("while it is made: allocated %s, actual %s", a, r)
	}
}

// TestObservedGenerationFollowsResizeDecision: who waits for the generation of a resize finds
// what became of it.
func TestObservedGenerationFollowsResizeDecision(t *testing.T) {
	t.Parallel()
	second := func() *driver {
		w := up(mains(con("app", size(64)))).edit(func(pod *corev1.Pod) { pod.Generation = 1 })
		w.begin()
		return w.edit(func(pod *corev1.Pod) {
			pod.Generation = 2
			mains(con("app", size(128)))(pod)
		})
	}
	full := func(in *Input) { in.Resize = ResizeStatus{Reason: "Deferred", Message: "full"} }
	for name, c := range map[string]struct {
		walk *driver
		want int64
	}{
		"the room has not answered": {second(), 1},
		"it has the room":           {second().grantResize(), 2},
		"it has not":                {second().input(full), 2},
		"nothing else is held back": {second().edit(mains(con("app", size(64)))), 2},
		"the pod is deleted":        {second().deleted(30 * time.Second), 2},
		"before any status":         {fresh(mains(con("app", size(64)))).edit(func(pod *corev1.Pod) { pod.Generation = 2 }), 2},
	} {
		st := c.walk.decide().Status
		if st.ObservedGeneration != c.want {
			t.Errorf("%s: generation %d is observed, want %d", name, st.ObservedGeneration, c.want)
		}
		for _, cond := range st.Conditions {
			if cond.ObservedGeneration != c.want {
				t.Errorf("%s: condition %s observes generation %d, want %d", name, cond.Type, cond.ObservedGeneration, c.want)
			}
		}
	}
}

// TestResizeInProgressGeneration: what is desired after that waits
// for an answer of its own.
func TestResizeInProgressGeneration(t *testing.T) {
	t.Parallel()
	w := up(mains(con("app", size(64)))).edit(func(pod *corev1.Pod) { pod.Generation = 1 })
	to := func(generation, mib int64) {
		w.edit(func(pod *corev1.Pod) {
			pod.Generation = generation
			mains(con("app", size(mib)))(pod)
		})
	}
	observed := func(when string, generation, progress, pending int64) {
		t.Helper()
		for _, c := range w.decide().Status.Conditions {
			want := generation
			switch c.Type {
			case corev1.PodResizeInProgress:
				want, progress = progress, 0
			case corev1.PodResizePending:
				want, pending = pending, 0
			}
			if c.ObservedGeneration != want {
				t.Errorf("%s: %s observes generation %d, want %d", when, c.Type, c.ObservedGeneration, want)
			}
		}
		if progress+pending != 0 {
			t.Errorf("%s: a condition is missing", when)
		}
	}
	w.begin()
	to(2, 128)
	w.grantResize()
	observed("begun", 2, 2, 0)
	w.begin()
	to(3, 1<<20)
	w.input(func(in *Input) { in.Resize = ResizeStatus{Reason: "Infeasible", Message: "full"} })
	observed("another that can never be", 3, 2, 3)
	w.begin()
	to(4, 256)
	w.grantResize()
	observed("another that can", 4, 4, 0)
}

// TestCgroupResizedAfterCreationInProgress: it is made for what was allocated when that
// began, or nobody knows for what.
func TestCgroupResizedAfterCreationInProgress(t *testing.T) {
	t.Parallel()
	making := func() *driver {
		return fresh(mains(con("app", size(64)))).begin().edit(mains(con("app", size(128)))).grantResize().begin()
	}
	for name, w := range map[string]*driver{
		"made":                   making().ends("make/cgroup", nil),
		"made, and nobody heard": making().ends("make/cgroup", &Error{Kind: Timeout, Err: errors.New("late")}).input(func(in *Input) { in.Observed.HasCgroup = true }),
	} {
		if w.settle(); !w.in.Observed.CgroupResources.Equal(ResourcesOf(w.in.Pod)) || w.in.Observed.CgroupUncertain {
			t.Errorf("%s: at rest the cgroup has %v", name, w.in.Observed.CgroupResources)
		}
	}
}

// TestResizeForbidden is what no room makes good.
func TestResizeForbidden(t *testing.T) {
	t.Parallel()
	pod := func(c corev1.Container) *corev1.Pod { return fresh(mains(c)).in.Pod }
	request := func(c *corev1.Container) { size(64)(c); c.Resources.Limits = nil }
	for _, c := range []struct {
		was, is *corev1.Pod
		want    string
	}{
		{pod(con("app", size(64))), pod(con("app", size(32))), ""},
		{pod(con("app", request)), pod(con("app", size(64))), ""},
		{pod(con("app", size(64))), pod(con("app", request)), "container app: resource limits cannot be removed (memory)"},
		{pod(con("app", size(64))), pod(con("app")), "container app: resource limits cannot be removed (memory)"},
		{pod(con("app")), pod(con("app", size(64))), "Pod QOS Class may not change as a result of resizing"},
		{fresh(whole(64)).in.Pod, fresh().in.Pod, "pod: resource limits cannot be removed (memory)"},
	} {
		if got := ResizeForbidden(c.was, c.is); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
