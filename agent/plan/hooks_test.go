package plan

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func postStart(c *corev1.Container) {
	if c.Lifecycle == nil {
		c.Lifecycle = &corev1.Lifecycle{}
	}
	c.Lifecycle.PostStart = &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"x"}}}
}

func preStop(c *corev1.Container) {
	if c.Lifecycle == nil {
		c.Lifecycle = &corev1.Lifecycle{}
	}
	c.Lifecycle.PreStop = &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"x"}}}
}

// justStarted is a pod whose named container has just started, before its hook.
func justStarted(name string, opts ...func(*corev1.Pod)) *driver {
	w := fresh(opts...)
	for range 50 {
		if w.begin(); w.in.InProgress[ActionKey{"start", name}] != nil {
			return w.ends("start/"+name, nil)
		}
		w.finish()
	}
	panic("never started: " + w.text())
}

// restartAgent drops the state of one agent process: actions in progress, failures and results of
// hooks.
func (w *driver) restartAgent() *driver {
	w.in.InProgress, w.in.Failures, w.in.Health = map[ActionKey]Action{}, map[ActionKey]Failure{}, map[string]Health{}
	w.in.Observed.Hooks, w.in.Termination = nil, nil
	return w
}

var errHook = &Error{Err: errors.New("exit code 1: failed")}

