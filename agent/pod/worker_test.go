package pod

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/hostfake"
	"berth/agent/plan"
)

func TestPullsOfOnePodRunInParallel(t *testing.T) {
	withWorkers(t, func(t *testing.T, r *workerFixture) {
		r.host.Latency = hostfake.LatencyByCall(map[string]time.Duration{"pull": time.Minute})
		pod := hostfake.PodOf("p", "a", "b", "c")
		r.start(pod)
		r.until(61*time.Second, "the pod runs", r.isRunning(pod))
		if n := r.host.MaxConcurrent("pull"); n != 3 {
			t.Errorf("got %d concurrent pulls, want 3", n)
		}
		if n := r.startedCount.Load(); n != 1 {
			t.Errorf("got %d reported starts, want 1", n)
		}
	})
}

func TestScenario16_PodDeletedDuringPullNeverStarts(t *testing.T) {
	withWorkers(t, func(t *testing.T, r *workerFixture) {
		r.host.Latency = hostfake.LatencyByCall(map[string]time.Duration{"pull": 10 * time.Minute})
		pod := hostfake.WithConfigMap(hostfake.PodOf("p", "a"), "conf") // the ConfigMap is missing, too
		r.start(pod)
		time.Sleep(5 * time.Second)
		r.terminate(pod, 30*time.Second)
		r.until(100*time.Millisecond, "the pod is done", func() bool { return r.isDone(pod) })
		if n := r.host.CallCount("start"); n > 0 {
			t.Errorf("got %d starts, want 0", n)
		}
		if left := r.host.Remaining(pod.UID); left != "" {
			t.Errorf("left on the host: %s", left)
		}
	})
}

func TestShorterGraceReplacesLongerOne(t *testing.T) {
	withWorkers(t, func(t *testing.T, r *workerFixture) {
		r.host.Latency = hostfake.FullGracePeriod
		pod := hostfake.PodOf("p", "a")
		r.start(pod)
		r.until(time.Second, "runs", r.isRunning(pod))
		r.terminate(pod, 10*time.Minute)
		time.Sleep(10 * time.Second)
		r.terminate(pod, time.Hour) // no effect
		time.Sleep(10 * time.Second)
		if n := r.host.CallCount("stop uid-p"); n != 1 {
			t.Fatalf("got %d stops after a longer grace period, want 1", n)
		}
		r.terminate(pod, 5*time.Second)
		r.until(5*time.Second+50*time.Millisecond, "the pod is done", func() bool { return r.isDone(pod) })
		if n := r.host.CallCount("stop uid-p"); n != 2 {
			t.Errorf("got %d stops, want 2", n)
		}
	})
}

func TestCrashLoopBacksOff(t *testing.T) {
	withWorkers(t, func(t *testing.T, r *workerFixture) {
		r.host.Exits = func(string) (time.Duration, int32, bool) { return 10 * time.Millisecond, 1, true }
		pod := hostfake.PodOf("p", "a")
		r.start(pod)
		time.Sleep(25 * time.Minute)
		synctest.Wait()
		got := intervals(r.host.CallTimes("start"))
		var want []time.Duration
		for _, seconds := range []int{0, 10, 20, 40, 80, 160, 300, 300, 300} {
			want = append(want, time.Duration(seconds)*time.Second)
		}
		if !slices.Equal(got, want) {
			t.Errorf("got intervals %v between starts, want %v", got, want)
		}
		s, _ := r.statuses.Get(pod.UID)
		if w := s.Status.ContainerStatuses[0].State.Waiting; w == nil || w.Reason != "CrashLoopBackOff" {
			t.Errorf("got state %+v, want CrashLoopBackOff", s.Status.ContainerStatuses[0].State)
		}
	})
}

