package controllers

import (
	"time"

	"k8s.io/component-base/metrics"

	"berth/control/metrics/subsystem"
)

const (
	nodeSubsystem  subsystem.Name = "node_collector"
	taintSubsystem subsystem.Name = "taint_eviction_controller"
)

var (
	nodeEvictions = nodeSubsystem.CounterVec("evictions_total",
		"Number of nodes whose pods were evicted because the node was not ready.", metrics.STABLE, "zone")
	taintDeletions = taintSubsystem.Counter("pod_deletions_total",
		"Number of pods that were deleted because they do not tolerate a taint of their node.", metrics.ALPHA)
	taintDeletionDuration = taintSubsystem.Histogram("pod_deletion_duration_seconds",
		"Time from the end of the toleration of a taint to the deletion of the pod.",
		metrics.ALPHA, []float64{0.005, 0.025, 0.1, 0.5, 1, 2.5, 10, 30, 60, 120, 180, 240})

	nodeMetrics = []metrics.Registerable{nodeEvictions, taintDeletions, taintDeletionDuration}
)

// measureTaintDeletion counts the deletion of a pod that was due at a time. Zero: at once.
func measureTaintDeletion(due time.Time) {
	taintDeletions.Inc()
	if !due.IsZero() {
		taintDeletionDuration.Observe(time.Since(due).Seconds())
	}
}
