package probes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"berth/agent/plan"
)

// managerTest is a Manager in a synctest bubble with fake probes.
type managerTest struct {
	t       *testing.T
	manager *Manager
	start   time.Time
	respond func(kind plan.ProbeKind, container string, at time.Duration) (outcome, time.Duration)

	mu        sync.Mutex
	runs      map[string][]time.Duration // by container/kind
	active    int
	maxActive int
	health    map[string]plan.Health
	changes   []string
	events    []string
	late      []time.Duration
	missed    int64
}

// withManager runs a test with a Manager in a synctest bubble.
func withManager(t *testing.T, opt Options, f func(t *testing.T, r *managerTest)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &managerTest{t: t, start: time.Now(), runs: map[string][]time.Duration{}, health: map[string]plan.Health{}}
		r.respond = func(plan.ProbeKind, string, time.Duration) (outcome, time.Duration) {
			return outcome{result: Success}, 0
		}
		opt.OnStart = func(late time.Duration, missed int64) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.late, r.missed = append(r.late, late), r.missed+missed
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		r.manager = New(opt)
		r.manager.buildRunner = r.runner
		wg.Go(func() { _ = r.manager.Run(ctx) })
		f(t, r)
	})
}

func (r *managerTest) runner(x *probe, _ *corev1.Container) func(context.Context) outcome {
	kind, name := x.Kind, x.in.watch.Name
	return func(ctx context.Context) outcome {
		at := time.Since(r.start)
		r.mu.Lock()
		key := name + "/" + string(kind)
		r.runs[key] = append(r.runs[key], at)
		r.active++
		r.maxActive = max(r.maxActive, r.active)
		a, takes := r.respond(kind, name, at)
		r.mu.Unlock()
		defer func() {
			r.mu.Lock()
			r.active--
			r.mu.Unlock()
		}()
		select {
		case <-time.After(takes):
			return a
		case <-ctx.Done():
			return outcome{containerGone: true}
		}
	}
}

// watch sets the probes of one pod.
func (r *managerTest) watch(pod *corev1.Pod, want ...plan.ProbeTarget) {
	r.manager.Watch(pod, want, func(id string, h plan.Health) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.health[id] = h
		r.changes = append(
			r.changes,
			fmt.Sprintf("%g %s started=%v ready=%v dead=%v", time.Since(r.start).Seconds(), id, h.Started, h.Ready,
				h.Failed),
		)
	}, func(reason plan.Reason) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.events = append(
			r.events,
			fmt.Sprintf("%g %s %s: %s", time.Since(r.start).Seconds(), reason.Target, reason.Code, reason.Message),
		)
	})
}

// advanceTo advances the time to d after the start.
func (r *managerTest) advanceTo(d time.Duration) {
	r.mu.Lock()   // orders reads of the test before later writes of probes
	r.mu.Unlock() //nolint:staticcheck // a happens-before edge, no critical section
	time.Sleep(time.Until(r.start.Add(d)))
	synctest.Wait()
}

// runTimes returns the times of the runs of a probe in seconds.
func (r *managerTest) runTimes(key string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, d := range r.runs[key] {
		out = append(out, fmt.Sprintf("%.2f", d.Seconds()))
	}
	return strings.Join(out, " ")
}

// running returns the target of a container that has just started.
func (r *managerTest) running(name string, want plan.Probes) plan.ProbeTarget {
	return plan.ProbeTarget{ID: name + "-0", Name: name, StartedAt: time.Now(), Host: "10.0.0.1", Probes: want}
}

// podWith returns a pod with the containers.
func podWith(uid string, cs ...corev1.Container) *corev1.Pod {
	p := &corev1.Pod{}
	p.UID, p.Name = types.UID(uid), uid
	p.Spec.Containers = cs
	return p
}

func httpProbe(period, failure int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(80)}},
		PeriodSeconds: period, FailureThreshold: failure, TimeoutSeconds: 1, SuccessThreshold: 1,
	}
}

func execProbe(period, failure int32) *corev1.Probe {
	p := httpProbe(period, failure)
	p.ProbeHandler = corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"x"}}}
	return p
}

func withReadinessProbe(name string, p *corev1.Probe) corev1.Container {
	return corev1.Container{Name: name, ReadinessProbe: p}
}

var readiness = plan.Probes{Readiness: true}

