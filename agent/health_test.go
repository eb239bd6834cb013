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

// fakeProber notes what is asked of it.
type fakeProber struct {
	mu    sync.Mutex
	want  map[types.UID][]plan.ProbeTarget
	tell  map[types.UID]func(string, plan.Health)
	calls int
	gone  []types.UID
}

func newFakeProber() *fakeProber {
	return &fakeProber{want: map[types.UID][]plan.ProbeTarget{}, tell: map[types.UID]func(string, plan.Health){}}
}

func (f *fakeProber) Watch(pod *corev1.Pod, want []plan.ProbeTarget, health func(string, plan.Health), _ func(plan.Reason)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	f.want[pod.UID], f.tell[pod.UID] = want, health
}

func (f *fakeProber) Forget(uid types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone = append(f.gone, uid)
}

func (f *fakeProber) of(pod *corev1.Pod) ([]plan.ProbeTarget, func(string, plan.Health)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.want[pod.UID], f.tell[pod.UID]
}

func (f *fakeProber) asked() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

func (f *fakeProber) forgot(pod *corev1.Pod) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Contains(f.gone, pod.UID)
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
		l.until(time.Second, "it is watched", func() bool { w, _ := h.prober.of(pod); return len(w) == 1 })
		w, tell := h.prober.of(pod)
		if w[0].Name != "a" || w[0].Probes != (plan.Probes{Startup: true}) || w[0].StartedAt.IsZero() {
			t.Errorf("%+v", w[0])
		}
		health := plan.Health{
			Started: true,
			Probes:  []plan.ProbeState{{Kind: plan.StartupProbe, OK: true, Consecutive: 1, Succeeded: true, Phase: time.Now()}},
		}
		tell(w[0].ID, health)
		l.until(time.Second, "the others are watched", func() bool {
			w, _ := h.prober.of(pod)
			return w[0].Probes == plan.Probes{Readiness: true, Liveness: true}
		})
		if readyIn(l, pod) != corev1.ConditionFalse {
			t.Error("it is ready before its readiness probe has succeeded")
		}
		health.Ready = true
		health.Probes = append(
			slices.Clone(health.Probes),
			plan.ProbeState{Kind: plan.ReadinessProbe, OK: true, Consecutive: 1, Succeeded: true, Phase: time.Now()},
		)
		tell(w[0].ID, health)
		l.until(time.Second, "it is ready", func() bool { return readyIn(l, pod) == corev1.ConditionTrue })
		calls := h.prober.asked()
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := h.prober.asked() - calls; n != 0 {
			t.Errorf("the prober was asked %d times more for the same", n)
		}
		l.stop()

		h.prober = newFakeProber()
		l = startAgentUnadopted(t, h, hostfake.LargeNode(), l.records, "file")
		changed, stop := l.agent.StatusCache.Subscribe()
		enough, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for {
				select {
				case <-enough:
					return
				case <-changed:
				}
				if s := readyIn(l, pod); s != "" && s != corev1.ConditionTrue {
					t.Errorf("after the restart Ready is %s", s)
				}
			}
		}()
		<-l.agent.Ready()
		l.desire("file", pod)
		l.until(time.Second, "it is watched again", func() bool { w, _ := h.prober.of(pod); return len(w) == 1 })
		w, _ = h.prober.of(pod)
		if w[0].Probes != (plan.Probes{Readiness: true, Liveness: true}) || !w[0].Health.Ready || len(w[0].Health.Probes) != 2 {
			t.Errorf("the prober is not told what was known: %+v", w[0])
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if readyIn(l, pod) != corev1.ConditionTrue {
			t.Error("it is not ready any more")
		}
		close(enough)
		<-done
		stop()
		l.desire("file")
		l.until(2*time.Minute, "nobody speaks of it any more", func() bool { return h.prober.forgot(pod) })
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
		l.until(time.Second, "it is watched", func() bool { w, _ := h.prober.of(pod); return len(w) == 1 })
		w, tell := h.prober.of(pod)
		tell(w[0].ID, plan.Health{Failed: true, FailedProbe: "liveness", Message: "down"})
		l.until(2*time.Minute, "another is watched", func() bool {
			now, _ := h.prober.of(pod)
			return len(now) == 1 && now[0].ID != w[0].ID
		})
		now, _ := h.prober.of(pod)
		if now[0].Health.Failed {
			t.Error("the new one inherits the death of the old one")
		}
		s, _ := l.agent.StatusCache.Get(pod.UID)
		if len(s.Memory.Health) > 1 {
			t.Errorf("what the old one's probes said is kept: %+v", s.Memory.Health)
		}
		l.stop()
	})
}
