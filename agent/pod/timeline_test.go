package pod

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/checkpoint"
	"berth/agent/hostfake"
	"berth/agent/plan"
	"berth/agent/status"
)

func TestActionSpanNamesAndCauses(t *testing.T) {
	termination := &plan.Termination{Reason: "Evicted"}
	observed := plan.Observed{
		Sandboxes: []plan.Sandbox{{ID: "5b", Attempt: 1}},
		Containers: []plan.Container{
			{
				ID: "c2", Name: "app", Attempt: 2, State: plan.Exited, ExitCode: 7,
			}, {ID: "c1", Name: "app", Attempt: 1, State: plan.Exited},
			{ID: "n0", Name: "new", State: plan.Created},
		},
		Volumes: map[string]plan.VolumeStatus{"v": {Version: "1"}},
	}
	for _, row := range []struct {
		a                 plan.Action
		memory            plan.Memory
		name, cause, what string
	}{
		{plan.StartContainer{Name: "db"}, plan.Memory{}, "start/db", "main, first start", "a container that never ran"},
		{
			plan.StartContainer{Name: "app", Attempt: 3}, plan.Memory{}, "start/app (attempt 3)",
			"main, restart after exit 7", "a container that crashed",
		},
		{
			plan.StartContainer{Name: "db", Attempt: 1},
			plan.Memory{Exits: map[string]plan.Container{"db": {ID: "x", ExitCode: 2}}}, "start/db (attempt 1)",
			"main, restart after exit 2", "a container that the runtime has lost",
		},
		{
			plan.StartContainer{Name: "app", Attempt: 3},
			plan.Memory{Restarts: map[string]plan.RestartState{"app": {Replacing: "c2"}}}, "start/app (attempt 3)",
			"main, restart after a stop to apply a change", "an edited container",
		},
		{
			plan.StopContainer{ID: "c2", Name: "app", Reason: "Deleted", Grace: 19999702606}, plan.Memory{},
			"stop/app (attempt 2)", "Deleted, grace 20s", "a stop",
		},
		{
			plan.RemoveContainer{ID: "c1", Name: "app"}, plan.Memory{}, "remove/app (attempt 1)",
			"replaced by a newer container", "an old instance",
		},
		{
			plan.RemoveContainer{ID: "n0", Name: "new"}, plan.Memory{}, "remove/new", "created but never started",
			"a container that never ran",
		},
		{
			plan.RemoveContainer{ID: "c2", Name: "app"}, plan.Memory{Termination: termination},
			"remove/app (attempt 2)",
			"the pod is terminating: Evicted", "a terminating pod",
		},
		{
			plan.StopSandbox{ID: "5b"}, plan.Memory{Phase: corev1.PodSucceeded}, "stop/sandbox (attempt 1)",
			"the pod has succeeded", "a finished pod",
		},
		{
			plan.RemoveSandbox{ID: "5b"}, plan.Memory{}, "remove/sandbox (attempt 1)", "replaced by a newer sandbox",
			"an old sandbox",
		},
		{plan.RunSandbox{}, plan.Memory{}, "run/sandbox", "the pod has no sandbox", "the first sandbox"},
		{plan.ProjectVolume{Volume: "v", Version: "2"}, plan.Memory{}, "project/v", "content 2 in place of 1",
			"new content"},
		{plan.PullImage{Container: "app", Image: "img:1"}, plan.Memory{}, "pull/app", "img:1, not on this node",
			"a pull"},
	} {
		t.Run(row.what, func(t *testing.T) {
			s := newState()
			s.observed, s.memory = observed, row.memory
			if name, cause := s.actionSpan(row.a); name != row.name || cause != row.cause {
				t.Errorf("got %q with cause %q, want %q with cause %q", name, cause, row.name, row.cause)
			}
		})
	}
}

func TestCurrentWaits(t *testing.T) {
	now := time.Now()
	s := newState()
	s.verdict = plan.Verdict{State: plan.Wait, Reason: "OutOfcpu"}
	s.reported = []status.ReportedReason{
		{Reason: plan.Reason{Code: "BackOff", Target: "app", Message: "crashed", Until: now.Add(time.Second)}},
		{Reason: plan.Reason{Code: "FailedMount", Target: "mount/v", Message: "failed", Until: now.Add(time.Second)}},
		{Reason: plan.Reason{Code: "Pulled", Target: "app", Message: "present"}},
	}
	s.failures[plan.ActionKey{Verb: "mount", Target: "v"}] = plan.Failure{Action: plan.MountVolume{Volume: "v"}}
	var got []string
	for _, w := range s.currentWaits(true, now) {
		got = append(got, w.name+": "+w.cause)
	}
	if want := "admit/: OutOfcpu, back-off/app: crashed, back-off/mount v: failed"; strings.Join(got, ", ") != want {
		t.Errorf("got %s\nwant %s", strings.Join(got, ", "), want)
	}
	if later := s.currentWaits(true, now.Add(2*time.Second)); len(later) != 1 {
		t.Errorf("got waits %v after the back-off, want 1", later)
	}
}

func TestWaitSpanEndsWithTheWait(t *testing.T) {
	withWorkers(t, func(t *testing.T, r *workerFixture) {
		pod := hostfake.PodOf("p", "a")
		w := r.start(pod)
		r.until(time.Second, "runs", r.isRunning(pod))
		r.host.Kill(pod.UID, "a", 1, false)
		r.until(time.Second, "restarted", func() bool {
			return r.host.CallCount("start uid-p/a") == 2 && len(r.host.RunningContainers(pod.UID)) == 1
		})
		time.Sleep(10 * time.Millisecond)
		r.host.Kill(pod.UID, "a", 1, false)
		r.until(time.Minute, "restarted after the back-off", func() bool {
			return r.host.CallCount("start uid-p/a") == 3 && len(r.host.RunningContainers(pod.UID)) == 1
		})
		time.Sleep(10 * time.Millisecond)
		took := map[string]time.Duration{}
		causes := map[string]string{}
		spans, _ := w.timeline.Spans()
		for _, s := range spans {
			if !s.End.IsZero() {
				took[s.Name], causes[s.Name] = s.End.Sub(s.Start), s.Cause
			}
		}
		if d := took["back-off/a"]; d < hostfake.Limits.CrashBase/2 || d > hostfake.Limits.CrashBase {
			t.Errorf("the span of the back-off of %v lasts %v", hostfake.Limits.CrashBase, d)
		}
		if _, admitted := took["admit/"]; !admitted {
			t.Errorf("no span of the wait for admission: %+v", spans)
		}
		if got := causes["start/a (attempt 2)"]; got != "main, restart after exit 1" {
			t.Errorf("got cause %q of the second restart", got)
		}
	})
}

func TestRestartCause(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for want, last := range map[string]checkpoint.PreviousRun{
		"the agent started, its previous run is unknown": {},
		"the agent was stopped and started again after 5s": {
			EndedAt: at.Add(-5 * time.Second), CleanExit: true,
		},
		"the agent was killed or crashed and started again, its last record " +
			"is 1m0s older": {EndedAt: at.Add(-time.Minute)},
		"the agent was stopped and started again after 0s": {
			EndedAt: at.Add(time.Hour), CleanExit: true,
		},
	} {
		if got := restartCause(last, at); got != want {
			t.Errorf("%+v: %q, want %q", last, got, want)
		}
	}
}
