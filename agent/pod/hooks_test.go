package pod

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/hostfake"
	"berth/agent/plan"
)

func TestHookIsOnDiskBeforeItRuns(t *testing.T) {
	withWorkers(t, func(t *testing.T, r *workerFixture) {
		var mu sync.Mutex           // the containers of a pod flush in parallel
		var startsAt, hooksAt []int // number of starts and hooks at each flush
		r.flush = func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			startsAt, hooksAt = append(startsAt, r.host.CallCount("start uid-p/a")),
				append(hooksAt, r.host.CallCount("hook"))
			return errors.New("disk full") // does not block the pod
		}
		pod := hostfake.WithHooks(hostfake.PodOf("p", "a", "b"), 0, true, true)
		r.start(pod)
		r.until(time.Second, "runs", r.isRunning(pod))
		if len(startsAt) == 0 || startsAt[0] != 0 {
			t.Errorf("container with a hook started before the flush: starts at each flush %v", startsAt)
		}
		running := len(hooksAt)
		if hooksAt[running-1] != 1 {
			t.Errorf(
				"got %d hooks before the last flush of a ready pod, want 1",
				hooksAt[running-1],
			)
		}
		start, hook, next := r.host.CallTimes("start uid-p/a"), r.host.CallTimes("hook"),
			r.host.CallTimes("start uid-p/b")
		if len(hook) != 1 || !start[0].Before(hook[0]) || !hook[0].Before(next[0]) {
			t.Errorf("wrong order: start %v, hook %v, start of the next container %v", start, hook, next)
		}
		r.terminate(pod, 10*time.Second)
		r.until(time.Second, "the pod is done", func() bool { return r.isDone(pod) })
		if n := r.host.CallCount("hook"); n != 2 || len(hooksAt) <= running || hooksAt[running] != 1 {
			t.Errorf("got %d hooks, want 2; hooks at each flush %v", n, hooksAt)
		}
	})
}

// TestReplacementIsOnDiskBeforeStop checks that a replacement is recorded before the stop. Otherwise
// an agent that is killed in between would take exit code 0 for the completion of the pod.
func TestReplacementIsOnDiskBeforeStop(t *testing.T) {
	withWorkers(t, func(t *testing.T, r *workerFixture) {
		pod := hostfake.PodOf("p", "a")
		w := r.start(pod)
		r.until(time.Second, "runs", r.isRunning(pod))
		var mu sync.Mutex
		var stops []int // number of stops at each flush
		r.flush = func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			stops = append(stops, r.host.CallCount("stop uid-p/"))
			return nil
		}
		edited := pod.DeepCopy()
		edited.Spec.Containers[0].Image = "other"
		w.Update(Desired{Pod: edited})
		r.until(time.Minute, "runs again", func() bool {
			return r.host.CallCount("start uid-p/a") == 2 && r.isRunning(pod)()
		})
		if r.host.CallCount("stop uid-p/") != 1 || len(stops) == 0 || stops[0] != 0 {
			t.Errorf("got %d stops, want 1; stops at each flush %v", r.host.CallCount("stop uid-p/"), stops)
		}
	})
}

func TestHangingHookDelaysOnlyItsPod(t *testing.T) {
	withWorkersAndSlots(t, 1, func(t *testing.T, r *workerFixture) {
		r.host.Latency = hostfake.LatencyByCall(map[string]time.Duration{"hook": 1000 * time.Hour})
		stuck, other := hostfake.WithHooks(hostfake.PodOf("stuck", "a", "b"), 0, true, true),
			hostfake.PodOf("other", "a")
		r.start(stuck)
		r.until(time.Second, "the hook runs", func() bool { return r.host.CallCount("hook") == 1 })
		r.start(other)
		r.until(time.Second, "the other pod runs", r.isRunning(other))
		if got := r.phase(stuck); got != corev1.PodPending || r.host.CallCount("start uid-stuck/b") > 0 {
			t.Errorf("got phase %s while the hook hangs, want Pending", got)
		}
		// A hanging preStop hook uses the grace period and not more.
		start := time.Now()
		r.terminate(stuck, 10*time.Second)
		r.until(15*time.Second, "the pod is done", func() bool { return r.isDone(stuck) })
		if took := time.Since(start); took < 10*time.Second || took > 13*time.Second {
			t.Errorf("termination took %s, want 10 to 13 s", took)
		}
		if stops := r.host.CallCount("stop uid-stuck/"); stops != 1 || r.host.CallCount("hook uid-stuck/a") != 2 {
			t.Errorf("got %d stops and %d hooks, want 1 and 2", stops, r.host.CallCount("hook"))
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
		// The first hook is postStart, the second preStop of the same container.
		r.until(time.Minute, "runs", r.isRunning(pod))
		if r.reportedCount("FailedPostStartHook") != 1 || r.reportedCount("FailedPreStopHook") != 1 ||
			r.reportedCount("Killing") != 1 {
			t.Errorf("got reasons %+v", r.reported)
		}
		if n := r.host.CallCount("start uid-p/a"); n != 2 {
			t.Errorf("got %d starts, want 2", n)
		}
	})
}
