package probes

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"berth/agent/plan"
)

// The probes of a kubelet start when its pod is admitted, at any phase relative to the start of the
// container. The first result therefore comes up to one period after the probe may run, and an
// unresponsive container fails after failureThreshold-1 to failureThreshold periods. These tests
// check that berth fails it between failureThreshold periods, as the spec says, and the latest time
// of a kubelet.

var kinds = map[string]corev1.ProbeHandler{
	"exec":      {Exec: &corev1.ExecAction{Command: []string{"x"}}},
	"httpGet":   {HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(80)}},
	"tcpSocket": {TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(80)}},
	"grpc":      {GRPC: &corev1.GRPCAction{Port: 80}},
}

const period = 2 * time.Second

func probeOf(h corev1.ProbeHandler, failures, delay int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:        h,
		PeriodSeconds:       int32(period / time.Second),
		FailureThreshold:    failures,
		SuccessThreshold:    1,
		TimeoutSeconds:      9,
		InitialDelaySeconds: delay,
	}
}

// latest is when a kubelet has given up at the latest: its first run begins just
// before a period is over; a run that outlasts its period is followed at once.
func latest(failures int32, takes time.Duration) time.Duration {
	return period + takes + time.Duration(failures-1)*max(period, takes)
}

// each runs f for every kind, threshold and length of a run.
func each(t *testing.T, f func(t *testing.T, h corev1.ProbeHandler, failures int32, takes time.Duration)) {
	t.Helper()
	for kind, h := range kinds {
		for failures := int32(1); failures <= 4; failures++ {
			for _, takes := range []time.Duration{time.Millisecond, 700 * time.Millisecond, 1900 * time.Millisecond, 5 * time.Second} {
				t.Run(
					fmt.Sprintf("%s fails %d times after %s", kind, failures, takes),
					func(t *testing.T) { f(t, h, failures, takes) },
				)
			}
		}
	}
}

// dead is when a container was reported dead. Zero: it was not.
func (r *rig) dead() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, told := range r.told {
		if at, ok := strings.CutSuffix(told, "dead=true"); ok {
			var s float64
			if _, err := fmt.Sscan(at, &s); err != nil {
				r.t.Fatal(err)
			}
			return time.Duration(s * float64(time.Second))
		}
	}
	return 0
}

func (r *rig) deadBetween(least, most time.Duration) {
	r.t.Helper()
	const dust = time.Microsecond // times are formatted
	if at := r.dead(); at < least-dust || at > most+dust {
		r.t.Errorf("failed after %s, not between %s and %s; events %v", at, least, most, r.told)
	}
}

func fails(takes time.Duration) func(plan.ProbeKind, string, time.Duration) (outcome, time.Duration) {
	return func(plan.ProbeKind, string, time.Duration) (outcome, time.Duration) {
		return outcome{result: Failure, output: "x"}, takes
	}
}

func TestUnresponsiveContainerFailsOnTime(t *testing.T) {
	each(t, func(t *testing.T, h corev1.ProbeHandler, failures int32, takes time.Duration) {
		for _, delay := range []int32{0, 7} {
			for _, kind := range []plan.ProbeKind{plan.LivenessProbe, plan.StartupProbe} {
				inBubble(t, Options{}, func(_ *testing.T, r *rig) {
					r.answer = fails(takes)
					c, want := corev1.Container{Name: "c", LivenessProbe: probeOf(h, failures, delay)}, plan.Probes{Liveness: true}
					if kind == plan.StartupProbe {
						c, want = corev1.Container{Name: "c", StartupProbe: probeOf(h, failures, delay)}, plan.Probes{Startup: true}
					}
					r.watch(probed("a", c), r.running("c", want))
					r.at(time.Minute)
					from := time.Duration(delay) * time.Second
					r.deadBetween(from+time.Duration(failures)*period, from+latest(failures, takes))
				})
			}
		}
	})
}

