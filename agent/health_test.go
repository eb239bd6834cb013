package agent

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/hostfake"
	"berth/agent/plan"
)

// fakeProber records its calls.
type fakeProber struct {
	mu        sync.Mutex
	targets   map[types.UID][]plan.ProbeTarget
	report    map[types.UID]func(string, plan.Health)
	calls     int
	forgotten []types.UID
}

func newFakeProber() *fakeProber {
	return &fakeProber{targets: map[types.UID][]plan.ProbeTarget{}, report: map[types.UID]func(string, plan.Health){}}
}

func (f *fakeProber) Watch(pod *corev1.Pod, targets []plan.ProbeTarget, health func(string, plan.Health),
	_ func(plan.Reason)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	f.targets[pod.UID], f.report[pod.UID] = targets, health
}

func (f *fakeProber) Forget(uid types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forgotten = append(f.forgotten, uid)
}

func (f *fakeProber) of(pod *corev1.Pod) ([]plan.ProbeTarget, func(string, plan.Health)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.targets[pod.UID], f.report[pod.UID]
}

func (f *fakeProber) watchCalls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

func (f *fakeProber) isForgotten(pod *corev1.Pod) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Contains(f.forgotten, pod.UID)
}

func readyIn(l *agentFixture, pod *corev1.Pod) corev1.ConditionStatus {
	s, _ := l.agent.StatusCache.Get(pod.UID)
	if s == nil {
		return ""
	}
	for _, c := range s.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status
		}
	}
	return ""
}

func TestScenario10_ReadyDoesNotFlipOnAgentRestart(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		h.prober = newFakeProber()
		pod := hostfake.PodOf("web", "a")
		c := &pod.Spec.Containers[0]
		c.StartupProbe, c.ReadinessProbe, c.LivenessProbe = &corev1.Probe{}, &corev1.Probe{}, &corev1.Probe{}
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		l.desire("file", pod)
		l.until(time.Second, "the startup probe is watched", func() bool {
			w, _ := h.prober.of(pod)
			return len(w) == 1
		})
		w, report := h.prober.of(pod)
		if w[0].Name != "a" || w[0].Probes != (plan.Probes{Startup: true}) || w[0].StartedAt.IsZero() {
			t.Errorf("%+v", w[0])
		}
		health := plan.Health{
			Started: true,
			Probes: []plan.ProbeState{{Kind: plan.StartupProbe, OK: true, Consecutive: 1, Succeeded: true,
				Phase: time.Now()}},
		}
		report(w[0].ID, health)
		l.until(time.Second, "the other probes are watched", func() bool {
			w, _ := h.prober.of(pod)
			return w[0].Probes == plan.Probes{Readiness: true, Liveness: true}
		})
		if readyIn(l, pod) != corev1.ConditionFalse {
			t.Error("the pod is ready before its readiness probe has succeeded")
		}
		health.Ready = true
		health.Probes = append(
			slices.Clone(health.Probes),
			plan.ProbeState{Kind: plan.ReadinessProbe, OK: true, Consecutive: 1, Succeeded: true, Phase: time.Now()},
		)
		report(w[0].ID, health)
		l.until(time.Second, "the pod is ready", func() bool { return readyIn(l, pod) == corev1.ConditionTrue })
		calls := h.prober.watchCalls()
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := h.prober.watchCalls() - calls; n != 0 {
			t.Errorf("got %d Watch calls without a change, want 0", n)
		}
		l.stop()

		h.prober = newFakeProber()
		l = startAgentUnadopted(t, h, hostfake.LargeNode(), l.records, "file")
		changed, stop := l.agent.StatusCache.Subscribe()
		stopWatching, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for {
				select {
				case <-stopWatching:
					return
				case <-changed:
				}
				if s := readyIn(l, pod); s != "" && s != corev1.ConditionTrue {
					t.Errorf("condition Ready is %s after the restart", s)
				}
			}
		}()
		<-l.agent.Ready()
		l.desire("file", pod)
		l.until(time.Second, "the probes are watched again", func() bool {
			w, _ := h.prober.of(pod)
			return len(w) == 1
		})
		w, _ = h.prober.of(pod)
		if w[0].Probes != (plan.Probes{Readiness: true, Liveness: true}) || !w[0].Health.Ready ||
			len(w[0].Health.Probes) != 2 {
			t.Errorf("the prober did not receive the known results: %+v", w[0])
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if readyIn(l, pod) != corev1.ConditionTrue {
			t.Error("the pod is no longer ready")
		}
		close(stopWatching)
		<-done
		stop()
		l.desire("file")
		l.until(2*time.Minute, "the prober has removed the pod", func() bool { return h.prober.isForgotten(pod) })
		l.stop()
	})
}

func TestContainerThatFailsLivenessProbeIsReplaced(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		h.prober = newFakeProber()
		pod := hostfake.PodOf("web", "a")
		pod.Spec.Containers[0].LivenessProbe = &corev1.Probe{}
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		l.desire("file", pod)
		l.until(time.Second, "the startup probe is watched", func() bool {
			w, _ := h.prober.of(pod)
			return len(w) == 1
		})
		w, report := h.prober.of(pod)
		report(w[0].ID, plan.Health{Failed: true, FailedProbe: "liveness", Message: "down"})
		l.until(2*time.Minute, "the new container is watched", func() bool {
			now, _ := h.prober.of(pod)
			return len(now) == 1 && now[0].ID != w[0].ID
		})
		now, _ := h.prober.of(pod)
		if now[0].Health.Failed {
			t.Error("the new container has the failed result of the old one")
		}
		s, _ := l.agent.StatusCache.Get(pod.UID)
		if len(s.Memory.Health) > 1 {
			t.Errorf("results of the old container are kept: %+v", s.Memory.Health)
		}
		l.stop()
	})
}