func TestShutdownKeepsPodAndWaitsForGoroutines(t *testing.T) {
	withWorkers(t, func(t *testing.T, r *workerFixture) {
		r.host.Latency = hostfake.LatencyByCall(map[string]time.Duration{"pull uid-p/b": time.Hour})
		pod := hostfake.PodOf("p", "a", "b")
		r.host.HasImage["p-a"] = true
		ctx, cancel := context.WithCancel(r.ctx)
		r.ctx = ctx
		r.start(pod)
		r.until(time.Second, "a runs", func() bool { return len(r.host.RunningContainers(pod.UID)) == 1 })
		cancel()
		synctest.Wait()
		if done := <-r.finished[pod.UID]; done {
			t.Error("the worker reports the pod as done")
		}
		if n := r.host.CallCount("stop"); n > 0 || len(r.host.RunningContainers(pod.UID)) != 1 {
			t.Errorf("got %d stops and running containers %v, want 0 and one", n, r.host.RunningContainers(pod.UID))
		}
		if r.host.Active["pull"] != 0 {
			t.Error("a pull is still in progress")
		}
	})
}

func TestUncertainOutcomeIsObserved(t *testing.T) {
	for _, verb := range []string{"start uid-p/a", "runSandbox uid-p"} {
		withWorkers(t, func(t *testing.T, r *workerFixture) {
			r.host.Events = nil
			r.host.ErrorAfter = func(call string, n int) error {
				if call == verb && n == 1 {
					return &plan.Error{Kind: plan.Timeout, Err: errors.New("deadline exceeded")}
				}
				return nil
			}
			pod := hostfake.PodOf("p", "a")
			r.start(pod)
			r.until(time.Second, "runs", r.isRunning(pod))
			if n, observations := r.host.CallCount(verb), r.host.CallCount("observe uid-p"); n != 1 ||
				observations != 1 {
				t.Errorf("%s: got %d calls and %d observations, want 1 each", verb, n, observations)
			}
		})
	}
}

func TestObservationOvertakenByOutcomeIsRepeated(t *testing.T) {
	withWorkers(t, func(t *testing.T, r *workerFixture) {
		r.host.Events = nil
		r.host.HasImage["p-a"] = true
		r.host.Latency = hostfake.LatencyByCall(map[string]time.Duration{
			"pull uid-p/b": 3 * time.Second, "observe uid-p": 5 * time.Second,
		})
		r.host.ErrorAfter = func(call string, n int) error {
			if call == "start uid-p/a" {
				return &plan.Error{Kind: plan.Timeout, Err: errors.New("deadline exceeded")}
			}
			return nil
		}
		pod := hostfake.PodOf("p", "a", "b")
		r.start(pod)
		r.until(11*time.Second, "runs", r.isRunning(pod))
		if n := r.host.CallCount("observe uid-p"); n != 2 {
			t.Errorf("got %d observations, want 2", n)
		}
	})
}

func TestEventDuringObservationIsKept(t *testing.T) {
	withWorkers(t, func(t *testing.T, r *workerFixture) {
		pod := hostfake.PodOf("p", "a", "b")
		w := r.start(pod)
		r.until(time.Second, "runs", r.isRunning(pod))
		r.host.SetLatency(hostfake.LatencyByCall(map[string]time.Duration{"observe uid-p": time.Second}))
		w.Notify(RuntimeEvent{Incomplete: true}) // a slow observation that reads the state Running
		synctest.Wait()
		r.host.Kill(pod.UID, "a", 1, false)
		r.until(100*time.Millisecond, "restarted", func() bool { return r.host.CallCount("start uid-p/a") == 2 })
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if s, _ := r.statuses.Get(pod.UID); s.Status.ContainerStatuses[0].RestartCount != 1 ||
			len(r.host.RunningContainers(pod.UID)) != 2 {
			t.Errorf("got %+v, want one restart", s.Status.ContainerStatuses[0])
		}
	})
}

