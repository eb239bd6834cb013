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

// bench is a Manager in a synctest bubble with fake probes.
type rig struct {
	t      *testing.T
	o      *Manager
	began  time.Time
	answer func(kind plan.ProbeKind, container string, at time.Duration) (outcome, time.Duration)

	mu     sync.Mutex
	runs   map[string][]time.Duration // by container/kind
	flight int
	most   int
	health map[string]plan.Health
	told   []string
	events []string
	late   []time.Duration
	missed int64
}

func inBubble(t *testing.T, opt Options, f func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, began: time.Now(), runs: map[string][]time.Duration{}, health: map[string]plan.Health{}}
		r.answer = func(plan.ProbeKind, string, time.Duration) (outcome, time.Duration) {
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
		r.o = New(opt)
		r.o.buildRunner = r.runner
		wg.Go(func() { _ = r.o.Run(ctx) })
		f(t, r)
	})
}

func (r *rig) runner(x *probe, _ *corev1.Container) func(context.Context) outcome {
	kind, name := x.Kind, x.in.watch.Name
	return func(ctx context.Context) outcome {
		at := time.Since(r.began)
		r.mu.Lock()
		key := name + "/" + string(kind)
		r.runs[key] = append(r.runs[key], at)
		r.flight++
		r.most = max(r.most, r.flight)
		a, takes := r.answer(kind, name, at)
		r.mu.Unlock()
		defer func() {
			r.mu.Lock()
			r.flight--
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
func (r *rig) watch(pod *corev1.Pod, want ...plan.ProbeTarget) {
	r.o.Watch(pod, want, func(id string, h plan.Health) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.health[id] = h
		r.told = append(
			r.told,
			fmt.Sprintf("%g %s started=%v ready=%v dead=%v", time.Since(r.began).Seconds(), id, h.Started, h.Ready, h.Failed),
		)
	}, func(reason plan.Reason) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.events = append(
			r.events,
			fmt.Sprintf("%g %s %s: %s", time.Since(r.began).Seconds(), reason.Target, reason.Code, reason.Message),
		)
	})
}

func (r *rig) at(d time.Duration) {
	r.mu.Lock()   // what the test has read before, it has read
	r.mu.Unlock() //nolint:staticcheck // an edge, nothing to protect
	time.Sleep(time.Until(r.began.Add(d)))
	synctest.Wait()
}

func (r *rig) ran(key string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, d := range r.runs[key] {
		out = append(out, fmt.Sprintf("%.2f", d.Seconds()))
	}
	return strings.Join(out, " ")
}

// running is a watch of a container that has just started.
func (r *rig) running(name string, want plan.Probes) plan.ProbeTarget {
	return plan.ProbeTarget{ID: name + "-0", Name: name, StartedAt: time.Now(), Host: "10.0.0.1", Probes: want}
}

func probed(uid string, cs ...corev1.Container) *corev1.Pod {
	p := &corev1.Pod{}
	p.UID, p.Name = types.UID(uid), uid
	p.Spec.Containers = cs
	return p
}

func web(period, failure int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(80)}},
		PeriodSeconds: period, FailureThreshold: failure, TimeoutSeconds: 1, SuccessThreshold: 1,
	}
}

func command(period, failure int32) *corev1.Probe {
	p := web(period, failure)
	p.ProbeHandler = corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"x"}}}
	return p
}

func ready(name string, p *corev1.Probe) corev1.Container {
	return corev1.Container{Name: name, ReadinessProbe: p}
}

var readiness = plan.Probes{Readiness: true}

func TestScenario22_ContainerRespondingAfter120msIsReadyWithin250ms(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, r *rig) {
		r.answer = func(_ plan.ProbeKind, _ string, at time.Duration) (outcome, time.Duration) {
			if at < 120*time.Millisecond {
				return outcome{result: Failure, output: "connection refused"}, time.Millisecond
			}
			return outcome{result: Success}, time.Millisecond
		}
		r.watch(probed("a", ready("c", web(10, 3))), r.running("c", readiness))
		r.at(250 * time.Millisecond)
		if !r.health["c-0"].Ready {
			t.Errorf("it is not ready; its probe ran at %s", r.ran("c/Readiness"))
		}
		if len(r.events) > 0 {
			t.Errorf("users are told of a start as of a failure: %v", r.events)
		}
	})
}

func TestInitialDelay(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, r *rig) {
		p := web(10, 3)
		p.InitialDelaySeconds = 7
		w := r.running("c", readiness)
		r.at(2 * time.Second) // reported later
		r.watch(probed("a", ready("c", p)), w)
		r.at(7500 * time.Millisecond)
		if got := r.ran("c/Readiness"); !strings.HasPrefix(got, "7.00") {
			t.Errorf("it ran at %s", got)
		}
	})
}

