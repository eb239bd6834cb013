package plan

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// The tests in this file are small. The model world of package agent covers the breadth.

// samplePods returns pods in all stages of their life.
func samplePods() map[string]*driver {
	full := []func(*corev1.Pod){inits(con("one"), sidecar("side")), mains(con("a", mounts("v")), con("b")),
		emptyDir("v"),
		ephemeral(con("debug"))}
	return map[string]*driver{
		"fresh":        fresh(full...),
		"pulling":      fresh(mains(con("a", image("far")))).begin(),
		"starting":     fresh(full...).begin().finish().begin().finish().begin(),
		"up":           up(full...),
		"crashing":     crashed(3).exit("app", 1),
		"changed":      up().edit(mains(con("app", image("new")))),
		"sandbox lost": up(full...).sandboxLost(),
		"rebooted":     up(full...).rebooted(),
		"deleted":      up(full...).deleted(30 * time.Second),
		"evicted":      up(full...).terminate("Evicted", time.Second),
		"done":         up(never).exit("app", 0),
		"failed":       up(never).exit("app", 1).settle(),
		"rejected": fresh(full...).input(func(in *Input) {
			in.Verdict = Verdict{State: Rejected, Reason: "OutOfcpu"}
		}),
		"waiting": fresh(full...).input(func(in *Input) { in.Verdict = Verdict{State: Wait} }),
		"past deadline": up(func(p *corev1.Pod) {
			n := int64(1)
			p.Spec.ActiveDeadlineSeconds = &n
		}).after(time.Second),
	}
}

func TestInputUnchanged(t *testing.T) { // I1
	t.Parallel()
	twins := samplePods()
	for name, w := range samplePods() {
		first := Decide(w.in)
		if diff := cmp.Diff(twins[name].in, w.in); diff != "" {
			t.Errorf("%s: the input was modified:\n%s", name, diff)
		}
		if again := Decide(w.in); !reflect.DeepEqual(first, again) {
			t.Errorf("%s: two results for one input:\n%s", name, cmp.Diff(first, again))
		}
	}
}

func TestActionsAreSafeInAnyOrder(t *testing.T) { // I2
	t.Parallel()
	for name, w := range samplePods() {
		for range 40 {
			w.decide()
			checkSafe(t, name, w)
			w.begin()
			if len(w.in.InProgress) == 0 {
				break
			}
			w.finish()
		}
	}
}

// checkSafe checks that no action of the last plan depends on another one or conflicts with it.
func checkSafe(t *testing.T, name string, w *driver) {
	t.Helper()
	has := map[string]bool{}
	starts := 0
	for _, a := range w.last.Actions() {
		k := a.Key()
		if has[k.String()] {
			t.Errorf("%s: %s twice", name, k)
		}
		has[k.String()] = true
		has[k.Verb] = true
		if _, ok := a.(StartContainer); ok {
			starts++
		}
	}
	for _, pair := range [][2]string{
		{"make/dirs", "mount"}, {"make/dirs", "run"}, {"make/cgroup", "run"}, {"run", "start"}, {"mount", "start"},
		{"remove/cgroup", "start"}, {"remove/dirs", "unmount"}, {"unmount", "start"},
	} {
		if has[pair[0]] && has[pair[1]] {
			t.Errorf("%s: %s beside %s: %s", name, pair[0], pair[1], showActions(w.last))
		}
	}
	if starts > 1 {
		t.Errorf("%s: %d starts at once", name, starts)
	}
}

func TestTerminatingPodStartsNothing(t *testing.T) { // I3
	t.Parallel()
	for name, w := range samplePods() {
		w.deleted(30 * time.Second)
		for range 40 {
			if w.begin(); len(w.last.BuildRun)+len(w.last.Configure) > 0 {
				t.Errorf("%s: a terminating pod gets %s", name, showActions(w.last))
			}
			if w.last.Done {
				break
			}
			w.finish()
		}
		if !w.last.Done {
			t.Errorf("%s: not done\n%s", name, w.text())
		}
	}
	// A termination remains without a further request.
	w := up().deleted(0).begin()
	w.in.Termination = nil
	if w.exit("app", 0); len(w.decide().BuildRun) > 0 {
		t.Errorf("without a further request the pod starts %s", showActions(w.last))
	}
}

func TestSingleLiveInstance(t *testing.T) { // I4
	t.Parallel()
	for _, state := range []ContainerState{Created, Running, Unknown} {
		for _, newest := range []ContainerState{Created, Running, Exited, Unknown} {
			w := up()
			w.in.Observed.Containers = []Container{
				{ID: "new", Name: "app", SandboxID: "sb-0", State: newest, Attempt: 5},
				{ID: "old", Name: "app", SandboxID: "sb-0", State: state, Attempt: 4},
			}
			for _, a := range w.decide().BuildRun {
				t.Errorf("newest %s, older %s: %s", newest, state, show(a))
			}
		}
	}
	if w := up().exit("app", 1).begin(); len(w.decide().BuildRun) > 0 {
		t.Errorf("a start in progress is planned again: %s", showActions(w.last))
	}
}