func TestScenario22_ContainerRespondingAfter120msIsReadyWithin250ms(t *testing.T) {
	withManager(t, Options{}, func(t *testing.T, r *managerTest) {
		r.respond = func(_ plan.ProbeKind, _ string, at time.Duration) (outcome, time.Duration) {
			if at < 120*time.Millisecond {
				return outcome{result: Failure, output: "connection refused"}, time.Millisecond
			}
			return outcome{result: Success}, time.Millisecond
		}
		r.watch(podWith("a", withReadinessProbe("c", httpProbe(10, 3))), r.running("c", readiness))
		r.advanceTo(250 * time.Millisecond)
		if !r.health["c-0"].Ready {
			t.Errorf("the container is not ready; its probe ran at %s", r.runTimes("c/Readiness"))
		}
		if len(r.events) > 0 {
			t.Errorf("got events %v during startup, want none", r.events)
		}
	})
}

func TestInitialDelay(t *testing.T) {
	withManager(t, Options{}, func(t *testing.T, r *managerTest) {
		p := httpProbe(10, 3)
		p.InitialDelaySeconds = 7
		w := r.running("c", readiness)
		r.advanceTo(2 * time.Second) // reported later
		r.watch(podWith("a", withReadinessProbe("c", p)), w)
		r.advanceTo(7500 * time.Millisecond)
		if got := r.runTimes("c/Readiness"); !strings.HasPrefix(got, "7.00") {
			t.Errorf("the probe ran at %s", got)
		}
	})
}

func TestProbeRunsEveryPeriodAndReportsChanges(t *testing.T) {
	withManager(t, Options{}, func(t *testing.T, r *managerTest) {
		r.respond = func(_ plan.ProbeKind, _ string, at time.Duration) (outcome, time.Duration) {
			if at > 30*time.Second && at < 60*time.Second {
				return outcome{result: Failure, output: at.String()}, 0
			}
			return outcome{result: Success}, 0
		}
		r.watch(podWith("a", withReadinessProbe("c", httpProbe(2, 3))), r.running("c", readiness))
		r.advanceTo(100 * time.Second)
		runs := r.runs["c/Readiness"]
		for i := 2; i < len(runs); i++ {
			if runs[i]-runs[i-1] != 2*time.Second {
				t.Errorf("run %d started %s after the previous one, want 2s", i, runs[i]-runs[i-1])
			}
		}
		// Ready, three failures, one success. Other results change nothing.
		if len(r.changes) != 5 || !strings.HasSuffix(r.changes[0], "ready=true dead=false") ||
			!strings.Contains(r.changes[3], "ready=false") ||
			!strings.Contains(r.changes[4], "ready=true") {
			t.Errorf("got health changes:\n%s", strings.Join(r.changes, "\n"))
		}
		if n := len(r.events); n != 15 || !strings.Contains(r.events[0], "c Unhealthy: Readiness probe failed: 3") {
			t.Errorf("got %d events, want 15; the first is %q", n, r.events[0])
		}
	})
}

func TestFailedLivenessProbeReportsOnce(t *testing.T) {
	withManager(t, Options{}, func(t *testing.T, r *managerTest) {
		r.respond = func(plan.ProbeKind, string, time.Duration) (outcome, time.Duration) {
			return outcome{result: Failure, output: "down"}, 0
		}
		pod := podWith("a", corev1.Container{Name: "c", LivenessProbe: execProbe(1, 3)})
		r.watch(pod, r.running("c", plan.Probes{Liveness: true}))
		r.advanceTo(20 * time.Second)
		if got := r.runTimes("c/Liveness"); got != "0.00 1.00 2.00 3.00" {
			t.Errorf("the probe ran at %s", got)
		}
		if h := r.health["c-0"]; !h.Failed || h.FailedProbe != "liveness" || h.Message != "down" {
			t.Errorf("%+v", h)
		}
		// The new container starts with a new state.
		w := r.running("c", plan.Probes{Liveness: true})
		w.ID = "c-1"
		r.watch(pod, w)
		r.advanceTo(20500 * time.Millisecond)
		if got := r.runTimes("c/Liveness"); got != "0.00 1.00 2.00 3.00 20.00" {
			t.Errorf("the probe ran at %s", got)
		}
	})
}

