package eviction

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/agent/status"
)

// deadContainersTimeout limits how long the pod workers have to remove dead containers.
const deadContainersTimeout = 15 * time.Second

// AwaitDeadContainersRemoved waits until the pod workers have removed all dead containers, the
// timeout is over, or ctx ends. changed signals changes of the pods.
func AwaitDeadContainersRemoved(ctx context.Context, pods func() []*status.Snapshot, changed <-chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, deadContainersTimeout)
	defer cancel()
	for hasDeadContainers(pods()) && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
}

// hasDeadContainers reports whether there is a terminated container that is kept only for inspection.
func hasDeadContainers(pods []*status.Snapshot) bool {
	for _, s := range pods {
		finished := s.Status.Phase == corev1.PodSucceeded || s.Status.Phase == corev1.PodFailed
		newest := map[string]bool{}
		for _, c := range s.Observed.Containers {
			if c.State == plan.Exited && (finished || newest[c.Name]) {
				return true
			}
			newest[c.Name] = true
		}
	}
	return false
}