func TestProbeRunsEveryPeriodAndReportsChanges(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, r *rig) {
		r.answer = func(_ plan.ProbeKind, _ string, at time.Duration) (outcome, time.Duration) {
			if at > 30*time.Second && at < 60*time.Second {
				return outcome{result: Failure, output: at.String()}, 0
			}
			return outcome{result: Success}, 0
		}
		r.watch(probed("a", ready("c", web(2, 3))), r.running("c", readiness))
		r.at(100 * time.Second)
		runs := r.runs["c/Readiness"]
		for i := 2; i < len(runs); i++ {
			if runs[i]-runs[i-1] != 2*time.Second {
				t.Errorf("run %d came %s after the one before", i, runs[i]-runs[i-1])
			}
		}
		// Ready, three failures, one success: all else is no news.
		if len(r.told) != 5 || !strings.HasSuffix(r.told[0], "ready=true dead=false") ||
			!strings.Contains(r.told[3], "ready=false") ||
			!strings.Contains(r.told[4], "ready=true") {
			t.Errorf("told:\n%s", strings.Join(r.told, "\n"))
		}
		if n := len(r.events); n != 15 || !strings.Contains(r.events[0], "c Unhealthy: Readiness probe failed: 3") {
			t.Errorf("%d events, first %q", n, r.events[0])
		}
	})
}

func TestFailedLivenessProbeReportsOnce(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, r *rig) {
		r.answer = func(plan.ProbeKind, string, time.Duration) (outcome, time.Duration) {
			return outcome{result: Failure, output: "down"}, 0
		}
		pod := probed("a", corev1.Container{Name: "c", LivenessProbe: command(1, 3)})
		r.watch(pod, r.running("c", plan.Probes{Liveness: true}))
		r.at(20 * time.Second)
		if got := r.ran("c/Liveness"); got != "0.00 1.00 2.00 3.00" {
			t.Errorf("it ran at %s", got)
		}
		if h := r.health["c-0"]; !h.Failed || h.FailedProbe != "liveness" || h.Message != "down" {
			t.Errorf("%+v", h)
		}
		// The replacement starts from the beginning.
		w := r.running("c", plan.Probes{Liveness: true})
		w.ID = "c-1"
		r.watch(pod, w)
		r.at(20500 * time.Millisecond)
		if got := r.ran("c/Liveness"); got != "0.00 1.00 2.00 3.00 20.00" {
			t.Errorf("it ran at %s", got)
		}
	})
}

func TestStartupProbeRunsFirst(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, r *rig) {
		c := corev1.Container{Name: "c", StartupProbe: web(1, 30), LivenessProbe: web(3, 1), ReadinessProbe: web(2, 1)}
		r.answer = func(_ plan.ProbeKind, _ string, at time.Duration) (outcome, time.Duration) {
			if at < 5*time.Second {
				return outcome{result: Failure}, 0
			}
			return outcome{result: Success}, 0
		}
		pod := probed("a", c)
		r.watch(pod, r.running("c", plan.Probes{Startup: true}))
		r.at(5500 * time.Millisecond)
		if !r.health["c-0"].Started || r.ran("c/Liveness")+r.ran("c/Readiness") != "" {
			t.Fatalf("%+v; liveness at %s", r.health["c-0"], r.ran("c/Liveness"))
		}
		n := len(r.runs["c/Startup"])
		r.watch(pod, r.running("c", plan.Probes{Liveness: true, Readiness: true}))
		r.at(20 * time.Second)
		if !r.health["c-0"].Ready || len(r.runs["c/Liveness"]) < 5 {
			t.Errorf("%+v", r.health["c-0"])
		}
		if len(r.runs["c/Startup"]) != n {
			t.Error("the startup probe ran again")
		}
	})
}

func TestRemovedProbeIsCanceled(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, r *rig) {
		r.answer = func(plan.ProbeKind, string, time.Duration) (outcome, time.Duration) {
			return outcome{result: Failure, output: "too late"}, time.Hour
		}
		pod := probed("a", corev1.Container{Name: "c", LivenessProbe: web(1, 1), ReadinessProbe: web(1, 1)})
		r.watch(pod, r.running("c", plan.Probes{Liveness: true, Readiness: true}))
		r.at(500 * time.Millisecond)
		r.watch(pod, r.running("c", plan.Probes{Readiness: true})) // it is ending
		r.at(time.Second)
		if r.flight != 1 {
			t.Errorf("%d are under way", r.flight)
		}
		r.o.Forget("a")
		r.at(10 * time.Second)
		if r.flight != 0 || len(r.told)+len(r.events) > 0 {
			t.Errorf("%d are under way, told %v %v", r.flight, r.told, r.events)
		}
		if got := r.o.Statuses(t.Context(), "a"); got != nil {
			t.Errorf("reports of a pod that is forgotten: %+v", got)
		}
	})
}

