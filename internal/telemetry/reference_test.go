package telemetry

import (
	"testing"

	"berth/internal/telemetry/metricstest"
)

func TestReferenceListsEveryMetric(t *testing.T) {
	t.Parallel()
	m := NewMetrics("n1", Build{})
	m.RegisterState(func() State { return State{} })
	metricstest.CheckReference(t, m.registry, "Agent: upstream metrics", "Agent: berth metrics", "Probes")
}