// TestContainerLifecycleHooksPage covers concepts/containers/container-lifecycle-hooks and the
// statements on hooks in the task page on attaching handlers.
func TestContainerLifecycleHooksPage(t *testing.T) {
	t.Parallel()
	two := mains(con("app", postStart), con("b"))
	stopping := mains(con("app", preStop))
	cars := []func(*corev1.Pod){inits(sidecar("s1", preStop), sidecar("s2")), mains(con("app", preStop))}
	dead := func(in *Input) {
		in.Limits.Probing, in.Health = true,
			map[string]Health{"app-0": {Started: true, Failed: true, FailedProbe: "liveness"}}
	}
	live := mains(con("app", preStop, func(c *corev1.Container) { c.LivenessProbe = &corev1.Probe{} }))
	runCases(t, []testCase{
		// postStart
		{"postStart is run immediately after a container is created", justStarted("app", two), "postStart app-0", nil},
		{"the container is not Running before the hook has finished", justStarted("app", two).begin(), "-",
			[]string{"app    waiting ContainerCreating", "pod    Pending"}},
		{"the next container waits for the hook", justStarted("app", two).begin(), "-",
			[]string{"b      waiting ContainerCreating"}},
		{"the next container starts when the hook has finished", justStarted("app", two).begin().finish(), "start b#0",
			[]string{"app    running"}},
		{"a container without a hook does not wait", justStarted("b", two), "-", []string{"pod    Running"}},
		{"a sidecar has started when its hook has finished", justStarted("side", inits(sidecar("side", postStart))),
			"postStart side-0", nil},
		{"… and only then the next init container starts",
			justStarted("side", inits(sidecar("side", postStart), con("two"))).begin().finish(), "start two#0", nil},
		{"the container is killed if the hook fails", justStarted("app", two).fails("postStart/app-0", errHook),
			"stop app-0 30s, start b#0",
			[]string{`why    Killing app "FailedPostStartHook" (Normal)`,
				"app    waiting PostStartHookError \"exit code 1: failed\""}},
		{"… and then restarted by its policy: Always",
			justStarted("app", two).fails("postStart/app-0", errHook).begin().finish(), "start app#1", nil},
		{"… Never", justStarted("app", never, mains(con("app", postStart))).fails("postStart/app-0", errHook).settle(),
			"-",
			[]string{"pod    Failed", "app    terminated Error 137"}},
		{"the restarted container's hook runs again", justStarted("app", two).fails("postStart/app-0",
			errHook).begin().finish().begin().finish(), "postStart app-1", nil},
		{"the hook of an exited container is canceled before its restart",
			justStarted("app", mains(con("app", postStart))).begin().exit("app", 1), "cancel postStart/app-0", nil},
		{"… then the container is restarted",
			justStarted("app", mains(con("app", postStart))).begin().exit("app", 1).begin().finish(), "start app#1",
			nil},
		{"a hook that hangs is canceled when the pod terminates",
			justStarted("app", two).begin().deleted(30 * time.Second),
			"cancel postStart/app-0, stop app-0 30s", nil},
		{"a hook that did not reach the runtime is retried", justStarted("app", two).fails("postStart/app-0",
			&Error{Kind: Unavailable, Err: errors.New("x")}).after(time.Second), "postStart app-0", nil},
		{"at least once: an agent that restarted during the hook runs it again",
			justStarted("app", two).begin().restartAgent(), "postStart app-0", nil},
		{"… also if it restarted before the hook", justStarted("app", two).restartAgent(), "postStart app-0", nil},
		{"… but not after the hook", justStarted("app", two).begin().finish().begin().restartAgent(), "start b#0", nil},
		{"a failure is remembered after a restart of the agent", justStarted("app", two).fails("postStart/app-0",
			errHook).begin().restartAgent(), "stop app-0 30s, start b#0", nil},
		{"without Memory a running container gets no hook",
			up(two).restartAgent().input(func(in *Input) { in.Memory = Memory{} }), "-", []string{"app    running"}},

		// preStop
		{"preStop runs before the container is stopped", up(stopping).deleted(30 * time.Second), "preStop app-0",
			[]string{`why    Killing app "Stopping container app" (Normal)`}},
		{"the stop signal waits for the hook", up(stopping).deleted(30 * time.Second).begin().after(10 * time.Second),
			"-",
			[]string{"wake   at+30s", "app    running", "!Killing"}},
		{"the hook uses part of the grace period",
			up(stopping).deleted(30 * time.Second).begin().after(10 * time.Second).finish(), "stop app-0 20s",
			[]string{"!Killing"}},
		{"after the grace period the hook is canceled and 2 s remain",
			up(stopping).deleted(30 * time.Second).begin().after(30 * time.Second),
			"cancel preStop/app-0, stop app-0 2s", nil},
		{"2 s remain after a hook that finishes late",
			up(stopping).deleted(30 * time.Second).begin().after(29 * time.Second).finish(), "stop app-0 2s", nil},
		{"a failed hook makes no difference", up(stopping).deleted(30*time.Second).fails("preStop/app-0", errHook),
			"stop app-0 30s", nil},
		{"a shorter grace period requested during the hook applies",
			up(stopping).deleted(30 * time.Second).begin().deleted(5 * time.Second).after(5 * time.Second),
			"cancel preStop/app-0, stop app-0 2s", nil},
		{"a longer one does not", up(stopping).deleted(5 * time.Second).begin().deleted(30 * time.Second).
			after(5 * time.Second), "cancel preStop/app-0, stop app-0 2s", nil},
		{"a grace period of zero skips the hook", up(stopping).deleted(0), "stop app-0 0s", nil},
		{"an exited container gets no hook",
			up(never, mains(con("app", preStop), con("b"))).exit("app", 0).deleted(30 * time.Second), "stop b-0 30s",
			nil},
		{"the hook of a container that exits is canceled", up(stopping).deleted(30*time.Second).begin().exit("app", 0),
			"cancel preStop/app-0, stop sb-0, remove app-0", nil},
		{"a container that never started gets no hook", up(stopping).change("app",
			func(k *Container) { k.State = Created }).deleted(30 * time.Second), "remove app-0", nil},
		{"the hooks of all containers run at once, including those of sidecars", up(cars...).deleted(30 * time.Second),
			"preStop app-0, preStop s1-0", nil},
		{"… but sidecars are stopped in order", up(cars...).deleted(30 * time.Second).begin().finish(),
			"stop app-0 30s",
			nil},
		{"… the last one first", up(cars...).deleted(30 * time.Second).begin().finish().begin().finish(),
			"stop s2-0 30s",
			nil},
		{"… and the first one with the remaining grace period",
			up(cars...).deleted(30 * time.Second).begin().finish().begin().finish().begin().after(
				10 * time.Second).finish(),
			"stop s1-0 20s", nil},
		{"the hook runs after a liveness failure", up(live).input(dead), "preStop app-0",
			[]string{`Killing app "Container app failed liveness probe, will be restarted"`}},
		{"… and the container is stopped although the probe no longer runs",
			up(live).input(dead).begin().input(func(in *Input) { in.Health = nil }).after(10 * time.Second).finish(),
			"stop app-0 20s", nil},
		{"the hook runs after an image change", up(stopping).edit(mains(con("app", preStop, image("new")))),
			"preStop app-0",
			nil},
		{"… and uses part of the grace period", up(stopping).edit(mains(con("app", preStop,
			image("new")))).begin().after(10 * time.Second).finish(), "stop app-0 20s", nil},
		{"the hook of a job's sidecar runs when the job has completed",
			up(never, inits(sidecar("s", preStop))).exit("app", 0), "preStop s-0", nil},
		{"the hook runs after a failed postStart", justStarted("app",
			mains(con("app", postStart, preStop))).fails("postStart/app-0", errHook), "preStop app-0", nil},
		{"at least once: an agent that restarted during the hook runs it again with the same deadline",
			up(stopping).deleted(30 * time.Second).begin().restartAgent().after(10 * time.Second), "preStop app-0",
			[]string{"wake   at+30s", "!Killing"}},
		{"… also if the pod itself continues", up(live).input(dead).begin().restartAgent().after(10 * time.Second),
			"preStop app-0", []string{"wake   at+30s"}},
		{"a finished hook is not run again",
			up(stopping).deleted(30 * time.Second).begin().finish().begin().restartAgent(),
			"stop app-0 30s", nil},
		{"a hook that did not reach the runtime is retried within its time",
			up(stopping).deleted(30*time.Second).fails("preStop/app-0",
				&Error{Kind: Unavailable, Err: errors.New("x")}).after(time.Second), "preStop app-0", nil},
		{"setting back the clock does not extend the hook",
			up(stopping).terminate("Evicted", 10*time.Second).begin().after(-time.Hour).begin().after(10 * time.Second),
			"cancel preStop/app-0, stop app-0 2s", nil},
	})
}

