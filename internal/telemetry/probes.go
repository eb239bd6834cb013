package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// ProbeLabels says whose probe it was. Kind is Startup, Readiness or Liveness.
type ProbeLabels struct{ Kind, Container, Pod, Namespace, UID string }

// ObserveProbe tells of one probe that was made. result is successful, failed or
// unknown.
func (m *Metrics) ObserveProbe(of ProbeLabels, result string, took time.Duration) {
	m.probes.WithLabelValues(of.Kind, result, of.Container, of.Pod, of.Namespace, of.UID).Inc()
	m.probeDuration.WithLabelValues(of.Kind, of.Container, of.Pod, of.Namespace).Observe(took.Seconds())
}

// ObserveProbeDelay tells how much later than due a probe began, and how many periods
// had gone by without it.
func (m *Metrics) ObserveProbeDelay(late time.Duration, missed int64) {
	m.probeLate.Observe(late.Seconds())
	m.probesMissed.Add(float64(missed))
}

// DeleteProbes drops what was counted for a pod that is gone. A namesake that
// has come since keeps its own count, and begins its lengths anew.
func (m *Metrics) DeleteProbes(namespace, pod, uid string) {
	m.probes.DeletePartialMatch(prometheus.Labels{"pod_uid": uid})
	m.probeDuration.DeletePartialMatch(prometheus.Labels{"namespace": namespace, "pod": pod})
}