func TestEventBurstIsCoalesced(t *testing.T) {
	withWorkers(t, func(t *testing.T, r *workerFixture) {
		pod := hostfake.PodOf("p", "a")
		w := r.start(pod)
		r.until(time.Second, "runs", r.isRunning(pod))
		r.host.SetLatency(hostfake.LatencyByCall(map[string]time.Duration{"observe": 100 * time.Millisecond}))
		for range 1000 {
			for range 10 {
				w.Notify(RuntimeEvent{Incomplete: true})
			}
			time.Sleep(time.Millisecond)
		}
		if n := r.host.CallCount("observe uid-p"); n < 5 || n > 15 {
			t.Errorf("got %d observations during a burst of events, want 5 to 15", n)
		}
		most := 0
		for range 1000 { // sent faster than the worker reads
			w.Notify(RuntimeEvent{Containers: []plan.Container{{ID: "x"}}, Incomplete: true})
			w.inbox.mu.Lock()
			most = max(most, len(w.inbox.messages.events))
			w.inbox.mu.Unlock()
		}
		if most > 65 {
			t.Errorf("got %d events in the inbox, want at most 65", most)
		}
		r.host.Kill(pod.UID, "a", 1, true)
		w.Notify(RuntimeEvent{Incomplete: true})
		r.until(time.Second, "restarted", func() bool { return r.host.CallCount("start") == 2 })
	})
}

func TestEventBurstDoesNotDelayTermination(t *testing.T) {
	withWorkers(t, func(t *testing.T, r *workerFixture) {
		r.host.Latency = hostfake.LatencyByCall(map[string]time.Duration{"observe": 100 * time.Millisecond})
		pod := hostfake.PodOf("p", "a")
		w := r.start(pod)
		r.until(time.Second, "runs", r.isRunning(pod))
		for range 20 {
			w.Notify(RuntimeEvent{Incomplete: true})
			time.Sleep(time.Millisecond)
		}
		r.terminate(pod, 0)
		r.until(50*time.Millisecond, "the pod is done", func() bool { return r.isDone(pod) })
	})
}

func TestSandboxWaitsForNetwork(t *testing.T) {
	withWorkers(t, func(t *testing.T, r *workerFixture) {
		r.host.NetworkState = plan.NetworkStatus{Message: "no conflist"}
		pod := hostfake.PodOf("p", "a")
		w := r.start(pod)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n, reported := r.host.CallCount("runSandbox"), r.reportedCount("NetworkNotReady"); n != 0 || reported != 1 {
			t.Fatalf("got %d sandboxes and %d reports, want 0 and 1", n, reported)
		}
		r.host.SetNetwork(plan.NetworkStatus{Ready: true})
		w.Sync()
		r.until(50*time.Millisecond, "runs", r.isRunning(pod))
	})
}

func TestChangedConfigMapIsProjected(t *testing.T) {
	withWorkers(t, func(t *testing.T, r *workerFixture) {
		r.setConfigMaps(map[string]string{"conf": "1"})
		pod := hostfake.WithConfigMap(hostfake.PodOf("p", "a"), "conf")
		r.start(pod)
		r.until(time.Second, "runs", r.isRunning(pod))
		r.setConfigMaps(map[string]string{"conf": "2"})
		r.until(50*time.Millisecond, "projected", func() bool { return r.host.CallCount("project uid-p/conf 2") == 1 })
		time.Sleep(time.Minute)
		if n := r.host.CallCount("project"); n != 1 {
			t.Errorf("got %d projections, want 1", n)
		}
	})
}

func TestChangedObjectsClearFailures(t *testing.T) {
	withWorkers(t, func(t *testing.T, r *workerFixture) {
		r.setConfigMaps(map[string]string{"conf": "bad"})
		var good atomic.Bool
		r.host.ErrorBefore = func(call string, _ int) error {
			if strings.HasPrefix(call, "start") && !good.Load() {
				return &plan.Error{Kind: plan.Invalid, Reason: "CreateContainerConfigError",
					Err: errors.New("no key x")}
			}
			return nil
		}
		pod := hostfake.WithConfigMap(hostfake.PodOf("p", "a"), "conf")
		r.start(pod)
		time.Sleep(10*time.Minute + 100*time.Millisecond) // the back-off has reached its maximum
		synctest.Wait()
		before := r.host.CallCount("start")
		if before < 5 || before > 20 {
			t.Errorf("got %d attempts in 10 minutes, want 5 to 20", before)
		}
		good.Store(true)
		r.setConfigMaps(map[string]string{"conf": "good"})
		r.until(50*time.Millisecond, "runs", r.isRunning(pod))
	})
}