func TestMemorySameReadiness(t *testing.T) {
	t.Parallel()
	at := metav1.NewTime(time.Unix(1000, 0))
	since := func(kind corev1.PodConditionType, is corev1.ConditionStatus, at metav1.Time) corev1.PodCondition {
		return corev1.PodCondition{Type: kind, Status: is, LastTransitionTime: at}
	}
	hook := func(s HookState) map[string]HookStatus { return map[string]HookStatus{"a": {PostStart: s}} }
	for name, row := range map[string]struct {
		was, is Memory
		same    bool
	}{
		"known from the runtime": {Memory{},
			Memory{Conditions: []corev1.PodCondition{since(corev1.PodReady, "True", at)}}, true},
		"a hook is pending":   {Memory{}, Memory{Hooks: hook(HookPending)}, true},
		"a hook has finished": {Memory{Hooks: hook(HookPending)}, Memory{Hooks: hook(HookDone)}, false},
		"of another instance": {Memory{Hooks: hook(HookDone)},
			Memory{Hooks: map[string]HookStatus{"a": {Attempt: 1, PostStart: HookDone}}}, false},
		"a hook had finished before": {Memory{Hooks: hook(HookFailed)}, Memory{Hooks: hook(HookFailed)}, true},
		"a probe has succeeded": {Memory{Health: map[string]Health{"id": {}}},
			Memory{Health: map[string]Health{"id": {Ready: true}}}, false},
		"ready by another container's start": {
			Memory{Hooks: hook(HookDone), Conditions: []corev1.PodCondition{since(corev1.PodReady, "False", at)}},
			Memory{Hooks: hook(HookDone), Conditions: []corev1.PodCondition{since(corev1.PodReady, "True", at)}}, false,
		},
		"initialized": {
			Memory{Hooks: hook(HookDone), Conditions: []corev1.PodCondition{since(corev1.PodReady, "True", at)}},
			Memory{Hooks: hook(HookDone), Conditions: []corev1.PodCondition{since(corev1.PodReady, "True", at),
				since(corev1.PodInitialized, "True", at)}}, true,
		},
	} {
		if got := row.is.SameReadiness(row.was); got != row.same {
			t.Errorf("%s: same %v, want %v", name, got, row.same)
		}
	}
}
