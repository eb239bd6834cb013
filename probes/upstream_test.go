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

// latest returns the latest time at which a kubelet fails a container: its first run starts just
// before the end of a period, and a run longer than the period is followed by the next one
// immediately.
func latest(failures int32, takes time.Duration) time.Duration {
	return period + takes + time.Duration(failures-1)*max(period, takes)
}

// forEachProbe runs f for every probe handler, threshold and duration of a run.
func forEachProbe(t *testing.T, f func(t *testing.T, h corev1.ProbeHandler, failures int32, takes time.Duration)) {
	t.Helper()
	for kind, h := range kinds {
		for failures := int32(1); failures <= 4; failures++ {
			for _, takes := range []time.Duration{time.Millisecond, 700 * time.Millisecond, 1900 * time.Millisecond,
				5 * time.Second} {
				t.Run(
					fmt.Sprintf("%s fails %d times after %s", kind, failures, takes),
					func(t *testing.T) { f(t, h, failures, takes) },
				)
			}
		}
	}
}

// failedAt returns when the container was reported as failed. Zero: it was not.
func (r *managerTest) failedAt() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, change := range r.changes {
		if at, ok := strings.CutSuffix(change, "dead=true"); ok {
			var s float64
			if _, err := fmt.Sscan(at, &s); err != nil {
				r.t.Fatal(err)
			}
			return time.Duration(s * float64(time.Second))
		}
	}
	return 0
}

func (r *managerTest) expectFailedBetween(least, most time.Duration) {
	r.t.Helper()
	const tolerance = time.Microsecond // rounding of formatted times
	if at := r.failedAt(); at < least-tolerance || at > most+tolerance {
		r.t.Errorf("failed after %s, want between %s and %s; changes %v", at, least, most, r.changes)
	}
}

func alwaysFail(takes time.Duration) func(plan.ProbeKind, string, time.Duration) (outcome, time.Duration) {
	return func(plan.ProbeKind, string, time.Duration) (outcome, time.Duration) {
		return outcome{result: Failure, output: "x"}, takes
	}
}

func TestUnresponsiveContainerFailsOnTime(t *testing.T) {
	forEachProbe(t, func(t *testing.T, h corev1.ProbeHandler, failures int32, takes time.Duration) {
		for _, delay := range []int32{0, 7} {
			for _, kind := range []plan.ProbeKind{plan.LivenessProbe, plan.StartupProbe} {
				withManager(t, Options{}, func(_ *testing.T, r *managerTest) {
					r.respond = alwaysFail(takes)
					c, want := corev1.Container{Name: "c", LivenessProbe: probeOf(h, failures, delay)},
						plan.Probes{Liveness: true}
					if kind == plan.StartupProbe {
						c, want = corev1.Container{Name: "c", StartupProbe: probeOf(h, failures, delay)},
							plan.Probes{Startup: true}
					}
					r.watch(podWith("a", c), r.running("c", want))
					r.advanceTo(time.Minute)
					from := time.Duration(delay) * time.Second
					r.expectFailedBetween(from+time.Duration(failures)*period, from+latest(failures, takes))
				})
			}
		}
	})
}

// TestLivenessStartsAfterStartupProbe checks that the liveness probe starts immediately after the
// startup probe. Its initial delay is counted from the start of the container.
func TestLivenessStartsAfterStartupProbe(t *testing.T) {
	forEachProbe(t, func(t *testing.T, h corev1.ProbeHandler, failures int32, takes time.Duration) {
		for _, delay := range []int32{0, 3, 20} {
			withManager(t, Options{}, func(t *testing.T, r *managerTest) {
				var first time.Duration
				r.respond = func(kind plan.ProbeKind, _ string, at time.Duration) (outcome, time.Duration) {
					if kind == plan.StartupProbe {
						return outcome{result: map[bool]Result{true: Success, false: Failure}[at > 10*time.Second]},
							time.Millisecond
					}
					if first == 0 {
						first = at
					}
					return outcome{result: Failure, output: "x"}, takes
				}
				pod := podWith(
					"a",
					corev1.Container{Name: "c", StartupProbe: probeOf(h, 30, 0),
						LivenessProbe: probeOf(h, failures, delay)},
				)
				w := r.running("c", plan.Probes{Startup: true})
				r.watch(pod, w)
				var started time.Duration
				for step := 9 * time.Second; started == 0 && step < 15*time.Second; step += 5 * time.Millisecond {
					r.advanceTo(step)
					if r.health["c-0"].Started {
						started = step
						w.Probes = plan.Probes{Liveness: true} // as in the next plan
						r.watch(pod, w)
					}
				}
				r.advanceTo(90 * time.Second)
				from := max(started, time.Duration(delay)*time.Second)
				if started == 0 || first != from {
					t.Errorf("first run after %s, want %s", first, from)
				}
				r.expectFailedBetween(from+time.Duration(failures)*period, from+latest(failures, takes))
			})
		}
	})
}

// TestContainerThatStopsRespondingFailsOnTime checks a container that has responded before.
func TestContainerThatStopsRespondingFailsOnTime(t *testing.T) {
	forEachProbe(t, func(t *testing.T, h corev1.ProbeHandler, failures int32, takes time.Duration) {
		for _, last := range []time.Duration{10 * time.Millisecond, 7300 * time.Millisecond} {
			withManager(t, Options{}, func(_ *testing.T, r *managerTest) {
				r.respond = func(_ plan.ProbeKind, _ string, at time.Duration) (outcome, time.Duration) {
					if at < last {
						return outcome{result: Success}, time.Millisecond
					}
					return outcome{result: Failure, output: "x"}, takes
				}
				r.watch(
					podWith("a", corev1.Container{Name: "c", LivenessProbe: probeOf(h, failures, 0)}),
					r.running("c", plan.Probes{Liveness: true}),
				)
				r.advanceTo(time.Minute)
				r.expectFailedBetween(last+time.Duration(failures-1)*period, last+latest(failures, takes)+
					time.Millisecond)
			})
		}
	})
}

// A restart does not fail a container earlier, and delays it only by the duration of the restart,
// while a kubelet restarts the count.
func TestAgentRestartFailsNoContainerEarlier(t *testing.T) {
	forEachProbe(t, func(t *testing.T, h corev1.ProbeHandler, failures int32, takes time.Duration) {
		for _, restart := range []time.Duration{time.Second, 2100 * time.Millisecond, 3900 * time.Millisecond,
			5 * time.Second} {
			pod := podWith("a", corev1.Container{Name: "c", LivenessProbe: probeOf(h, failures, 0)})
			var kept plan.Health
			withManager(t, Options{}, func(_ *testing.T, r *managerTest) {
				r.respond = alwaysFail(takes)
				r.watch(pod, r.running("c", plan.Probes{Liveness: true}))
				r.advanceTo(restart)
				kept = r.health["c-0"]
			})
			if kept.Failed {
				continue
			}
			withManager(t, Options{}, func(_ *testing.T, r *managerTest) {
				r.respond = alwaysFail(takes)
				w := r.running("c", plan.Probes{Liveness: true})
				w.Health = kept
				r.advanceTo(restart)
				r.watch(pod, w)
				r.advanceTo(90 * time.Second)
				r.expectFailedBetween(time.Duration(failures)*period, restart+latest(failures, takes))
			})
		}
	})
}
