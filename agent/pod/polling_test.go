package pod

import (
	"testing"
	"testing/synctest"
	"time"

	"berth/agent/hostfake"
	"berth/agent/plan"
)

// polledRuntime replaces the events of the runtime by polling: once per second it notifies the
// workers of changed pods with their listing.
func (r *workerFixture) polledRuntime(pods ...string) {
	r.host.Events = nil
	r.polled.Store(true)
	r.wg.Go(func() {
		last := map[string]observation{}
		for sleep(r.ctx, time.Second) {
			for _, name := range pods {
				uid := hostfake.PodOf(name).UID
				r.host.Mu.Lock()
				p := r.host.StateOf(uid)
				now := observation{sandboxes: p.Sandboxes, containers: append([]plan.Container{}, p.Containers...)}
				r.host.Mu.Unlock()
				known := plan.Observed{Sandboxes: last[name].sandboxes, Containers: last[name].containers}
				if known.Diff(now.sandboxes, now.containers) != "" {
					r.workers[uid].Notify(RuntimeEvent{
						Incomplete: true, Listed: &Listing{Sandboxes: now.sandboxes, Containers: now.containers},
					})
				}
				last[name] = now
			}
		}
	})
}

func TestOwnActionsCauseNoObservationOfPolledRuntime(t *testing.T) {
	withWorkers(t, func(t *testing.T, r *workerFixture) {
		r.polledRuntime("p")
		r.host.Latency = hostfake.LatencyByCall(map[string]time.Duration{
			"start": 1500 * time.Millisecond, "runSandbox": 300 * time.Millisecond,
		})
		pod := hostfake.PodOf("p", "a", "s", "c")
		r.start(pod)
		r.until(10*time.Second, "runs", r.isRunning(pod))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := r.host.CallCount("observe uid-p"); n > 0 {
			t.Errorf("got %d observations, want 0", n)
		}
		if n := r.host.CallCount("status"); n != 3 {
			t.Errorf("got %d container reads after 3 starts, want 3", n)
		}
	})
}

func TestEarlyExitIsNoticedBeforeNextPoll(t *testing.T) {
	withWorkers(t, func(t *testing.T, r *workerFixture) {
		r.polledRuntime("p")
		r.host.Exits = func(string) (time.Duration, int32, bool) {
			return 50 * time.Millisecond, 1, r.host.Count["start uid-p/a"] == 1
		}
		pod := hostfake.PodOf("p", "a")
		r.start(pod)
		r.until(400*time.Millisecond, "started again", func() bool { return r.host.CallCount("start") == 2 })
		r.until(10*time.Second, "runs", r.isRunning(pod))
	})
}

func TestExitFoundByPollIsObservedOnce(t *testing.T) {
	withWorkers(t, func(t *testing.T, r *workerFixture) {
		r.polledRuntime("p")
		pod := hostfake.PodOf("p", "a")
		r.start(pod)
		r.until(time.Second, "runs", r.isRunning(pod))
		time.Sleep(5 * time.Second)
		r.host.Kill(pod.UID, "a", 1, false)
		r.until(1100*time.Millisecond, "started again", func() bool { return r.host.CallCount("start") == 2 })
		time.Sleep(5 * time.Second)
		if n := r.host.CallCount("observe uid-p"); n != 1 {
			t.Errorf("got %d observations, want 1", n)
		}
	})
}

func TestEventsReplaceReadAfterStart(t *testing.T) {
	withWorkers(t, func(t *testing.T, r *workerFixture) {
		pod := hostfake.PodOf("p", "a")
		r.start(pod)
		r.until(time.Second, "runs", r.isRunning(pod))
		time.Sleep(time.Second)
		if n := r.host.CallCount("status") + r.host.CallCount("observe uid-p"); n > 0 {
			t.Errorf("got %d reads, want 0", n)
		}
	})
}

func TestRecheckDelayIsBounded(t *testing.T) {
	withWorkers(t, func(t *testing.T, r *workerFixture) {
		r.polledRuntime("p")
		// a hanging postStart hook
		r.host.Latency = hostfake.LatencyByCall(map[string]time.Duration{"start uid-p/s": time.Hour})
		pod := hostfake.PodOf("p", "a", "s")
		r.start(pod)
		r.until(time.Second, "a runs", func() bool { return len(r.host.RunningContainers(pod.UID)) == 1 })
		time.Sleep(5 * time.Second)
		r.host.Kill(pod.UID, "a", 3, false)
		r.until(time.Second+recheckDelay+50*time.Millisecond, "the exit of a is observed", func() bool {
			s, _ := r.statuses.Get(pod.UID)
			return s.Status.ContainerStatuses[0].State.Running == nil
		})
	})
}

func TestLateEventDoesNotRestoreRemovedObjects(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := newState()
	s.everObserved = true
	old, other := plan.Container{ID: "old", Name: "a", SandboxID: "sb", State: plan.Exited}, plan.Container{
		ID: "other", Name: "s", SandboxID: "sb", State: plan.Running,
	}
	sb := plan.Sandbox{ID: "sb", Ready: true}
	s.observed = s.observed.WithRuntime([]plan.Sandbox{sb}, []plan.Container{old, other})
	remove := plan.RemoveContainer{ID: "old", Name: "a"}
	s.actionStarted(remove, now)
	dead := other
	dead.State = plan.Exited
	s.applyEvent(RuntimeEvent{Sandbox: &sb, Containers: []plan.Container{dead, old}}, now)
	if s.isLive("other") {
		t.Error("an event during a removal was dropped")
	}
	s.actionFinished(plan.Outcome{Action: remove})
	s.applyEvent(RuntimeEvent{Sandbox: &sb, Containers: []plan.Container{dead, old}}, now)
	if s.hasContainer("old") {
		t.Error("a late event restored a removed container")
	}
	removal := plan.RemoveSandbox{ID: "sb"}
	s.actionStarted(removal, now)
	s.actionFinished(plan.Outcome{Action: removal})
	s.applyEvent(RuntimeEvent{Sandbox: &sb, Containers: []plan.Container{{ID: "more", SandboxID: "sb"}}}, now)
	if s.hasSandbox("sb") || s.hasContainer("more") {
		t.Error("a late event restored a removed sandbox")
	}
}
