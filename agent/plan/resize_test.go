package plan

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// size sets the memory request and limit of a container in MiB.
func size(mib int64, policies ...corev1.ContainerResizePolicy) func(*corev1.Container) {
	return func(c *corev1.Container) {
		q := func() corev1.ResourceList {
			return corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(mib<<20, resource.BinarySI)}
		}
		c.Resources = corev1.ResourceRequirements{Requests: q(), Limits: q()}
		c.ResizePolicy = policies
	}
}

// grantResize reserves the desired resources.
func (w *driver) grantResize() *driver {
	w.in.Reserved, w.in.Resize = ResourcesOf(w.in.Pod), ResizeStatus{}
	return w
}

// whole sets the memory request and limit of the pod in MiB.
func whole(mib int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		var c corev1.Container
		size(mib)(&c)
		p.Spec.Resources = &c.Resources
	}
}

// TestResizePodResourcesPage covers tasks/configure-pod-container/resize-pod-resources and the
// statements on resizing in concepts/workloads/pods/sidecar-containers.
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
		c.ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceMemory,
			RestartPolicy: corev1.RestartContainer}}
	}
	runCases(t, []testCase{
		{"nothing changes before the resources are reserved", wants(64, 128, 16), "-", []string{"!PodResize"}},
		{"pod-level resources grow in the cgroup only", wants(64, 128, 16).grantResize(), "resize cgroup",
			[]string{"PodResizeInProgress=True", "app    running since+0s started ready restarts=0"}},
		{"… then the resize is completed", wants(64, 128, 16).grantResize().begin().finish(), "-",
			[]string{"!PodResizeInProgress", "why    ResizeCompleted"}},
		{"pod-level resources shrink in the cgroup only", wants(64, 32, 16).grantResize(), "resize cgroup", nil},
		{"the pod grows before its container", wants(64, 128, 32).grantResize(), "resize cgroup", nil},
		{"… then the container", wants(64, 128, 32).grantResize().begin().finish(), "resize app-0", nil},
		{"the container shrinks before the pod", wants(64, 32, 8).grantResize(), "resize app-0", nil},
		{"… then the pod", wants(64, 32, 8).grantResize().begin().finish(), "resize cgroup", nil},
		{"a limit below the usage is refused and reported", wants(64, 32, 16).grantResize().fails("resize/cgroup",
			refused),
			"-", []string{"PodResizeInProgress=True/Error"}},
		{"… and retried", wants(64, 32, 16).grantResize().fails("resize/cgroup", refused).after(time.Second),
			"resize cgroup", nil},
		{"… until it is reverted",
			wants(64, 32, 16).grantResize().fails("resize/cgroup",
				refused).edit(whole(64)).grantResize().after(time.Second).begin().finish(), "-",
			[]string{"!PodResizeInProgress"}},
		{"a sidecar is resized like an app container", carWants(128).grantResize().begin().finish(), "resize car-0",
			nil},
		{"… and continues to run", carWants(128).grantResize().begin().finish().begin().finish(), "-",
			[]string{"car    running since+0s started ready restarts=0", "ResizeCompleted"}},
	})
	inherits := func(was, is int64) *driver {
		return up(whole(was), mains(con("app"), con("b", size(8)))).edit(func(pod *corev1.Pod) {
			pod.Generation = 2
			whole(is)(pod)
		})
	}
	runCases(t, []testCase{
		{"a container without a limit inherits the pod's, which grows first", inherits(64, 128).grantResize(),
			"resize cgroup", nil},
		{"… then the container, which continues to run", inherits(64, 128).grantResize().begin().finish(),
			"resize app-0",
			[]string{"app    running since+0s started ready restarts=0"}},
		{"… then the resize is completed", inherits(64, 128).grantResize().begin().finish().begin().finish(), "-",
			[]string{"!PodResizeInProgress", "why    ResizeCompleted"}},
		{"a smaller pod limit applies to the container first", inherits(64, 32).grantResize(), "resize app-0", nil},
		{"… then to the pod cgroup", inherits(64, 32).grantResize().begin().finish(), "resize cgroup", nil},
		{"a container from a release without inherited limits gets the pod's limit",
			inherits(64, 64).input(func(in *Input) {
				s := &in.Memory.Resources
				s.Containers = withKey(s.Containers, "app", ActualResources{})
			}), "resize app-0", nil},
		{"the container's resize policy does not apply to the pod's limit", up(whole(64), mains(con("app", restarts),
			con("b"))).edit(whole(128)).grantResize().begin().finish(), "resize app-0, resize b-0",
			[]string{"!Killing"}},
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
		{"before the reservation", wants(64, 128, 16), "64Mi 64Mi"},
		{"while it is applied", wants(64, 128, 16).grantResize(), "128Mi 64Mi"},
		{"after a refusal", wants(64, 32, 16).grantResize().fails("resize/cgroup", refused), "32Mi 64Mi"},
		{"after it was applied", wants(64, 128, 16).grantResize().begin().finish(), "128Mi 128Mi"},
	} {
		if got := amounts(c.w); got != c.want {
			t.Errorf("%s: allocated and actual are %s, want %s", c.when, got, c.want)
		}
	}
}

