package probes

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

// TestDocumentedProbeExamples covers the statements on timing and counting in the Kubernetes
// documentation on liveness, readiness and startup probes, paraphrased. The consequences for the
// container are covered by agent/plan/lifecycle_test.go, the meaning of responses by network_test.go,
// and the valid combinations of fields by podspec.
func TestDocumentedProbeExamples(t *testing.T) {
	always := func(r Result) func(time.Duration) Result { return func(time.Duration) Result { return r } }
	until := func(d time.Duration) func(time.Duration) Result {
		return func(at time.Duration) Result {
			if at < d {
				return Success
			}
			return Failure
		}
	}
	after := func(d time.Duration) func(time.Duration) Result {
		return func(at time.Duration) Result {
			if at < d {
				return Failure
			}
			return Success
		}
	}
	with := func(p *corev1.Probe, f func(*corev1.Probe)) *corev1.Probe { f(p); return p }
	live := func(p *corev1.Probe) corev1.Container { return corev1.Container{Name: "c", LivenessProbe: p} }
	liveness, startup := plan.Probes{Liveness: true}, plan.Probes{Startup: true}
	for _, c := range []struct {
		sentence string
		c        corev1.Container
		want     plan.Probes
		answers  func(time.Duration) Result
		at       time.Duration
		is       func(r *managerTest, h plan.Health) bool
	}{
		{"periodSeconds: a probe each 5 s; initialDelaySeconds: 5 s before the first",
			live(with(execProbe(5, 3), func(p *corev1.Probe) {
				p.InitialDelaySeconds = 5
			})), liveness,
			always(Success), 4900 * time.Millisecond, func(r *managerTest, _ plan.Health) bool {
				return r.runTimes("c/Liveness") == ""
			}},
		{"for the first 30 s the file exists and the command succeeds: the container is healthy", live(execProbe(5, 3)),
			liveness, until(30 * time.Second), 40 * time.Second,
			func(_ *managerTest, h plan.Health) bool { return !h.Failed }},
		{"when the file is removed the probes fail, and the container is killed", live(execProbe(5, 3)), liveness,
			until(30 * time.Second), 46 * time.Second,
			func(_ *managerTest, h plan.Health) bool { return h.Failed && h.FailedProbe == "liveness" }},
		{"the application has failureThreshold × periodSeconds, 30 × 10 = 300 s, to start",
			corev1.Container{Name: "c", StartupProbe: httpProbe(10, 30)}, startup, always(Failure),
			299900 * time.Millisecond,
			func(_ *managerTest, h plan.Health) bool { return !h.Failed }},
		{"if the startup probe never succeeds the container is killed after 300 s",
			corev1.Container{Name: "c", StartupProbe: httpProbe(10, 30)}, startup, always(Failure),
			300100 * time.Millisecond,
			func(_ *managerTest, h plan.Health) bool { return h.Failed && h.FailedProbe == "startup" }},
		{"… also with a command", corev1.Container{Name: "c", StartupProbe: execProbe(10, 30)}, startup,
			always(Failure), 300100 * time.Millisecond,
			func(_ *managerTest, h plan.Health) bool { return h.Failed && h.FailedProbe == "startup" }},
		{"after its success the startup probe does not run again, and the container has started",
			corev1.Container{Name: "c", StartupProbe: execProbe(10, 30)}, startup, after(55 * time.Second),
			200 * time.Second,
			func(r *managerTest, h plan.Health) bool { return h.Started && len(r.runs["c/Startup"]) == 7 }},
		{"readiness probes run during the whole lifecycle of the container", withReadinessProbe("c", httpProbe(10, 3)),
			readiness, always(Success), 6 * time.Hour,
			func(r *managerTest, h plan.Health) bool { return h.Ready && len(r.runs["c/Readiness"]) >= 6*360 }},
		{"a failed readiness probe keeps running: the container is not killed",
			withReadinessProbe("c", httpProbe(1, 3)), readiness, always(Failure), time.Hour,
			func(r *managerTest, h plan.Health) bool {
				return !h.Ready && !h.Failed && len(r.runs["c/Readiness"]) >= 3600
			}},
		{"readiness before the initial delay is failure",
			withReadinessProbe("c", with(httpProbe(1, 3), func(p *corev1.Probe) {
				p.InitialDelaySeconds = 9
			})), readiness, always(Success), 8900 * time.Millisecond,
			func(_ *managerTest, h plan.Health) bool { return !h.Ready }},
		{"a container that is not ready may be probed more often, to make it ready sooner",
			withReadinessProbe("c", httpProbe(10, 3)), readiness, after(time.Second), 2 * time.Second,
			func(_ *managerTest, h plan.Health) bool { return h.Ready }},
		{"failureThreshold failures in a row and the check has failed: not after two", live(execProbe(1, 3)), liveness,
			until(10 * time.Second), 11900 * time.Millisecond,
			func(_ *managerTest, h plan.Health) bool { return !h.Failed }},
		{"… but after three", live(execProbe(1, 3)), liveness, until(10 * time.Second), 13100 * time.Millisecond,
			func(_ *managerTest, h plan.Health) bool { return h.Failed }},
		{"successThreshold successes in a row after it has failed: not after one",
			withReadinessProbe("c", with(httpProbe(2, 1), func(p *corev1.Probe) {
				p.SuccessThreshold = 3
			})), readiness, always(Success), 3900 * time.Millisecond,
			func(_ *managerTest, h plan.Health) bool { return !h.Ready }},
		{"… but after three", withReadinessProbe("c", with(httpProbe(2, 1), func(p *corev1.Probe) {
			p.SuccessThreshold = 3
		})), readiness, always(Success), 4100 * time.Millisecond,
			func(_ *managerTest, h plan.Health) bool { return h.Ready }},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			withManager(t, Options{}, func(t *testing.T, r *managerTest) {
				r.respond = func(_ plan.ProbeKind, _ string, at time.Duration) (outcome, time.Duration) {
					return outcome{result: c.answers(at), output: "x"}, time.Millisecond
				}
				r.watch(podWith("a", c.c), r.running("c", c.want))
				r.advanceTo(c.at)
				r.mu.Lock()
				h := r.health["c-0"]
				r.mu.Unlock()
				if !c.is(r, h) {
					t.Errorf(
						"after %s: started=%v ready=%v dead=%v %s; %d runs",
						c.at,
						h.Started,
						h.Ready,
						h.Failed,
						h.FailedProbe,
						len(r.runs["c/Readiness"])+len(r.runs["c/Liveness"])+len(r.runs["c/Startup"]),
					)
				}
			})
		})
	}
	t.Run("liveness and readiness probes run concurrently and independently", func(t *testing.T) {
		withManager(t, Options{}, func(t *testing.T, r *managerTest) {
			r.respond = func(kind plan.ProbeKind, _ string, _ time.Duration) (outcome, time.Duration) {
				if kind == plan.ReadinessProbe {
					return outcome{result: Failure}, 50 * time.Second
				}
				return outcome{result: Success}, 0
			}
			r.watch(
				podWith("a", corev1.Container{Name: "c", LivenessProbe: httpProbe(1, 3),
					ReadinessProbe: httpProbe(1, 3)}),
				r.running("c", plan.Probes{Liveness: true, Readiness: true}),
			)
			r.advanceTo(20 * time.Second)
			if n := len(r.runs["c/Liveness"]); n < 20 {
				t.Errorf("got %d liveness runs during a hanging readiness probe, want at least 20", n)
			}
		})
	})
}
