package plan

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// startInProgress adds the start of container app, whose result the runtime shows already.
func startInProgress(in *Input) {
	a := StartContainer{Name: "app", SandboxID: "sb-0"}
	in.InProgress[a.Key()] = a
}

func TestTermination(t *testing.T) {
	t.Parallel()
	grace := func(n int64) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &n }
	}
	full := []func(*corev1.Pod){inits(sidecar("s1"), sidecar("s2")), mains(con("a"), con("b"))}
	stuck := func(w *driver) *driver { // the app containers do not stop within the grace period
		return w.deleted(30 * time.Second).begin().after(30 * time.Second)
	}
	runCases(t, []testCase{
		{"app containers are stopped at once, before the sidecars", up(full...).deleted(30 * time.Second),
			"stop b-0 30s, stop a-0 30s", []string{`why    Killing a "Stopping container a" (Normal)`,
				"pod    Running"}},
		{"the last sidecar is stopped after the app containers", up(full...).deleted(30 * time.Second).begin().finish(),
			"stop s2-0 30s", nil},
		{"… then the first one with the rest of the grace period",
			up(full...).deleted(30 * time.Second).begin().finish().begin().after(20 * time.Second).finish(),
			"stop s1-0 10s",
			nil},
		{"at least 2 s of the grace period remain",
			up(full...).deleted(30 * time.Second).begin().after(29 * time.Second).finish(), "stop s2-0 2s", nil},
		{"after the grace period all remaining containers are stopped at once", stuck(up(full...)),
			"stop s2-0 2s, stop s1-0 2s", nil},
		{"… and the worker wakes up for that", up(full...).deleted(30 * time.Second).begin(), "-",
			[]string{"wake   at+30s"}},
		{"a grace period of 1 s is not extended", up().deleted(time.Second), "stop app-0 1s", nil},
		{"a grace period of 0 kills at once, including sidecars", up(full...).deleted(0),
			"stop b-0 0s, stop a-0 0s, stop s2-0 0s, stop s1-0 0s", nil},
		{"a shorter grace period cancels the stop in progress",
			up().deleted(30*time.Second).begin().after(5*time.Second).terminate("Evicted", time.Second),
			"cancel stop/app-0",
			nil},
		{"… and repeats it with the shorter one",
			up().deleted(30*time.Second).begin().after(5*time.Second).terminate("Evicted",
				4*time.Second).begin().ends("stop/app-0", &Error{Kind: Canceled, Err: errors.New("x")}),
			"stop app-0 4s", nil},
		{"a longer grace period changes nothing", up().deleted(10 * time.Second).begin().deleted(60 * time.Second), "-",
			nil},
		{"the first reason remains",
			up().terminate("Evicted", 0).begin().deleted(0).finish().begin().finish().begin().finish().begin().finish(),
			"",
			[]string{"pod    Failed Evicted"}},
		{"a termination is remembered without a further request",
			up().deleted(30 * time.Second).begin().input(func(in *Input) { in.Termination = nil }).finish(),
			"stop sb-0, remove app-0", nil},
		{"setting back the clock does not extend the grace period",
			up().terminate("Evicted", 10*time.Second).after(-time.Hour), "stop app-0 10s", nil},
		{"actions in progress are canceled", fresh(mains(con("app", image("far")))).begin().deleted(0),
			"cancel make/cgroup, cancel make/dirs, cancel pull/app", []string{"why    Settling"}},
		{"the start of a container that has exited already is not canceled: its error is reported",
			up(never).exit("app", 128).input(startInProgress), "-", []string{"why    Settling"}},
		{"… also if the pod is deleted meanwhile",
			up(never).exit("app", 128).input(startInProgress).deleted(0), "-", []string{"why    Settling"}},
		{"the start of a running container is canceled", up(never).input(startInProgress).deleted(0),
			"cancel start/app, stop app-0 0s", nil},
		{"a created container is removed, not stopped",
			up().change("app", func(k *Container) { k.State = Created }).deleted(0), "remove app-0", nil},
		{"sandbox, volumes and containers are removed in parallel",
			up(emptyDir("v"), mains(con("app", mounts("v")))).deleted(0).begin().finish(),
			"stop sb-0, unmount v, remove app-0",
			[]string{"pod    Failed"}},
		{"the cgroup is removed after the sandbox", up().deleted(0).begin().finish().begin().finish(),
			"remove cgroup, remove sb-0", nil},
		{"… then directories and logs", up().deleted(0).begin().finish().begin().finish().begin().finish(),
			"remove dirs",
			[]string{"!  done"}},
		{"… then nothing is left", up().deleted(0).settle(), "-", []string{"  done"}},
		{"a deleted pod whose containers exit with 0 has succeeded",
			up(grace(5)).deleted(5*time.Second).begin().exit("app",
				0).input(func(in *Input) { clear(in.InProgress) }), "", []string{"pod    Succeeded"}},
		{"a deleted pod that never ran fails", fresh().deleted(0), "-", []string{"pod    Failed", "  done"}},
		{"an evicted pod fails with reason and message regardless of exit codes", up().terminate("Evicted",
			time.Second).begin().exit("app", 0).input(func(in *Input) { clear(in.InProgress) }), "stop sb-0",
			[]string{`pod    Failed Evicted "because"`, "DisruptionTarget=True/TerminationByKubelet",
				"Ready=False/PodFailed"}},
		{"its event has the message", up().terminate("Evicted", time.Second), "stop app-0 1s",
			[]string{`why    Evicted "because" (Warning)`}},
		{"… and is recorded once", up().terminate("Evicted", time.Second).begin(), "-", []string{"!why    Evicted"}},
		{"a completed pod is not evicted", up(never).exit("app", 0).settle().terminate("Evicted", time.Second), "-",
			[]string{"pod    Succeeded", "!why    Evicted", "!DisruptionTarget"}},
		{"it is not Failed while a container may run", up().terminate("Evicted", time.Second).begin(), "-",
			[]string{"pod    Running", "!DisruptionTarget"}},
		{"an evicted pod keeps directories and dead containers for its logs", up().terminate("Evicted", 0).settle(),
			"-",
			[]string{"!  done", "app    terminated Error 137"}},
		{"under disk pressure the containers are removed and their status is preserved",
			up().terminate("Evicted", 0).settle().input(func(in *Input) {
				in.Observed.DiskPressure = true
			}).settle(), "-",
			[]string{"!  done", "app    terminated Error 137", "pod    Failed Evicted"}},
		{"… after all other resources", up().terminate("Evicted",
			0).settle().input(func(in *Input) { in.Observed.DiskPressure = true }), "remove app-0", nil},
		{"… also those of a completed pod",
			up(never).exit("app", 0).settle().input(func(in *Input) {
				in.Observed.DiskPressure = true
			}), "remove app-0",
			[]string{"pod    Succeeded", "app    terminated Completed 0"}},
		{"a preempted pod has its own grace period and an event", up().terminate("Preempting", 30*time.Second),
			"stop app-0 30s", []string{`why    Preempting "because" (Warning)`}},
		{"… and fails", up().terminate("Preempting", 0).settle(), "-",
			[]string{`pod    Failed Preempting "because"`, "DisruptionTarget=True/TerminationByKubelet"}},
		{"a node shutdown is a disruption too", up().terminate("Terminated", 0).settle(), "-",
			[]string{"pod    Failed Terminated", "DisruptionTarget=True"}},
		{"a deletion is not", up().deleted(0).settle(), "-", []string{"!DisruptionTarget"}},
		{"an evicted pod that is deleted leaves nothing and remains Failed",
			up().terminate("Evicted", 0).settle().deleted(0).settle(), "-",
			[]string{"pod    Failed Evicted", "  done"}},
		{"a failed stop is retried", up().deleted(30*time.Second).fails("stop/app-0",
			&Error{Kind: Timeout, Err: errors.New("slow")}).after(time.Second), "stop app-0 29s", nil},
		{"the containers of an orphaned pod are stopped even if the spec lacks them",
			up().edit(func(p *corev1.Pod) { p.Spec.Containers = nil }).input(func(in *Input) {
				in.Termination = &Termination{Reason: "Orphaned", Grace: 30 * time.Second, RequestedAt: in.Now,
					RemovePod: true}
			}), "stop app-0 30s", nil},
	})
}