func TestReconnectRetriesImmediately(t *testing.T) {
	withWorkers(t, func(t *testing.T, r *workerFixture) {
		var unavailable atomic.Bool
		unavailable.Store(true)
		r.host.ErrorBefore = func(call string, _ int) error {
			if hostfake.HasPrefix(call, "runSandbox", "observe uid") && unavailable.Load() {
				return &plan.Error{Kind: plan.Unavailable, Err: errors.New("connection refused")}
			}
			return nil
		}
		pod := hostfake.PodOf("p", "a")
		w := r.start(pod)
		time.Sleep(time.Minute)
		unavailable.Store(false)
		w.RuntimeReconnected()
		r.until(observeRetry+50*time.Millisecond, "runs", r.isRunning(pod))
	})
}

func TestTerminationIsOnDiskBeforeCleanup(t *testing.T) {
	withWorkers(t, func(t *testing.T, r *workerFixture) {
		pod := hostfake.PodOf("p", "a", "b")
		r.start(pod)
		r.until(time.Second, "runs", r.isRunning(pod))
		var synced time.Time
		r.flush = func(ctx context.Context) error {
			sleep(ctx, 1500*time.Millisecond)
			synced = time.Now()
			return nil
		}
		r.terminate(pod, time.Second)
		time.Sleep(time.Second)
		r.workers[pod.UID].Sync() // later syncs wait, too
		r.until(3*time.Second, "the pod is done", func() bool { return r.isDone(pod) })
		for _, verb := range []string{"stop", "removeContainer", "unmount"} {
			for _, at := range r.host.CallTimes(verb) {
				if synced.IsZero() || at.Before(synced) {
					t.Errorf("%s at %v, on disk at %v", verb, at, synced)
				}
			}
		}
	})
}

func TestIdlePodHasNoSyncPass(t *testing.T) {
	withWorkers(t, func(t *testing.T, r *workerFixture) {
		pod := hostfake.PodOf("p", "a")
		w := r.start(pod)
		r.until(time.Second, "runs", r.isRunning(pod))
		changed, stop := r.statuses.Subscribe()
		defer stop()
		was, _ := r.statuses.Get(pod.UID)
		time.Sleep(24 * time.Hour)
		if now, _ := r.statuses.Get(pod.UID); now.Syncs != was.Syncs {
			t.Errorf("got %d syncs of an idle pod in a day, want 0", now.Syncs-was.Syncs)
		}
		w.Sync()
		synctest.Wait()
		if now, _ := r.statuses.Get(pod.UID); now.Syncs != was.Syncs+1 {
			t.Error("Sync caused no sync pass")
		}
		select {
		case <-changed:
			t.Error("a sync without a change notified subscribers")
		default:
		}
	})
}

func TestReportedReasonsHaveDetail(t *testing.T) {
	withWorkers(t, func(t *testing.T, r *workerFixture) {
		pod := hostfake.PodOf("p", "a")
		r.start(pod)
		r.until(time.Second, "runs", r.isRunning(pod))
		for _, why := range r.reported {
			if why.Message == "" {
				t.Errorf("reason without a message: %+v", why)
			}
		}
		if len(r.workers[pod.UID].cancels) != 0 {
			t.Error("cancel functions of finished actions are kept")
		}
	})
}