// TestResizePage covers tasks/configure-pod-container/resize-container-resources and the section on
// resizing in concepts/workloads/pods.
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
		return up(mains(sized(64, 100, p...), con("b"))).edit(mains(sized(128, 200, p...),
			con("b"))).grantResize().begin().finish()
	}
	// again is a container that was restarted for n resizes of its memory.
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
		{"nothing changes before the resources are reserved", wants(128), "-", []string{"!PodResize"}},
		{"a resize that does not fit now is Deferred", deferred("Deferred"), "-",
			[]string{"PodResizePending=True/Deferred",
				"why    ResizeDeferred", "app    running since+0s started ready restarts=0"}},
		{"a resize that never fits is Infeasible", deferred("Infeasible"), "-",
			[]string{"PodResizePending=True/Infeasible"}},
		{"the pod cgroup grows first", wants(128).grantResize(), "resize cgroup",
			[]string{"PodResizeInProgress=True", "why    ResizeStarted"}},
		{"… then the container, which continues to run", wants(128).grantResize().begin().finish(), "resize app-0",
			[]string{"app    running since+0s started ready restarts=0"}},
		{"… then the resize is completed", wants(128).grantResize().begin().finish().begin().finish(), "-",
			[]string{"!PodResizeInProgress", "why    ResizeCompleted"}},
		{"the container shrinks first", wants(32).grantResize(), "resize app-0", nil},
		{"… then the pod cgroup", wants(32).grantResize().begin().finish(), "resize cgroup",
			[]string{"PodResizeInProgress=True"}},
		{"a policy RestartContainer for the resource restarts the container", wants(32, restart).grantResize(),
			"stop app-0 30s", []string{"Killing app \"Container app resize requires restart\""}},
		{"… regardless of the pod's restart policy", wants(32, restart).edit(never).grantResize().begin().finish(),
			"resize cgroup, start app#1", nil},
		{"… and the new instance has the allocated resources",
			wants(32, restart).grantResize().begin().finish().begin().finish(), "-",
			[]string{"!PodResizeInProgress", "ResizeCompleted"}},
		{"… without back-off for the second resize", again(1).edit(mains(con("app", size(16, restart)),
			con("b"))).grantResize().begin().finish(), "resize cgroup, start app#2", []string{"!CrashLoopBackOff"}},
		{"… or the third", again(2).edit(mains(con("app", size(16, restart)), con("b"))).grantResize().begin().finish(),
			"resize cgroup, start app#3", []string{"!CrashLoopBackOff"}},
		{"… and a crash after them is the first", again(3).exit("app", 1), "start app#4", nil},
		{"… but a previous crash loop continues", again(1).crash("app").crash("app").edit(mains(con("app",
			size(16, restart)), con("b"))).grantResize().settle().exit("app", 1), "-", []string{"back-off 20s "}},
		{"a policy for another resource does not restart it", wants(32, other).grantResize(), "resize app-0", nil},
		{"a change of CPU and memory restarts it if the policy of memory requires it",
			both(corev1.ContainerResizePolicy{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.NotRequired},
				restart),
			"stop app-0 30s", []string{"Killing app \"Container app resize requires restart\""}},
		{"… and CPU alone does not", both(corev1.ContainerResizePolicy{ResourceName: corev1.ResourceCPU,
			RestartPolicy: corev1.NotRequired}, restart).edit(func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Resources = sized(64, 200, restart).Resources
		}).grantResize(), "resize app-0", []string{"app    running since+0s started ready restarts=0"}},
		{"a failed change is reported", wants(32).grantResize().fails("resize/app-0", refused), "-",
			[]string{"PodResizeInProgress=True/Error", "app    running"}},
		{"… and retried later", wants(32).grantResize().fails("resize/app-0", refused).after(time.Second),
			"resize app-0",
			nil},
		{"reverting the change completes the resize",
			wants(32).grantResize().fails("resize/app-0", refused).edit(mains(con("app", size(64)),
				con("b"))).grantResize().after(time.Second).begin().finish(), "-", []string{"!PodResizeInProgress"}},
		{"a stopped container starts with the new resources", wants(128).exit("app", 1).grantResize(),
			"resize cgroup, start app#1", nil},
		{"an agent restarted after the change does nothing",
			wants(128).grantResize().begin().finish().begin().finish().begin().restartAgent().input(func(in *Input) {
				in.Observed.CgroupResources, in.Observed.ResizedContainers, in.Reserved = nil, nil, nil
			}), "-", []string{"!PodResizeInProgress"}},
		{"an agent restarted during the change repeats it",
			wants(128).grantResize().begin().finish().begin().restartAgent().input(func(in *Input) {
				in.Observed.CgroupResources, in.Observed.ResizedContainers, in.Reserved = nil, nil, nil
			}), "resize app-0", []string{"PodResizeInProgress=True"}},
		{"a pending resize is still pending after a restart of the agent",
			deferred("Deferred").begin().restartAgent().input(func(in *Input) { in.Resize = ResizeStatus{} }), "-",
			[]string{"!PodResizeInProgress", "PodResizePending=True/Deferred"}},
		{"an init container cannot be resized",
			up(inits(con("one", size(64)))).edit(inits(con("one", size(128)))).grantResize(), "-",
			[]string{"!PodResize"}},
		{"a terminating pod is not resized", wants(128).grantResize().deleted(30 * time.Second),
			"stop b-0 30s, stop app-0 30s", []string{"!PodResize"}},
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
		{"added resources are not applied before they are reserved", adds(), "-", []string{"!PodResize"}},
		{"… and the resize is pending", infeasible(adds()), "-",
			[]string{"PodResizePending=True/Infeasible", "why    ResizeInfeasible"}},
		{"… also after a restart of the agent",
			infeasible(adds()).begin().restartAgent().input(func(in *Input) { in.Reserved = nil }), "-",
			[]string{"PodResizePending=True/Infeasible"}},
		{"an added limit is applied to the container first", edited(con("b", limit)).grantResize(), "resize b-0",
			[]string{"PodResizeInProgress=True"}},
		{"… then to the pod cgroup", edited(con("b", limit)).grantResize().begin().finish(), "resize cgroup", nil},
		{"an added request is applied to the pod cgroup first", adds().grantResize(), "resize cgroup",
			[]string{"PodResizeInProgress=True"}},
		{"… then to the container, which continues to run", adds().grantResize().begin().finish(), "resize b-0",
			[]string{"b      running since+0s started ready restarts=0"}},
		{"… then the limits of the pod are set", adds().grantResize().begin().finish().begin().finish(),
			"resize cgroup",
			nil},
		{"… then the resize is completed", adds().grantResize().begin().finish().begin().finish().begin().finish(), "-",
			[]string{"!PodResizeInProgress", "why    ResizeCompleted"}},
		{"a record of a release that did not record containers without resources",
			adds().input(func(in *Input) {
				in.Memory.Resources.Containers = nil
			}).grantResize().begin().finish(), "resize b-0",
			nil},
		{"removed resources remain until the removal is granted", infeasible(removes()), "-",
			[]string{"PodResizePending=True/Infeasible", "app    running since+0s started ready restarts=0"}},
		{"… and are then removed", removes().grantResize(), "resize cgroup", nil},
		{"removed pod-level resources remain",
			infeasible(up(whole(64)).edit(func(p *corev1.Pod) { p.Spec.Resources = nil })), "-",
			[]string{"PodResizePending=True/Infeasible"}},
		{"… and added ones are pending", infeasible(up().edit(whole(64))), "-",
			[]string{"PodResizePending=True/Infeasible"}},
	})
	for _, w := range []*driver{adds(), infeasible(adds()), edited(con("b", limit))} {
		st := w.decide().Status.ContainerStatuses[1]
		if len(st.AllocatedResources)+len(st.Resources.Requests)+len(st.Resources.Limits) > 0 {
			t.Errorf("status contains resources that were not granted: %+v", st)
		}
	}
	st := adds().grantResize().decide().Status.ContainerStatuses[1]
	if len(st.AllocatedResources) != 1 || len(st.Resources.Requests)+len(st.Resources.Limits) > 0 {
		t.Errorf("while the addition is applied: %+v", st)
	}
	st = infeasible(removes()).decide().Status.ContainerStatuses[0]
	if a, r := st.AllocatedResources.Memory(), st.Resources.Limits.Memory(); a.String() != "64Mi" ||
		r.String() != "64Mi" {
		t.Errorf("removal that was not granted: allocated %s, actual %s", a, r)
	}
	st = wants(128).decide().Status.ContainerStatuses[0]
	if a, r := st.AllocatedResources.Memory(), st.Resources.Limits.Memory(); a.String() != "64Mi" ||
		r.String() != "64Mi" {
		t.Errorf("before it is granted: allocated %s, actual %s", a, r)
	}
	st = wants(128).grantResize().decide().Status.ContainerStatuses[0]
	if a, r := st.AllocatedResources.Memory(), st.Resources.Limits.Memory(); a.String() != "128Mi" ||
		r.String() != "64Mi" {
		t.Errorf("while it is applied: allocated %s, actual %s", a, r)
	}
}