// TestScenario16_TeardownIncompleteCondition checks that the condition names the resource that
// cannot be removed and the cause, and disappears after success.
func TestScenario16_TeardownIncompleteCondition(t *testing.T) {
	t.Parallel()
	slow := &Error{Kind: Timeout, Err: errors.New("slow")}
	busy := &Error{Kind: Other, Reason: "FailedUnMount", Err: errors.New("device or resource busy")}
	wantCondition := func(w *driver, want string) {
		t.Helper()
		got := ""
		for _, c := range w.decide().Status.Conditions {
			if c.Type == TeardownIncomplete {
				got = string(c.Status) + " " + c.Reason + " " + c.Message
			}
		}
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	runCases(t, []testCase{
		{"a failed stop", up().deleted(30*time.Second).fails("stop/app-0", slow), "-",
			[]string{"TeardownIncomplete=True/FailedKillPod", "pod    Running"}},
		{"while it is retried", up().deleted(30*time.Second).fails("stop/app-0", slow).after(time.Second).begin(), "-",
			[]string{"TeardownIncomplete=True"}},
		{"after it has succeeded", up().deleted(30*time.Second).fails("stop/app-0",
			slow).after(time.Second).begin().finish(), "stop sb-0, remove app-0", []string{"!TeardownIncomplete"}},
		{"an unavailable runtime", up().deleted(30*time.Second).fails("stop/app-0",
			&Error{Kind: Unavailable, Err: errors.New("runtime unavailable")}), "", []string{"!TeardownIncomplete"}},
		{"a pod that is not terminating",
			up(mains(con("app"), con("b"))).change("app", func(k *Container) {
				k.State = Unknown
			}).begin().fails("stop/app-0",
				slow), "", []string{"!TeardownIncomplete"}},
		{"a Failed pod", up(emptyDir("v"), mains(con("app", mounts("v")))).terminate("Evicted",
			0).begin().finish().fails("unmount/v", busy), "-",
			[]string{"TeardownIncomplete=True/FailedUnMount", "pod    Failed Evicted"}},
	})
	two := up(emptyDir("v"), mains(con("app", mounts("v")))).deleted(0).begin().finish()
	wantCondition(two, "")
	wantCondition(two.fails("unmount/v", busy), "True FailedUnMount volume v cannot be unmounted: device or "+
		"resource busy")
	wantCondition(two.fails("stop/sb-0", slow), "True FailedKillPod the pod sandbox cannot be stopped: slow "+
		"(and 1 more)")
}

func TestActiveDeadline(t *testing.T) {
	t.Parallel()
	within := func(n int64) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = &n }
	}
	runCases(t, []testCase{
		{"the deadline wakes the pod", up(within(60)), "-", []string{"wake   at+1m0s"}},
		{"… and terminates it with its grace period", up(within(60)).after(time.Minute), "stop app-0 30s",
			[]string{"why    DeadlineExceeded"}},
		{"and fails", up(within(60)).after(time.Minute).settle(), "-",
			[]string{`pod    Failed DeadlineExceeded "Pod was active on the node longer than the specified deadline"`,
				"!DisruptionTarget"}},
		{"init containers are included", started("one", inits(con("one")), within(60)).after(time.Minute),
			"stop one-0 30s",
			nil},
		{"it counts from the start time on the control server",
			fresh(within(60), func(p *corev1.Pod) {
				p.Status.StartTime = &metav1.Time{Time: t0.Add(-50 * time.Second)}
			}), "",
			[]string{"wake   at+10s"}},
		{"a completed pod does not fail", up(never, inits(sidecar("side")), within(60)).exit("app",
			0).begin().after(time.Minute).finish(), "", []string{"pod    Succeeded"}},
		{"a very long deadline never expires", up(within(1 << 62)), "-", []string{"pod    Running"}},
	})
}