func TestStartupProbeRunsFirst(t *testing.T) {
	withManager(t, Options{}, func(t *testing.T, r *managerTest) {
		c := corev1.Container{Name: "c", StartupProbe: httpProbe(1, 30), LivenessProbe: httpProbe(3, 1),
			ReadinessProbe: httpProbe(2, 1)}
		r.respond = func(_ plan.ProbeKind, _ string, at time.Duration) (outcome, time.Duration) {
			if at < 5*time.Second {
				return outcome{result: Failure}, 0
			}
			return outcome{result: Success}, 0
		}
		pod := podWith("a", c)
		r.watch(pod, r.running("c", plan.Probes{Startup: true}))
		r.advanceTo(5500 * time.Millisecond)
		if !r.health["c-0"].Started || r.runTimes("c/Liveness")+r.runTimes("c/Readiness") != "" {
			t.Fatalf("got %+v, want started; liveness ran at %s", r.health["c-0"], r.runTimes("c/Liveness"))
		}
		n := len(r.runs["c/Startup"])
		r.watch(pod, r.running("c", plan.Probes{Liveness: true, Readiness: true}))
		r.advanceTo(20 * time.Second)
		if !r.health["c-0"].Ready || len(r.runs["c/Liveness"]) < 5 {
			t.Errorf("%+v", r.health["c-0"])
		}
		if len(r.runs["c/Startup"]) != n {
			t.Error("the startup probe ran again")
		}
	})
}

func TestRemovedProbeIsCanceled(t *testing.T) {
	withManager(t, Options{}, func(t *testing.T, r *managerTest) {
		r.respond = func(plan.ProbeKind, string, time.Duration) (outcome, time.Duration) {
			return outcome{result: Failure, output: "too late"}, time.Hour
		}
		pod := podWith("a", corev1.Container{Name: "c", LivenessProbe: httpProbe(1, 1),
			ReadinessProbe: httpProbe(1, 1)})
		r.watch(pod, r.running("c", plan.Probes{Liveness: true, Readiness: true}))
		r.advanceTo(500 * time.Millisecond)
		r.watch(pod, r.running("c", plan.Probes{Readiness: true})) // the container is terminating
		r.advanceTo(time.Second)
		if r.active != 1 {
			t.Errorf("got %d active probes, want 1", r.active)
		}
		r.manager.Forget("a")
		r.advanceTo(10 * time.Second)
		if r.active != 0 || len(r.changes)+len(r.events) > 0 {
			t.Errorf("got %d active probes, changes %v and events %v, want none", r.active, r.changes, r.events)
		}
		if got := r.manager.Statuses(t.Context(), "a"); got != nil {
			t.Errorf("got statuses %+v of a removed pod, want none", got)
		}
	})
}

func TestAgentRestartKeepsResults(t *testing.T) {
	var kept plan.Health
	pod := podWith("a", corev1.Container{Name: "c", LivenessProbe: httpProbe(10, 3), ReadinessProbe: httpProbe(10, 3)})
	both := plan.Probes{Liveness: true, Readiness: true}
	withManager(t, Options{}, func(_ *testing.T, r *managerTest) {
		r.respond = func(kind plan.ProbeKind, _ string, at time.Duration) (outcome, time.Duration) {
			if kind == plan.LivenessProbe && at > time.Second {
				return outcome{result: Failure, output: "x"}, 0
			}
			return outcome{result: Success}, 0
		}
		r.watch(pod, r.running("c", both))
		r.advanceTo(21 * time.Second)
		kept = r.health["c-0"]
	})
	if l := kept.StateOf(plan.LivenessProbe); !kept.Ready || kept.Failed || l.Consecutive != 2 {
		t.Fatalf("%+v", kept)
	}
	withManager(t, Options{}, func(t *testing.T, r *managerTest) {
		r.respond = func(plan.ProbeKind, string, time.Duration) (outcome, time.Duration) {
			return outcome{result: Failure, output: "y"}, 0
		}
		w := r.running("c", both)
		w.StartedAt, w.Health = w.StartedAt.Add(-21*time.Second), kept
		r.watch(pod, w)
		r.advanceTo(1100 * time.Millisecond)
		for _, change := range r.changes { // a failure may count immediately, but must not change the result
			if strings.Contains(change, "ready=false") {
				t.Errorf("got health changes %v, want none to unready", r.changes)
			}
		}
		if len(r.runs["c/Liveness"]) == 0 {
			t.Error("the probe did not run soon after the restart")
		}
		r.advanceTo(11 * time.Second)
		if h := r.health["c-0"]; !h.Failed || !h.Ready {
			t.Errorf("got %+v after the third consecutive failure, want failed", h)
		}
	})
}

