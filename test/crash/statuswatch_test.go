package crash

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/nodeapi"
)

// statusWatch watches all pods of a node over any number of the agent's lives. Of each
// incarnation of a pod it knows what it last was while it was Ready.
type statusWatch struct {
	*node
	edits func(p *corev1.Pod) int32 // how often its image was edited: then its container may begin again; nil: never
	also  func(was, is *corev1.Pod) // more to compare with what was first Ready; nil: nothing

	stop  context.CancelFunc
	wg    sync.WaitGroup
	mu    sync.Mutex
	first map[types.UID]*corev1.Pod // as it was when it was first Ready
	told  int                       // what was said of pods that had been Ready
	lives int                       // how often the agent was there to be asked
}

// watchStatus begins one, which lasts until end.
func (n *node) watchStatus(edits func(p *corev1.Pod) int32, also func(was, is *corev1.Pod)) *statusWatch {
	ctx, cancel := context.WithCancel(n.Context())
	v := &statusWatch{node: n, edits: edits, also: also, stop: cancel, first: map[types.UID]*corev1.Pod{}}
	v.wg.Go(func() {
		again := time.NewTicker(5 * time.Millisecond)
		defer again.Stop()
		for ctx.Err() == nil {
			// It breaks off when the agent dies, and fails while that is dead.
			_ = n.client.WatchPods(ctx, nodeapi.PodsRequest{}, func(e nodeapi.PodEvent) error {
				v.mu.Lock()
				defer v.mu.Unlock()
				switch {
				case e.Type == nodeapi.Synced:
					v.lives++
				case e.Pod != nil && e.Type != nodeapi.Deleted:
					v.check(e.Pod)
				}
				return nil
			})
			select {
			case <-ctx.Done():
			case <-again.C:
			}
		}
	})
	return v
}

// agentStarts is how often the agent was there to be asked so far.
func (v *statusWatch) agentStarts() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.lives
}

// check judges what the agent says of a pod.
func (v *statusWatch) check(p *corev1.Pod) {
	if p.DeletionTimestamp != nil {
		return
	}
	was := v.first[p.UID]
	switch {
	case v.edits != nil && v.edits(p) > 0: // it begins again, at an unknown time
		delete(v.first, p.UID)
	case was == nil && isReady(p):
		v.first[p.UID] = p
	case was != nil:
		v.told++
		v.compareReady(was, p)
		if v.also != nil {
			v.also(was, p)
		}
	}
}

// compareReady finds that a pod is not Ready any more, or was not for a while, or
// that a container has restarted. That of one that was never Ready may: a start
// that the agent's death has cut off is made again, and counted.
func (v *statusWatch) compareReady(was, is *corev1.Pod) {
	before := map[string]corev1.ContainerStatus{}
	for _, s := range statuses(was) {
		before[s.Name] = s
	}
	for _, s := range statuses(is) {
		if b := before[s.Name]; s.RestartCount != b.RestartCount || s.ContainerID != b.ContainerID {
			v.Errorf("%s/%s: %d restarts, %s, was %d, %s", is.Name, s.Name, s.RestartCount, s.ContainerID, b.RestartCount, b.ContainerID)
		}
	}
	v.compareCondition(was, is)
}

func (v *statusWatch) compareCondition(was, is *corev1.Pod) {
	before, now := readyOf(was), readyOf(is)
	if now.Status != corev1.ConditionTrue || !now.LastTransitionTime.Equal(&before.LastTransitionTime) {
		v.Errorf("%s: Ready=%s since %s (%s %s), was Ready since %s", is.Name, now.Status, now.LastTransitionTime, now.Reason, now.Message, before.LastTransitionTime)
	}
	if is.Status.PodIP != was.Status.PodIP {
		v.Errorf("%s: address %q, was %q", is.Name, is.Status.PodIP, was.Status.PodIP)
	}
}

func readyOf(p *corev1.Pod) corev1.PodCondition {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c
		}
	}
	return corev1.PodCondition{Status: "not told"}
}

// end ends the vigil, which must have seen something.
func (v *statusWatch) end() {
	v.Helper()
	v.stop()
	v.wg.Wait()
	v.Logf("%d pods were Ready, and were told of %d times in %d lives of the agent", len(v.first), v.told, v.lives)
	if len(v.first) == 0 || v.told == 0 {
		v.Error("no pod was ever seen Ready, and again later")
	}
}