func TestAgentRestartKeepsResults(t *testing.T) {
	var kept plan.Health
	pod := probed("a", corev1.Container{Name: "c", LivenessProbe: web(10, 3), ReadinessProbe: web(10, 3)})
	both := plan.Probes{Liveness: true, Readiness: true}
	inBubble(t, Options{}, func(_ *testing.T, r *rig) {
		r.answer = func(kind plan.ProbeKind, _ string, at time.Duration) (outcome, time.Duration) {
			if kind == plan.LivenessProbe && at > time.Second {
				return outcome{result: Failure, output: "x"}, 0
			}
			return outcome{result: Success}, 0
		}
		r.watch(pod, r.running("c", both))
		r.at(21 * time.Second)
		kept = r.health["c-0"]
	})
	if l := kept.StateOf(plan.LivenessProbe); !kept.Ready || kept.Failed || l.Consecutive != 2 {
		t.Fatalf("%+v", kept)
	}
	inBubble(t, Options{}, func(t *testing.T, r *rig) {
		r.answer = func(plan.ProbeKind, string, time.Duration) (outcome, time.Duration) {
			return outcome{result: Failure, output: "y"}, 0
		}
		w := r.running("c", both)
		w.StartedAt, w.Health = w.StartedAt.Add(-21*time.Second), kept
		r.watch(pod, w)
		r.at(1100 * time.Millisecond)
		for _, told := range r.told { // a failure may count at once, but nothing may flip by it
			if strings.Contains(told, "ready=false") {
				t.Errorf("told %v", r.told)
			}
		}
		if len(r.runs["c/Liveness"]) == 0 {
			t.Error("it was not probed again soon")
		}
		r.at(11 * time.Second)
		if h := r.health["c-0"]; !h.Failed || !h.Ready {
			t.Errorf("the third failure in a row: %+v", h)
		}
	})
}

func TestConcurrentProbesAreSpread(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, r *rig) {
		r.answer = func(plan.ProbeKind, string, time.Duration) (outcome, time.Duration) {
			return outcome{result: Success}, 3 * time.Millisecond
		}
		for i := range 500 {
			r.watch(probed(fmt.Sprint("p", i), ready(fmt.Sprint("c", i), web(1, 3))), r.running(fmt.Sprint("c", i), readiness))
		}
		r.at(5 * time.Second)
		r.most = 0
		runs := 0
		r.at(15 * time.Second)
		for _, x := range r.runs {
			for _, at := range x {
				if at >= 5*time.Second {
					runs++
				}
			}
		}
		if runs != 5000 || r.missed != 0 {
			t.Errorf("%d runs in 10 s, %d missed", runs, r.missed)
		}
		if r.most > 25 {
			t.Errorf("%d were under way at once", r.most)
		}
		if worst := slices.Max(r.late); worst > 0 {
			t.Errorf("one began %s late", worst)
		}
	})
}

func TestScenario21_ExecsAreLimitedAndHungOnesDelayNoOthers(t *testing.T) {
	inBubble(t, Options{MaxConcurrentExecs: 4}, func(t *testing.T, r *rig) {
		r.answer = func(_ plan.ProbeKind, name string, _ time.Duration) (outcome, time.Duration) {
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
			r.watch(probed(name, ready(name, command(2, 3))), r.running(name, readiness))
		}
		r.at(100 * time.Millisecond)
		if r.flight > 4 {
			t.Errorf("%d commands at once", r.flight)
		}
		r.at(20 * time.Second)
		for i := 12; i < 40; i++ {
			if n := len(r.runs[fmt.Sprint("good", i)+"/Readiness"]); n < 7 {
				t.Errorf("good%d was probed %d times in 20 s", i, n)
			}
		}
	})
}

