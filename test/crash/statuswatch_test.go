package crash

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/nodeapi"
)

// statusWatch watches all pods of a node across agent restarts. It compares each status with the status
// that the incarnation had when it first was Ready.
type statusWatch struct {
	*node
	// edits returns the number of edits that permit a restart of the pod's containers; nil: none.
	edits       func(p *corev1.Pod) int32
	compareMore func(oldPod, newPod *corev1.Pod) // additional comparison; may be nil

	stop        context.CancelFunc
	wg          sync.WaitGroup
	mu          sync.Mutex
	firstReady  map[types.UID]*corev1.Pod // the pod when it first was Ready
	comparisons int                       // number of compared statuses
	syncs       int                       // number of times the watch was established
}

// watchStatus starts a statusWatch. It runs until finish.
func (n *node) watchStatus(edits func(p *corev1.Pod) int32, compareMore func(oldPod, newPod *corev1.Pod)) *statusWatch {
	ctx, cancel := context.WithCancel(n.Context())
	w := &statusWatch{node: n, edits: edits, compareMore: compareMore, stop: cancel,
		firstReady: map[types.UID]*corev1.Pod{}}
	w.wg.Go(func() {
		ticker := time.NewTicker(20 * time.Millisecond)
		defer ticker.Stop()
		for ctx.Err() == nil {
			// The watch ends when the agent is killed, and fails while the agent is down.
			_ = n.client.WatchPods(ctx, nodeapi.PodsRequest{}, func(e nodeapi.PodEvent) error {
				w.mu.Lock()
				defer w.mu.Unlock()
				switch {
				case e.Type == nodeapi.Synced:
					w.syncs++
				case e.Pod != nil && e.Type != nodeapi.Deleted:
					w.check(e.Pod)
				}
				return nil
			})
			select {
			case <-ctx.Done():
			case <-ticker.C:
			}
		}
	})
	return w
}

// agentStarts returns how often the watch was established so far, which is once per run of the agent.
func (w *statusWatch) agentStarts() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.syncs
}

// check compares a reported pod with its first Ready status.
func (w *statusWatch) check(p *corev1.Pod) {
	if p.DeletionTimestamp != nil {
		return
	}
	oldPod := w.firstReady[p.UID]
	switch {
	case w.edits != nil && w.edits(p) > 0: // its container restarts at an unknown time
		delete(w.firstReady, p.UID)
	case oldPod == nil && isReady(p):
		w.firstReady[p.UID] = p
	case oldPod != nil:
		w.comparisons++
		w.compareReady(oldPod, p)
		if w.compareMore != nil {
			w.compareMore(oldPod, p)
		}
	}
}

// compareReady reports if a pod is or was no longer Ready, or if a container has restarted. Before the
// pod is Ready, restarts are permitted: an interrupted start is repeated and counted as a restart.
func (w *statusWatch) compareReady(oldPod, newPod *corev1.Pod) {
	before := map[string]corev1.ContainerStatus{}
	for _, s := range statuses(oldPod) {
		before[s.Name] = s
	}
	for _, s := range statuses(newPod) {
		if b := before[s.Name]; s.RestartCount != b.RestartCount || s.ContainerID != b.ContainerID {
			w.Errorf("%s/%s: restart count %d, ID %s, was %d, %s", newPod.Name, s.Name, s.RestartCount, s.ContainerID,
				b.RestartCount, b.ContainerID)
		}
	}
	w.compareCondition(oldPod, newPod)
}

func (w *statusWatch) compareCondition(oldPod, newPod *corev1.Pod) {
	before, now := readyOf(oldPod), readyOf(newPod)
	if now.Status != corev1.ConditionTrue || !now.LastTransitionTime.Equal(&before.LastTransitionTime) {
		w.Errorf("%s: Ready=%s since %s (%s %s), was Ready since %s", newPod.Name, now.Status, now.LastTransitionTime,
			now.Reason, now.Message, before.LastTransitionTime)
	}
	if newPod.Status.PodIP != oldPod.Status.PodIP {
		w.Errorf("%s: pod IP %q, was %q", newPod.Name, newPod.Status.PodIP, oldPod.Status.PodIP)
	}
}

func readyOf(p *corev1.Pod) corev1.PodCondition {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c
		}
	}
	return corev1.PodCondition{Status: "missing"}
}

// finish stops the watch. It reports an error if no status was compared.
func (w *statusWatch) finish() {
	w.Helper()
	w.stop()
	w.wg.Wait()
	w.Logf("%d pods were Ready; compared %d statuses in %d runs of the agent", len(w.firstReady), w.comparisons,
		w.syncs)
	if len(w.firstReady) == 0 || w.comparisons == 0 {
		w.Error("no status of a pod that had been Ready was compared")
	}
}