func TestConcurrentProbesAreSpread(t *testing.T) {
	withManager(t, Options{}, func(t *testing.T, r *managerTest) {
		r.respond = func(plan.ProbeKind, string, time.Duration) (outcome, time.Duration) {
			return outcome{result: Success}, 3 * time.Millisecond
		}
		for i := range 500 {
			r.watch(podWith(fmt.Sprint("p", i), withReadinessProbe(fmt.Sprint("c", i), httpProbe(1, 3))),
				r.running(fmt.Sprint("c", i), readiness))
		}
		r.advanceTo(5 * time.Second)
		r.maxActive = 0
		runs := 0
		r.advanceTo(15 * time.Second)
		for _, x := range r.runs {
			for _, at := range x {
				if at >= 5*time.Second {
					runs++
				}
			}
		}
		if runs != 5000 || r.missed != 0 {
			t.Errorf("got %d runs in 10 s and %d missed, want 5000 and 0", runs, r.missed)
		}
		if r.maxActive > 25 {
			t.Errorf("got %d concurrent probes, want at most 25", r.maxActive)
		}
		if worst := slices.Max(r.late); worst > 0 {
			t.Errorf("a probe started %s late", worst)
		}
	})
}

func TestScenario21_ExecsAreLimitedAndHungOnesDelayNoOthers(t *testing.T) {
	withManager(t, Options{MaxConcurrentExecs: 4}, func(t *testing.T, r *managerTest) {
		r.respond = func(_ plan.ProbeKind, name string, _ time.Duration) (outcome, time.Duration) {
			if strings.HasPrefix(name, "hang") {
				return outcome{result: Failure, timedOut: true}, 50 * time.Second
			}
			return outcome{result: Success}, 20 * time.Millisecond
		}
		for i := range 40 {
			name := fmt.Sprint("good", i)
			if i < 12 {
				name = fmt.Sprint("hang", i)
			}
			r.watch(podWith(name, withReadinessProbe(name, execProbe(2, 3))), r.running(name, readiness))
		}
		r.advanceTo(100 * time.Millisecond)
		if r.active > 4 {
			t.Errorf("got %d concurrent execs, want at most 4", r.active)
		}
		r.advanceTo(20 * time.Second)
		for i := 12; i < 40; i++ {
			if n := len(r.runs[fmt.Sprint("good", i)+"/Readiness"]); n < 7 {
				t.Errorf("good%d: got %d runs in 20 s, want at least 7", i, n)
			}
		}
	})
}

// TestScenario23_WaitingDoesNotCountAgainstPod lets probes wait for a worker for longer than their
// timeout. The timeout starts with the run.
func TestScenario23_WaitingDoesNotCountAgainstPod(t *testing.T) {
	withManager(t, Options{MaxConcurrentExecs: 1}, func(t *testing.T, r *managerTest) {
		slow := &slowRuntime{takes: 400 * time.Millisecond}
		r.manager.opt.Runtime = slow
		r.manager.buildRunner = r.manager.runner
		for i := range 10 {
			name := fmt.Sprint("c", i)
			r.watch(podWith(name, withReadinessProbe(name, execProbe(3, 1))), r.running(name, readiness))
		}
		r.advanceTo(60 * time.Second)
		if r.missed == 0 || slices.Max(r.late) < 3*time.Second {
			t.Fatalf("no probe had to wait: %d missed, %s late", r.missed, slices.Max(r.late))
		}
		for i := range 10 {
			if h := r.health[fmt.Sprintf("c%d-0", i)]; !h.Ready {
				t.Errorf("c%d: %+v", i, h)
			}
		}
		if len(r.events) > 0 {
			t.Errorf("got events %v, want none", r.events)
		}
	})
}

// slowRuntime runs commands that succeed after a while.
type slowRuntime struct {
	takes time.Duration
	err   error
	code  int32
	out   string
}

func (s *slowRuntime) ExecSync(
	ctx context.Context,
	_ string,
	_ []string,
	timeout time.Duration,
) ([]byte, []byte, int32, error) {
	select {
	case <-ctx.Done():
		return nil, nil, 0, ctx.Err()
	case <-time.After(min(s.takes, timeout)):
	}
	if s.takes > timeout {
		return nil, nil, 0, &plan.Error{Kind: plan.Timeout, Err: errors.New("too late")}
	}
	return []byte(s.out), nil, s.code, s.err
}

