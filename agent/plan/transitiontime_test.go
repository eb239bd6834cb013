package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// slowPod settles a pod on a node where each action takes effect immediately and finishes 1.5 s
// later.
func slowPod(opts ...func(*corev1.Pod)) *driver {
	w := fresh(opts...)
	for range 100 {
		if w.begin(); len(w.in.InProgress) == 0 {
			return w
		}
		w.finish().after(1500 * time.Millisecond)
	}
	panic("not idle: " + w.text())
}

// forgetMemory is an agent that lost its memory and observes the same pod a minute later.
func (w *driver) forgetMemory() *driver {
	w.in.Memory, w.in.InProgress, w.in.Failures = Memory{}, map[ActionKey]Action{}, map[ActionKey]Failure{}
	return w.after(time.Minute)
}

// TestTransitionTimesWithoutMemory checks that an agent without memory reports the same transition
// times as before, as far as the runtime knows them.
func TestTransitionTimesWithoutMemory(t *testing.T) {
	t.Parallel()
	rich := func(p *corev1.Pod) {
		inits(con("first"), sidecar("side"))(p)
		mains(con("app"), con("b"))(p)
	}
	for name, w := range map[string]*driver{
		"a running pod":              slowPod(),
		"a pod with init containers": slowPod(rich),
		"a pod with a restarted container": slowPod().after(time.Hour).exit("app",
			1).after(time.Second).settle().after(time.Minute).settle(),
		"a pod with an exited container": slowPod(never, mains(con("app"), con("b"))).after(time.Hour).exit("app",
			3).after(3 * time.Second).settle(),
		"a succeeded pod": slowPod(never).after(time.Hour).exit("app", 0).after(3 * time.Second).settle(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := w.decide().Status
			after := w.forgetMemory().decide().Status
			for i, was := range before.Conditions {
				is := after.Conditions[i]
				if was.Type == corev1.PodReadyToStartContainers && was.Status == corev1.ConditionFalse {
					continue // the runtime does not know when a sandbox was stopped
				}
				if is.Type != was.Type || is.Status != was.Status {
					t.Fatalf("%s is %s, was %s %s", is.Type, is.Status, was.Type, was.Status)
				}
				// The start time is then that of the sandbox, which is two steps later here.
				slack := time.Duration(0)
				if is.Type == corev1.PodScheduled || is.Type == corev1.PodInitialized &&
					len(w.in.Pod.Spec.InitContainers) == 0 {
					slack = 3 * time.Second
				}
				if d := is.LastTransitionTime.Sub(was.LastTransitionTime.Time).Abs(); d > slack {
					t.Errorf("%s=%s since %s, was since %s", is.Type, is.Status, is.LastTransitionTime,
						was.LastTransitionTime)
				}
			}
			if d := after.StartTime.Sub(before.StartTime.Time); d > 3*time.Second {
				t.Errorf("start time %s, was %s", after.StartTime, before.StartTime)
			}
		})
	}
}

func TestTransitionTimes(t *testing.T) {
	t.Parallel()
	hook := func(p *corev1.Pod) {
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{}}
	}
	probed := func(p *corev1.Pod) { p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{} }
	with := func(w *driver, h Health) *driver {
		return w.input(func(in *Input) { in.Limits.Probing = true; in.Health = map[string]Health{"app-0": h} })
	}
	gate := func(p *corev1.Pod) { p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "open"}} }
	opened := func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: "open", Status: corev1.ConditionTrue}}
	}
	later := time.Hour
	unknown := slowPod().change("app", func(k *Container) { k.StartedAt = time.Time{} })
	ahead := slowPod().change("app", func(k *Container) { k.StartedAt = t0.Add(24 * time.Hour) })
	back := slowPod().after(later).exit("app", 1)
	back.decide()
	back.change("app", func(k *Container) {
		k.State, k.StartedAt, k.FinishedAt, k.ID = Running, t0, time.Time{},
			"x"
	}).after(time.Second)
	runCases(t, []testCase{
		{"a pod is ready from the start of its containers", slowPod(), "-",
			[]string{" Ready=True+3s", "ContainersReady=True+3s"}},
		{"the network is ready from the creation of the sandbox", slowPod(), "-",
			[]string{"PodReadyToStartContainers=True+1.5s"}},
		{"with a postStart hook from its observed end", slowPod(hook), "-", []string{" Ready=True+6s"}},
		{"with a readiness probe from its observed success", with(with(slowPod(probed), Health{}).begin().after(later),
			Health{Ready: true}), "-", []string{" Ready=True+1h0m4.5s"}},
		{"without Memory from the start of the container", with(slowPod(probed), Health{Ready: true}).forgetMemory(),
			"-",
			[]string{" Ready=True+3s"}},
		{"with a readiness gate from its observed change", slowPod(gate).after(later).edit(opened), "-",
			[]string{" Ready=True+1h0m4.5s", "ContainersReady=True+3s"}},
		{"a pod is not ready from the exit of a container",
			slowPod(never).after(later).exit("app", 1).after(time.Second),
			"stop sb-0", []string{" Ready=False/PodFailed+1h0m4.5s"}},
		{"without a time in the runtime from now", unknown.forgetMemory(), "-", []string{" Ready=True+1m4.5s"}},
		{"a time in the future is ignored", ahead.forgetMemory(), "-", []string{" Ready=True+1m4.5s"}},
		{"a transition is not before the previous one", back, "-", []string{" Ready=True+1h0m4.5s"}},
	})
}