// TestObservedGenerationFollowsResizeDecision checks that a client that waits for the generation of
// a resize observes the decision.
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
		"not decided":                {second(), 1},
		"granted":                    {second().grantResize(), 2},
		"refused":                    {second().input(full), 2},
		"other changes are observed": {second().edit(mains(con("app", size(64)))), 2},
		"the pod is deleted":         {second().deleted(30 * time.Second), 2},
		"before any status": {fresh(mains(con("app", size(64)))).edit(func(pod *corev1.Pod) { pod.Generation = 2 }),
			2},
	} {
		st := c.walk.decide().Status
		if st.ObservedGeneration != c.want {
			t.Errorf("%s: generation %d observed, want %d", name, st.ObservedGeneration, c.want)
		}
		for _, cond := range st.Conditions {
			if cond.ObservedGeneration != c.want {
				t.Errorf("%s: condition %s observes generation %d, want %d", name, cond.Type, cond.ObservedGeneration,
					c.want)
			}
		}
	}
}

// TestResizeInProgressGeneration checks the generation of the conditions while a second resize is
// pending.
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
	observed("started", 2, 2, 0)
	w.begin()
	to(3, 1<<20)
	w.input(func(in *Input) { in.Resize = ResizeStatus{Reason: "Infeasible", Message: "full"} })
	observed("another that can never be", 3, 2, 3)
	w.begin()
	to(4, 256)
	w.grantResize()
	observed("another that can", 4, 4, 0)
}

