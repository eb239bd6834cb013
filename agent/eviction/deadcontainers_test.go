package eviction

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/agent/status"
)

func TestHasDeadContainers(t *testing.T) {
	t.Parallel()
	running, dead := plan.Container{Name: "a", State: plan.Running}, plan.Container{Name: "a", State: plan.Exited}
	for _, row := range []struct {
		phase      corev1.PodPhase
		containers []plan.Container
		want       bool
	}{
		{corev1.PodRunning, []plan.Container{running}, false}, {corev1.PodRunning, []plan.Container{running, dead},
			true},
		{corev1.PodRunning, []plan.Container{dead}, false}, {corev1.PodRunning, []plan.Container{dead, dead}, true},
		{corev1.PodFailed, []plan.Container{dead}, true}, {corev1.PodSucceeded, nil, false},
	} {
		s := &status.Snapshot{Pod: &corev1.Pod{}}
		s.Status.Phase, s.Observed.Containers = row.phase, row.containers
		if got := hasDeadContainers([]*status.Snapshot{s}); got != row.want {
			t.Errorf("%s, %d containers: %t", row.phase, len(row.containers), got)
		}
	}
}
