package policy

import (
	"testing"

	"berth/internal/telemetry/metricstest"
)

func TestReferenceListsEveryMetric(t *testing.T) {
	t.Parallel()
	metricstest.CheckReference(t, &Enforcer{metrics: newMetrics()}, "Network policies")
}