func TestPlansBecomeEmpty(t *testing.T) { // I5
	t.Parallel()
	for name, w := range samplePods() {
		w.in.Observed.Images = map[string]Image{"img": {ID: "sha:img"}, "far": {ID: "sha:far"}, "new": {ID: "sha:new"}}
		for range 100 {
			w.begin().finish()
			if w.last.Empty() && !w.last.Wake.IsZero() {
				w.in.Now = w.last.Wake
			} else if w.last.Empty() {
				break
			}
		}
		if !w.last.Empty() {
			t.Errorf("%s: not idle\n%s", name, w.text())
		}
	}
}

func TestNoChangeBeforeWake(t *testing.T) { // I6
	t.Parallel()
	for name, w := range samplePods() {
		w.begin()
		for range 10 {
			now := w.decide()
			if !now.Empty() {
				break
			}
			if now.Wake.IsZero() {
				w.after(1000 * time.Hour)
			} else {
				w.in.Now = now.Wake.Add(-time.Nanosecond)
			}
			if later := w.decide(); !later.Empty() || !reflect.DeepEqual(later.Status, now.Status) {
				t.Errorf("%s: before %v time alone changes\n%s", name, now.Wake, cmp.Diff(now, later))
			}
			if now.Wake.IsZero() {
				break
			}
			w.in.Now = now.Wake
		}
	}
}

func TestAppContainersStartAfterInitContainers(t *testing.T) { // I7
	t.Parallel()
	w := fresh(inits(con("one"), sidecar("side"), con("two")), mains(con("a"), con("b")))
	var order []string
	for range 20 {
		w.begin()
		for _, a := range w.last.BuildRun {
			if s, ok := a.(StartContainer); ok {
				order = append(order, s.Name)
			}
		}
		w.finish()
	}
	if got := fmt.Sprint(order); got != "[one side two a b]" {
		t.Errorf("started in the order %s", got)
	}
	for _, state := range []ContainerState{Created, Running, Unknown} {
		// an init container in any state except success delays the app containers
		w := started("one", inits(con("one")))
		w.change("one", func(k *Container) { k.State = state })
		for _, a := range w.decide().BuildRun {
			t.Errorf("one is %s: %s", state, show(a))
		}
	}
}

func TestTerminalPodReleasesResources(t *testing.T) { // I8
	t.Parallel()
	over := map[string]*driver{
		"succeeded": up(onFailure, emptyDir("v"), mains(con("app", mounts("v")))).exit("app", 0),
		"failed":    up(never, emptyDir("v"), mains(con("app", mounts("v")))).exit("app", 1),
		"evicted":   up(emptyDir("v"), mains(con("app", mounts("v")))).terminate("Evicted", 0),
		"rejected": up(emptyDir("v"),
			mains(con("app", mounts("v")))).input(func(in *Input) {
			in.Verdict = Verdict{State: Rejected, Reason: "X"}
		}),
	}
	for name, w := range over {
		w.settle()
		phase := w.last.Status.Phase
		if phase != corev1.PodSucceeded && phase != corev1.PodFailed {
			t.Errorf("%s: %s", name, phase)
		}
		if len(w.in.Observed.Volumes) > 0 || w.in.Observed.HasCgroup || w.in.Observed.Sandboxes[0].Ready {
			t.Errorf("%s holds %+v", name, w.in.Observed)
		}
		// Nothing restarts the pod: an edit, a lost sandbox, a runtime without records, another
		// verdict, a lost store.
		w.in.Observed.Containers, w.in.Observed.Sandboxes = nil, nil
		w.in.Verdict = Verdict{State: Admitted}
		w.edit(func(p *corev1.Pod) { p.Spec.Containers[0].Image = "new" })
		if w.after(time.Hour).decide(); !w.last.Empty() || w.last.Status.Phase != phase {
			t.Errorf("%s: restarts\n%s", name, w.text())
		}
		w.edit(func(p *corev1.Pod) { p.Status = w.last.Status })
		w.in.Memory = Memory{}
		if w.decide(); !w.last.Empty() || w.last.Status.Phase != phase {
			t.Errorf("%s: restarts without memory\n%s", name, w.text())
		}
	}
	// The phase is not terminal while a container may run or is being created.
	w := up(never, mains(con("app"), con("b"))).exit("app", 1)
	if p := w.decide().Status.Phase; p != corev1.PodRunning {
		t.Errorf("phase %s beside a running container", p)
	}
	w = fresh(mains(con("app", image("far")))).begin().terminate("Evicted", 0)
	if p := w.decide().Status.Phase; p != corev1.PodPending {
		t.Errorf("phase %s while the sandbox may still be created", p)
	}
}
