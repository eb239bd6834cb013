package pod

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/hostfake"
	"berth/agent/plan"
)

func TestHookIsOnDiskBeforeItRuns(t *testing.T) {
	withWorkers(t, func(t *testing.T, r *workerFixture) {
		var startsAt, hooksAt []int // how many starts and hooks there were at each sync
		r.flush = func(context.Context) error {
			startsAt, hooksAt = append(startsAt, r.host.CallCount("start uid-p/a")), append(hooksAt, r.host.CallCount("hook"))
			return errors.New("disk full") // which holds nothing up
		}
		pod := hostfake.WithHooks(hostfake.PodOf("p", "a", "b"), 0, true, true)
		r.start(pod)
		r.until(time.Second, "runs", r.isRunning(pod))
		if len(startsAt) == 0 || startsAt[0] != 0 {
			t.Errorf("not synced before the start of a container with a hook, but after %v starts", startsAt)
		}
		running := len(hooksAt)
		if hooksAt[running-1] != 1 {
			t.Errorf(
				"published as ready, and last on disk after %d hooks",
				hooksAt[running-1],
			)
		}
		start, hook, next := r.host.CallTimes("start uid-p/a"), r.host.CallTimes("hook"), r.host.CallTimes("start uid-p/b")
		if len(hook) != 1 || !start[0].Before(hook[0]) || !hook[0].Before(next[0]) {
			t.Errorf("start %v, hook %v, the next one's start %v", start, hook, next)
		}
		r.terminate(pod, 10*time.Second)
		r.until(time.Second, "gone", func() bool { return r.isDone(pod) })
		if n := r.host.CallCount("hook"); n != 2 || len(hooksAt) <= running || hooksAt[running] != 1 {
			t.Errorf("%d hooks, synced after %v", n, hooksAt)
		}
	})
}

// TestReplacementIsOnDiskBeforeStop: an agent that dies in between would take the
// end of a container that ends well for the pod's success.
func TestReplacementIsOnDiskBeforeStop(t *testing.T) {
	withWorkers(t, func(t *testing.T, r *workerFixture) {
		pod := hostfake.PodOf("p", "a")
		w := r.start(pod)
		r.until(time.Second, "runs", r.isRunning(pod))
		var stops []int // how many there were at each sync
		r.flush = func(context.Context) error {
			stops = append(stops, r.host.CallCount("stop uid-p/"))
			return nil
		}
		edited := pod.DeepCopy()
		edited.Spec.Containers[0].Image = "other"
		w.Update(Desired{Pod: edited})
		r.until(time.Minute, "runs again", func() bool { return r.host.CallCount("start uid-p/a") == 2 && r.isRunning(pod)() })
		if r.host.CallCount("stop uid-p/") != 1 || len(stops) == 0 || stops[0] != 0 {
			t.Errorf("%d stops, synced after %v", r.host.CallCount("stop uid-p/"), stops)
		}
	})
}

func TestHangingHookDelaysOnlyItsPod(t *testing.T) {
	withWorkersAndSlots(t, 1, func(t *testing.T, r *workerFixture) {
		r.host.Latency = hostfake.LatencyByCall(map[string]time.Duration{"hook": 1000 * time.Hour})
		stuck, other := hostfake.WithHooks(hostfake.PodOf("stuck", "a", "b"), 0, true, true), hostfake.PodOf("other", "a")
		r.start(stuck)
		r.until(time.Second, "the hook", func() bool { return r.host.CallCount("hook") == 1 })
		r.start(other)
		r.until(time.Second, "the other runs", r.isRunning(other))
		if got := r.phase(stuck); got != corev1.PodPending || r.host.CallCount("start uid-stuck/b") > 0 {
			t.Errorf("while its hook hangs the pod is %s", got)
		}
		// The hook that hangs at the end takes the grace, and no more.
		began := time.Now()
		r.terminate(stuck, 10*time.Second)
		r.until(15*time.Second, "gone", func() bool { return r.isDone(stuck) })
		if took := time.Since(began); took < 10*time.Second || took > 13*time.Second {
			t.Errorf("it took %s", took)
		}
		if stops := r.host.CallCount("stop uid-stuck/"); stops != 1 || r.host.CallCount("hook uid-stuck/a") != 2 {
			t.Errorf("%d stops, %d hooks", stops, r.host.CallCount("hook"))
		}
	})
}

func TestFailedHookKillsItsContainer(t *testing.T) {
	withWorkers(t, func(t *testing.T, r *workerFixture) {
		r.host.ErrorBefore = func(call string, n int) error {
			if call == "hook uid-p/a" && n <= 2 {
				return &plan.Error{Err: errors.New("exit code 1")}
			}
			return nil
		}
		pod := hostfake.WithHooks(hostfake.PodOf("p", "a"), 0, true, true)
		r.start(pod)
		// The first is postStart, the second the same container's preStop.
		r.until(time.Minute, "runs", r.isRunning(pod))
		if r.reportedCount("FailedPostStartHook") != 1 || r.reportedCount("FailedPreStopHook") != 1 || r.reportedCount("Killing") != 1 {
			t.Errorf("told: %+v", r.reported)
		}
		if n := r.host.CallCount("start uid-p/a"); n != 2 {
			t.Errorf("%d starts", n)
		}
	})
}