func TestExecOutcomes(t *testing.T) {
	for _, c := range []struct {
		name string
		rt   slowRuntime
		want outcome
	}{
		{"exit code 0 is a success", slowRuntime{out: "fine"}, outcome{result: Success, output: "fine"}},
		{"any other exit code is a failure", slowRuntime{code: 3, out: "bad"}, outcome{result: Failure, output: "bad"}},
		{"a timeout is a failure", slowRuntime{takes: time.Hour},
			outcome{result: Failure, output: `command timed out: "a b" timed out after 2s`, timedOut: true}},
		{"a missing container has no result",
			slowRuntime{err: &plan.Error{Kind: plan.NotFound, Err: errors.New("no such")}},
			outcome{containerGone: true}},
		{"an unavailable runtime has an unknown result",
			slowRuntime{err: &plan.Error{Kind: plan.Unavailable, Err: errors.New("unavailable")}},
			outcome{result: Unknown, output: "unavailable"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &exec{runtime: &c.rt, command: []string{"a", "b"}, timeout: 2 * time.Second}
				if got := e.run(t.Context()); got != c.want {
					t.Errorf("got %+v, want %+v", got, c.want)
				}
			})
		})
	}
}

func TestPausedNodeDoesNotCountAgainstPod(t *testing.T) {
	s := pauses{}
	s.tick(day, true)
	for i := 1; i <= 10; i++ {
		s.tick(day.Add(time.Duration(i)*150*time.Millisecond), true)
	}
	if s.total != 0 {
		t.Errorf("got pause %s on a busy machine, want 0", s.total)
	}
	s.tick(day.Add(5*time.Second), true)
	if s.total != 3400*time.Millisecond {
		t.Errorf("got pause %s, want 3.4s", s.total)
	}
	s.tick(day.Add(6*time.Second), false)
	was := s.total
	s.tick(day.Add(time.Hour), true)
	if s.total != was {
		t.Error("idle time counts as a pause")
	}
	block := func(_ Sample, of Target) {
		if of.Container == "other" {
			time.Sleep(2 * time.Second) // blocks the loop like a paused process
		}
	}
	withManager(t, Options{OnResult: block}, func(t *testing.T, r *managerTest) {
		r.respond = func(_ plan.ProbeKind, name string, _ time.Duration) (outcome, time.Duration) {
			if name == "other" {
				return outcome{result: Success}, 100 * time.Millisecond
			}
			return outcome{result: Failure, timedOut: true, output: "no answer"}, 900 * time.Millisecond
		}
		other := httpProbe(100, 1)
		other.InitialDelaySeconds = 1
		r.watch(podWith("b", withReadinessProbe("other", other)), r.running("other", readiness))
		r.watch(
			podWith("a", corev1.Container{Name: "c", LivenessProbe: httpProbe(1, 1)}),
			r.running("c", plan.Probes{Liveness: true}),
		)
		r.advanceTo(3500 * time.Millisecond)
		if r.health["c-0"].Failed ||
			!slices.ContainsFunc(r.events, func(e string) bool { return strings.Contains(e, "paused for 1.9s") }) {
			t.Errorf("%+v %v", r.health["c-0"], r.events)
		}
		r.advanceTo(10 * time.Second)
		if !r.health["c-0"].Failed {
			t.Error("the container did not fail after the pause")
		}
	})
}

func TestStatuses(t *testing.T) {
	withManager(t, Options{}, func(t *testing.T, r *managerTest) {
		r.respond = func(_ plan.ProbeKind, _ string, at time.Duration) (outcome, time.Duration) {
			return outcome{result: Success, output: at.Truncate(time.Second).String()}, 7 * time.Millisecond
		}
		r.watch(podWith("a", withReadinessProbe("c", httpProbe(1, 3))), r.running("c", readiness))
		r.advanceTo(10500 * time.Millisecond)
		got := r.manager.Statuses(t.Context(), "a")
		if len(got) != 1 {
			t.Fatalf("%+v", got)
		}
		g := got[0]
		if g.Container != "c" || g.Passed == nil || !*g.Passed || len(g.Recent) != maxSamples ||
			g.Recent[0].Duration != 7*time.Millisecond ||
			!g.NextRun.After(time.Now()) ||
			g.NextRun.After(time.Now().Add(time.Second)) ||
			!g.Recent[0].At.After(g.Recent[1].At) {
			t.Errorf("%+v", g)
		}
	})
}

// The heartbeat distinguishes a hang from a node without probes.
func TestRunCallsHeartbeat(t *testing.T) {
	var heartbeats atomic.Int64
	withManager(t, Options{Heartbeat: func() { heartbeats.Add(1) }}, func(t *testing.T, _ *managerTest) {
		for range 5 {
			before := heartbeats.Load()
			time.Sleep(idleHeartbeat + time.Second)
			if heartbeats.Load() == before {
				t.Errorf("no heartbeat for %v", idleHeartbeat+time.Second)
			}
		}
	})
}