// TestCgroupResizedAfterCreationInProgress checks that a cgroup whose creation was in progress
// during a resize gets the new resources.
func TestCgroupResizedAfterCreationInProgress(t *testing.T) {
	t.Parallel()
	making := func() *driver {
		return fresh(mains(con("app", size(64)))).begin().edit(mains(con("app", size(128)))).grantResize().begin()
	}
	for name, w := range map[string]*driver{
		"made": making().ends("make/cgroup", nil),
		"created, outcome unknown": making().ends("make/cgroup",
			&Error{Kind: Timeout, Err: errors.New("late")}).input(func(in *Input) { in.Observed.HasCgroup = true }),
	} {
		if w.settle(); !w.in.Observed.CgroupResources.Equal(ResourcesOf(w.in.Pod)) || w.in.Observed.CgroupUncertain {
			t.Errorf("%s: when idle the cgroup has %v", name, w.in.Observed.CgroupResources)
		}
	}
}

// TestResizeForbidden checks resizes that are impossible regardless of the node.
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
		{pod(con("app", size(64))), pod(con("app", request)),
			"container app: resource limits cannot be removed (memory)"},
		{pod(con("app", size(64))), pod(con("app")), "container app: resource limits cannot be removed (memory)"},
		{pod(con("app")), pod(con("app", size(64))), "Pod QOS Class may not change as a result of resizing"},
		{fresh(whole(64)).in.Pod, fresh().in.Pod, "pod: resource limits cannot be removed (memory)"},
	} {
		if got := ResizeForbidden(c.was, c.is); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
