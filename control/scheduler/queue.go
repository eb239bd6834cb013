package scheduler

import (
	"container/heap"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/control/scheduler/placement"
	"berth/podspec"
)

// Times of the queue, as upstream's.
const (
	initialBackoff           = time.Second
	maxBackoff               = 10 * time.Second
	maxUnschedulableDuration = 5 * time.Minute // then a pod is looked at again, told or not
)

// queueState says where a waiting pod is.
type queueState int

const (
	active        queueState = iota // its turn comes
	backoff                         // backing off, then active
	unschedulable                   // until something changes that may help
	gated                           // until its gates are gone
	assumed                         // on its way to a node
)

// queuedPod is one pod without a node.
type queuedPod struct {
	pod         *corev1.Pod
	state       queueState
	addedAt     time.Time // in the queue
	attempts    int
	lastAttempt time.Time
	readyAt     time.Time          // resting, waiting: active, rested then
	rejectedBy  []placement.Filter // waiting: what refused it
	heapIndex   int                // in the heap

	// attempt counts the attempts, and that the pod is forgotten: a call to the server
	// that has waited for its place sees by it whether what it has to say is still so.
	attempt atomic.Int64
	// callMu is held by a call that writes of the pod: one at a time.
	callMu sync.Mutex
}

// queue is the pods without a node. It has no clock: callers say what time it is.
type queue struct {
	entries map[types.UID]*queuedPod
	active  activeHeap
}

func newQueue() *queue { return &queue{entries: map[types.UID]*queuedPod{}} }

// update takes in a new pod, or what is new about it. It reports whether the pod
// is one more that waits for its gates.
func (q *queue) update(pod *corev1.Pod, now time.Time) (newlyGated bool) {
	e, known := q.entries[pod.UID]
	if !known {
		e = &queuedPod{pod: pod, addedAt: now, state: unschedulable, heapIndex: -1}
		q.entries[pod.UID] = e
	}
	old := e.pod
	e.pod = pod
	switch {
	case e.state == assumed:
	case len(pod.Spec.SchedulingGates) > 0:
		q.removeFromActive(e)
		e.state = gated
		return !known
	case !known || e.state == gated:
		q.activate(e)
	case e.state == active:
		heap.Fix(&q.active, e.heapIndex)
	case e.state == unschedulable && specChanged(old, pod):
		q.requeue(e, now)
	}
	return false
}

// specChanged reports whether another node may do for the pod now.
func specChanged(old, pod *corev1.Pod) bool {
	return old.Generation != pod.Generation || !sameLabels(old.Labels, pod.Labels) ||
		len(old.Spec.Tolerations) != len(pod.Spec.Tolerations)
}

func sameLabels(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, ok := b[k]; !ok || v != w {
			return false
		}
	}
	return true
}

// remove forgets a pod.
func (q *queue) remove(uid types.UID) {
	if e, ok := q.entries[uid]; ok {
		q.removeFromActive(e)
		e.attempt.Add(1)
		delete(q.entries, uid)
	}
}

// pop takes the pod whose turn it is: the highest priority, then the longest
// in the queue. nil: none.
func (q *queue) pop(now time.Time) *queuedPod {
	if len(q.active) == 0 {
		return nil
	}
	e, ok := heap.Pop(&q.active).(*queuedPod)
	if !ok {
		return nil
	}
	e.state = assumed
	e.attempts++
	e.attempt.Add(1)
	e.lastAttempt = now
	return e
}

// addUnschedulable puts a pod for which there was no node aside.
func (q *queue) addUnschedulable(e *queuedPod, refused []placement.Filter, now time.Time) {
	e.state, e.rejectedBy, e.readyAt = unschedulable, refused, now.Add(maxUnschedulableDuration)
}

// requeueAfterFailure puts a pod aside for its back-off: something went wrong.
func (q *queue) requeueAfterFailure(uid types.UID, now time.Time) {
	if e, ok := q.entries[uid]; ok {
		q.requeue(e, now)
	}
}

// requeueUnschedulable wakes a pod that waits; one that has had another turn since needs nothing.
func (q *queue) requeueUnschedulable(uid types.UID, now time.Time) {
	if e, ok := q.entries[uid]; ok && e.state == unschedulable {
		q.requeue(e, now)
	}
}

// requeueRejectedBy wakes the pods that one of the rules refused; no rules wake all.
func (q *queue) requeueRejectedBy(now time.Time, rules ...placement.Filter) {
	for _, e := range q.entries {
		if e.state == unschedulable && (len(rules) == 0 || slices.ContainsFunc(e.rejectedBy, func(r placement.Filter) bool { return slices.Contains(rules, r) })) {
			q.requeue(e, now)
		}
	}
}

// requeue makes a pod active as soon as its back-off is over.
func (q *queue) requeue(e *queuedPod, now time.Time) {
	if until := e.lastAttempt.Add(backoffDuration(e.attempts)); now.Before(until) {
		e.state, e.readyAt = backoff, until
		return
	}
	q.activate(e)
}

func (q *queue) activate(e *queuedPod) {
	e.state = active
	if e.heapIndex < 0 {
		heap.Push(&q.active, e)
	}
}

func (q *queue) removeFromActive(e *queuedPod) {
	if e.heapIndex >= 0 {
		heap.Remove(&q.active, e.heapIndex)
	}
}

// flush activates what has rested or waited long enough and says when the next
// one will have; zero: none.
func (q *queue) flush(now time.Time) (next time.Time) {
	for _, e := range q.entries {
		if e.state != backoff && e.state != unschedulable {
			continue
		}
		if !now.Before(e.readyAt) {
			q.activate(e)
			continue
		}
		if next.IsZero() || e.readyAt.Before(next) {
			next = e.readyAt
		}
	}
	return next
}

func backoffDuration(attempts int) time.Duration {
	if attempts == 0 {
		return 0
	}
	return min(maxBackoff, initialBackoff<<min(attempts-1, 10))
}

// activeHeap is a heap of active entries.
type activeHeap []*queuedPod

func (t *activeHeap) Len() int { return len(*t) }

func (t *activeHeap) Less(i, j int) bool {
	one, other := (*t)[i], (*t)[j]
	a, b := podspec.Priority(one.pod), podspec.Priority(other.pod)
	if a != b {
		return a > b
	}
	return one.addedAt.Before(other.addedAt)
}

func (t *activeHeap) Swap(i, j int) {
	all := *t
	all[i], all[j] = all[j], all[i]
	all[i].heapIndex, all[j].heapIndex = i, j
}

// Push is for package heap.
func (t *activeHeap) Push(x any) {
	if e, ok := x.(*queuedPod); ok {
		e.heapIndex = len(*t)
		*t = append(*t, e)
	}
}

// Pop is for package heap.
func (t *activeHeap) Pop() any {
	last := len(*t) - 1
	e := (*t)[last]
	(*t)[last] = nil
	*t = (*t)[:last]
	e.heapIndex = -1
	return e
}