// TestScenario23_WaitingDoesNotCountAgainstPod has a probe wait for its turn for
// longer than its timeout: the timeout begins when it is made.
func TestScenario23_WaitingDoesNotCountAgainstPod(t *testing.T) {
	inBubble(t, Options{MaxConcurrentExecs: 1}, func(t *testing.T, r *rig) {
		slow := &slowRuntime{takes: 400 * time.Millisecond}
		r.o.opt.Runtime = slow
		r.o.buildRunner = r.o.runner
		for i := range 10 {
			name := fmt.Sprint("c", i)
			r.watch(probed(name, ready(name, command(3, 1))), r.running(name, readiness))
		}
		r.at(60 * time.Second)
		if r.missed == 0 || slices.Max(r.late) < 3*time.Second {
			t.Fatalf("nobody had to wait: %d missed, %s late", r.missed, slices.Max(r.late))
		}
		for i := range 10 {
			if h := r.health[fmt.Sprintf("c%d-0", i)]; !h.Ready {
				t.Errorf("c%d: %+v", i, h)
			}
		}
		if len(r.events) > 0 {
			t.Errorf("%v", r.events)
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
		{"any other is a failure", slowRuntime{code: 3, out: "bad"}, outcome{result: Failure, output: "bad"}},
		{"not over in time is a failure", slowRuntime{takes: time.Hour}, outcome{result: Failure, output: `command timed out: "a b" timed out after 2s`, timedOut: true}},
		{"a container that is gone says nothing", slowRuntime{err: &plan.Error{Kind: plan.NotFound, Err: errors.New("no such")}}, outcome{containerGone: true}},
		{"a runtime that is away says nothing of the pod", slowRuntime{err: &plan.Error{Kind: plan.Unavailable, Err: errors.New("away")}}, outcome{result: Unknown, output: "away"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &exec{runtime: &c.rt, command: []string{"a", "b"}, timeout: 2 * time.Second}
				if got := e.run(t.Context()); got != c.want {
					t.Errorf("%+v, want %+v", got, c.want)
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
		t.Errorf("a busy machine counts as one that stood still: %s", s.total)
	}
	s.tick(day.Add(5*time.Second), true)
	if s.total != 3400*time.Millisecond {
		t.Errorf("it stood still for %s", s.total)
	}
	s.tick(day.Add(6*time.Second), false)
	was := s.total
	s.tick(day.Add(time.Hour), true)
	if s.total != was {
		t.Error("rest counts as standing still")
	}
	block := func(_ Sample, of Target) {
		if of.Container == "other" {
			time.Sleep(2 * time.Second) // the loop stands still, as it would with the process
		}
	}
	inBubble(t, Options{OnResult: block}, func(t *testing.T, r *rig) {
		r.answer = func(_ plan.ProbeKind, name string, _ time.Duration) (outcome, time.Duration) {
			if name == "other" {
				return outcome{result: Success}, 100 * time.Millisecond
			}
			return outcome{result: Failure, timedOut: true, output: "no answer"}, 900 * time.Millisecond
		}
		other := web(100, 1)
		other.InitialDelaySeconds = 1
		r.watch(probed("b", ready("other", other)), r.running("other", readiness))
		r.watch(
			probed("a", corev1.Container{Name: "c", LivenessProbe: web(1, 1)}),
			r.running("c", plan.Probes{Liveness: true}),
		)
		r.at(3500 * time.Millisecond)
		if r.health["c-0"].Failed ||
			!slices.ContainsFunc(r.events, func(e string) bool { return strings.Contains(e, "paused for 1.9s") }) {
			t.Errorf("%+v %v", r.health["c-0"], r.events)
		}
		r.at(10 * time.Second)
		if !r.health["c-0"].Failed {
			t.Error("it is never given up")
		}
	})
}

func TestStatuses(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, r *rig) {
		r.answer = func(_ plan.ProbeKind, _ string, at time.Duration) (outcome, time.Duration) {
			return outcome{result: Success, output: at.Truncate(time.Second).String()}, 7 * time.Millisecond
		}
		r.watch(probed("a", ready("c", web(1, 3))), r.running("c", readiness))
		r.at(10500 * time.Millisecond)
		got := r.o.Statuses(t.Context(), "a")
		if len(got) != 1 {
			t.Fatalf("%+v", got)
		}
		g := got[0]
		if g.Container != "c" || g.Passed == nil || !*g.Passed || len(g.Recent) != maxSamples || g.Recent[0].Duration != 7*time.Millisecond ||
			!g.NextRun.After(time.Now()) ||
			g.NextRun.After(time.Now().Add(time.Second)) ||
			!g.Recent[0].At.After(g.Recent[1].At) {
			t.Errorf("%+v", g)
		}
	})
}

// The heartbeat distinguishes a hang from a node without probes.
func TestRunCallsHeartbeat(t *testing.T) {
	var shown atomic.Int64
	inBubble(t, Options{Heartbeat: func() { shown.Add(1) }}, func(t *testing.T, _ *rig) {
		for range 5 {
			before := shown.Load()
			time.Sleep(idleHeartbeat + time.Second)
			if shown.Load() == before {
				t.Errorf("it showed nothing for %v", idleHeartbeat+time.Second)
			}
		}
	})
}