// TestLivenessStartsAfterStartupProbe: at once, and its initial
// delay is counted from the container's start.
func TestLivenessStartsAfterStartupProbe(t *testing.T) {
	each(t, func(t *testing.T, h corev1.ProbeHandler, failures int32, takes time.Duration) {
		for _, delay := range []int32{0, 3, 20} {
			inBubble(t, Options{}, func(t *testing.T, r *rig) {
				var first time.Duration
				r.answer = func(kind plan.ProbeKind, _ string, at time.Duration) (outcome, time.Duration) {
					if kind == plan.StartupProbe {
						return outcome{result: map[bool]Result{true: Success, false: Failure}[at > 10*time.Second]}, time.Millisecond
					}
					if first == 0 {
						first = at
					}
					return outcome{result: Failure, output: "x"}, takes
				}
				pod := probed(
					"a",
					corev1.Container{Name: "c", StartupProbe: probeOf(h, 30, 0), LivenessProbe: probeOf(h, failures, delay)},
				)
				w := r.running("c", plan.Probes{Startup: true})
				r.watch(pod, w)
				var started time.Duration
				for step := 9 * time.Second; started == 0 && step < 15*time.Second; step += 5 * time.Millisecond {
					r.at(step)
					if r.health["c-0"].Started {
						started = step
						w.Probes = plan.Probes{Liveness: true} // as the plan decides then
						r.watch(pod, w)
					}
				}
				r.at(90 * time.Second)
				from := max(started, time.Duration(delay)*time.Second)
				if started == 0 || first != from {
					t.Errorf("it first ran after %s, wanted %s", first, from)
				}
				r.deadBetween(from+time.Duration(failures)*period, from+latest(failures, takes))
			})
		}
	})
}

// TestContainerThatStopsRespondingFailsOnTime: it has answered, and stops.
func TestContainerThatStopsRespondingFailsOnTime(t *testing.T) {
	each(t, func(t *testing.T, h corev1.ProbeHandler, failures int32, takes time.Duration) {
		for _, last := range []time.Duration{10 * time.Millisecond, 7300 * time.Millisecond} {
			inBubble(t, Options{}, func(_ *testing.T, r *rig) {
				r.answer = func(_ plan.ProbeKind, _ string, at time.Duration) (outcome, time.Duration) {
					if at < last {
						return outcome{result: Success}, time.Millisecond
					}
					return outcome{result: Failure, output: "x"}, takes
				}
				r.watch(
					probed("a", corev1.Container{Name: "c", LivenessProbe: probeOf(h, failures, 0)}),
					r.running("c", plan.Probes{Liveness: true}),
				)
				r.at(time.Minute)
				r.deadBetween(last+time.Duration(failures-1)*period, last+latest(failures, takes)+time.Millisecond)
			})
		}
	})
}

// A restart does not fail a container earlier, and delays it only by the duration of the restart,
// while a kubelet restarts the count.
func TestAgentRestartFailsNoContainerEarlier(t *testing.T) {
	each(t, func(t *testing.T, h corev1.ProbeHandler, failures int32, takes time.Duration) {
		for _, restart := range []time.Duration{time.Second, 2100 * time.Millisecond, 3900 * time.Millisecond, 5 * time.Second} {
			pod := probed("a", corev1.Container{Name: "c", LivenessProbe: probeOf(h, failures, 0)})
			var kept plan.Health
			inBubble(t, Options{}, func(_ *testing.T, r *rig) {
				r.answer = fails(takes)
				r.watch(pod, r.running("c", plan.Probes{Liveness: true}))
				r.at(restart)
				kept = r.health["c-0"]
			})
			if kept.Failed {
				continue
			}
			inBubble(t, Options{}, func(_ *testing.T, r *rig) {
				r.answer = fails(takes)
				w := r.running("c", plan.Probes{Liveness: true})
				w.Health = kept
				r.at(restart)
				r.watch(pod, w)
				r.at(90 * time.Second)
				r.deadBetween(time.Duration(failures)*period, restart+latest(failures, takes))
			})
		}
	})
}