// TestRandomFaults lets calls fail with or without effect and take a random time, depending on
// hash(seed, call, count), and then stops the faults.
func TestRandomFaults(t *testing.T) {
	const seeds = 150
	for seed := range seeds {
		withWorkers(t, func(t *testing.T, r *workerFixture) {
			var healthy atomic.Bool
			r.host.Latency = func(call string, n int) time.Duration {
				return time.Duration(hostfake.Hash(seed, call, n, "takes")%3000) * time.Millisecond
			}
			r.host.ErrorBefore = func(call string, n int) error {
				if !healthy.Load() && hostfake.Hash(seed, call, n, "fails")%5 == 0 {
					return &plan.Error{
						Kind: []plan.ErrorKind{plan.Other, plan.Unavailable, plan.Timeout}[hostfake.Hash(seed, call, n,
							"kind")%3],
						Err: errors.New("failed"),
					}
				}
				return nil
			}
			r.host.ErrorAfter = func(call string, n int) error {
				if !healthy.Load() && hostfake.Hash(seed, call, n, "loses")%5 == 0 {
					return &plan.Error{Kind: plan.Timeout, Err: errors.New("deadline exceeded")}
				}
				return nil
			}
			if seed%3 == 0 {
				r.host.Events = nil
			}
			pod := hostfake.PodOf("p", "a", "b", "c")
			pod = hostfake.WithConfigMap(pod, "conf")
			r.setConfigMaps(map[string]string{"conf": "1"})
			w := r.start(pod)
			for i := range 20 {
				time.Sleep(time.Duration(hostfake.Hash(seed, "sleep", i, "")%20000) * time.Millisecond)
				names := r.host.RunningContainers(pod.UID)
				if len(names) > 0 {
					r.host.Kill(pod.UID, names[hostfake.Hash(seed, "kill", i, "")%uint64(len(names))], int32(i%2),
						i%3 == 0)
				}
				if i%5 == 0 {
					r.setConfigMaps(map[string]string{"conf": fmt.Sprint(i)})
				}
			}
			healthy.Store(true)
			w.Notify(RuntimeEvent{Incomplete: true})
			r.until(30*time.Minute, fmt.Sprintf("seed %d: all run", seed), func() bool {
				time.Sleep(time.Second)
				return len(r.host.RunningContainers(pod.UID)) == 3 && r.phase(pod) == corev1.PodRunning
			})
			r.terminate(pod, 5*time.Second)
			r.until(5*time.Minute, fmt.Sprintf("seed %d: the pod is done", seed), func() bool { return r.isDone(pod) })
			if left := r.host.Remaining(pod.UID); left != "" {
				t.Errorf("seed %d: left on the host: %s", seed, left)
			}
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// An update that arrives before the worker has read a termination does not revert it.
func TestUpdateKeepsUnreadTermination(t *testing.T) {
	t.Parallel()
	w := &Worker{inbox: newInbox()}
	w.Update(Desired{Termination: &plan.Termination{Reason: "Evicted"}})
	w.Update(Desired{Pod: hostfake.PodOf("p", "a")})
	if m := w.inbox.take(); m.desired.Termination == nil || m.desired.Pod == nil {
		t.Errorf("got %+v, want the pod and the termination", m.desired)
	}
}

// TestRecordIsFlushedAfterCanceledWait: if the action that flushes a required record is canceled, the next action
// that requires the record flushes it, before it starts.
func TestRecordIsFlushedAfterCanceledWait(t *testing.T) {
	withWorkers(t, func(t *testing.T, r *workerFixture) {
		flushes, onDisk := 0, false
		r.flush = func(ctx context.Context) error {
			flushes++
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Second):
				onDisk = true
				return nil
			}
		}
		d := (&Worker{agent: r, log: slog.New(slog.DiscardHandler)}).newDurableRecord()
		first, cancel := context.WithCancel(r.ctx)
		var actions sync.WaitGroup
		actions.Go(func() { d.wait(first) })
		synctest.Wait()
		actions.Go(func() {
			if d.wait(r.ctx); !onDisk {
				t.Error("the second action started before the record was on disk")
			}
		})
		synctest.Wait()
		cancel()
		actions.Wait()
		if d.wait(r.ctx); flushes != 2 {
			t.Errorf("got %d flushes, want 2: a record on disk is not flushed again", flushes)
		}
	})
}
