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

// Durations of the queue, as in kube-scheduler.
const (
	initialBackoff           = time.Second
	maxBackoff               = 10 * time.Second
	maxUnschedulableDuration = 5 * time.Minute // then the pod is retried without an event
)

// queueState is the state of a pod in the queue.
type queueState int

const (
	active        queueState = iota // ready for an attempt
	backoff                         // until its backoff ends, then active
	unschedulable                   // until an event may make it schedulable
	gated                           // until its scheduling gates are removed
	assumed                         // being scheduled or bound
	queueStates                     // number of states
)

// queuedPod is a pod without a node.
type queuedPod struct {
	pod         *corev1.Pod
	state       queueState
	addedAt     time.Time // to the queue
	activeSince time.Time // when it became active for the first time
	attempts    int
	lastAttempt time.Time
	readyAt     time.Time          // in state backoff or unschedulable: when it becomes active
	rejectedBy  []placement.Filter // in state unschedulable: the filters that rejected nodes
	heapIndex   int                // index in the heap

	// attempt is incremented at each attempt and when the pod is removed. A delayed API call
	// compares it to detect that its content is outdated.
	attempt atomic.Int64
	// callMu serializes the API calls that write the pod.
	callMu sync.Mutex
}

// queue holds the pods without a node. It has no clock: callers pass the time.
type queue struct {
	entries map[types.UID]*queuedPod
	active  activeHeap

	count      [queueStates]int         // pods by state
	rejections map[placement.Filter]int // pods by the filters that rejected nodes in their last attempt
	incoming   func(queueState, queueEvent)
}

func newQueue() *queue {
	return &queue{
		entries: map[types.UID]*queuedPod{}, rejections: map[placement.Filter]int{}, incoming: countIncoming,
	}
}

// queueEvent is the cause of a change of a pod's state, with the name that kube-scheduler has for it.
type queueEvent string

// Events of the queue and of pods in it.
const (
	eventPodAdd               queueEvent = "UnschedulablePodAdd"
	eventPodUpdate            queueEvent = "UnschedulablePodUpdate"
	eventPodLabel             queueEvent = "UnschedulablePodUpdatePodLabel"
	eventPodToleration        queueEvent = "UnschedulablePodUpdatePodToleration"
	eventGatesEliminated      queueEvent = "UnschedulablePodUpdatePodSchedulingGatesEliminated"
	eventAttemptFailure       queueEvent = "ScheduleAttemptFailure"
	eventBackoffComplete      queueEvent = "BackoffComplete"
	eventUnschedulableTimeout queueEvent = "UnschedulableTimeout"
	eventForceActivate        queueEvent = "ForceActivate"
)

// setState changes the state of a pod.
func (q *queue) setState(qp *queuedPod, state queueState, event queueEvent) {
	if qp.state != state && state != assumed {
		q.incoming(state, event)
	}
	q.count[qp.state]--
	q.count[state]++
	qp.state = state
}

// setRejectedBy changes the filters that rejected a pod. They are kept after a requeue, until the next attempt.
func (q *queue) setRejectedBy(qp *queuedPod, filters []placement.Filter) {
	for _, f := range qp.rejectedBy {
		q.rejections[f]--
	}
	for _, f := range filters {
		q.rejections[f]++
	}
	qp.rejectedBy = filters
}

// update adds or updates a pod. It reports whether a pod with scheduling gates was added.
func (q *queue) update(pod *corev1.Pod, now time.Time) (newlyGated bool) {
	qp, known := q.entries[pod.UID]
	if !known {
		qp = &queuedPod{pod: pod, addedAt: now, state: assumed, heapIndex: -1}
		q.entries[pod.UID] = qp
		q.count[qp.state]++
	}
	old := qp.pod
	qp.pod = pod
	switch {
	case known && qp.state == assumed:
	case len(pod.Spec.SchedulingGates) > 0:
		q.removeFromActive(qp)
		q.setState(qp, gated, eventPodAdd)
		return !known
	case !known || qp.state == gated:
		if qp.activeSince.IsZero() {
			qp.activeSince = now
		}
		event := eventPodAdd
		if known {
			event = eventGatesEliminated
		}
		q.activate(qp, event)
	case qp.state == active:
		heap.Fix(&q.active, qp.heapIndex)
	case qp.state == unschedulable:
		if event := specChange(old, pod); event != "" {
			q.requeue(qp, event, now)
		}
	}
	return false
}

// specChange returns the event for an update that may make the pod schedulable, or "".
func specChange(old, pod *corev1.Pod) queueEvent {
	switch {
	case !sameLabels(old.Labels, pod.Labels):
		return eventPodLabel
	case len(old.Spec.Tolerations) != len(pod.Spec.Tolerations):
		return eventPodToleration
	case old.Generation != pod.Generation:
		return eventPodUpdate
	}
	return ""
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

// remove deletes a pod from the queue.
func (q *queue) remove(uid types.UID) {
	if qp, ok := q.entries[uid]; ok {
		q.removeFromActive(qp)
		qp.attempt.Add(1)
		q.setRejectedBy(qp, nil)
		q.count[qp.state]--
		delete(q.entries, uid)
	}
}

// pop returns the active pod with the highest priority, then the one that was added first, and
// marks it as assumed. It returns nil if no pod is active.
func (q *queue) pop(now time.Time) *queuedPod {
	if len(q.active) == 0 {
		return nil
	}
	qp, ok := heap.Pop(&q.active).(*queuedPod)
	if !ok {
		return nil
	}
	q.setState(qp, assumed, "")
	q.setRejectedBy(qp, nil)
	qp.attempts++
	qp.attempt.Add(1)
	qp.lastAttempt = now
	return qp
}

// addUnschedulable moves a pod to the state unschedulable after a failed attempt.
func (q *queue) addUnschedulable(qp *queuedPod, rejectedBy []placement.Filter, now time.Time) {
	q.setState(qp, unschedulable, eventAttemptFailure)
	q.setRejectedBy(qp, rejectedBy)
	qp.readyAt = now.Add(maxUnschedulableDuration)
}

// requeueAfterFailure requeues a pod after a failed binding.
func (q *queue) requeueAfterFailure(uid types.UID, now time.Time) {
	if qp, ok := q.entries[uid]; ok {
		q.requeue(qp, eventAttemptFailure, now)
	}
}

// requeueUnschedulable requeues a pod in state unschedulable whose preemption failed. It ignores a pod with a newer
// attempt.
func (q *queue) requeueUnschedulable(uid types.UID, now time.Time) {
	if qp, ok := q.entries[uid]; ok && qp.state == unschedulable {
		q.requeue(qp, eventForceActivate, now)
	}
}

// requeueRejectedBy requeues the unschedulable pods that one of the filters rejected. Without
// filters it requeues all.
func (q *queue) requeueRejectedBy(event queueEvent, now time.Time, filters ...placement.Filter) {
	if q.count[unschedulable] == 0 {
		return // as in most rollouts, which would otherwise look at all waiting pods for each bound one
	}
	for _, qp := range q.entries {
		if qp.state == unschedulable && (len(filters) == 0 || slices.ContainsFunc(qp.rejectedBy,
			func(r placement.Filter) bool { return slices.Contains(filters, r) })) {
			q.requeue(qp, event, now)
		}
	}
}

// requeue makes a pod active, after its backoff.
func (q *queue) requeue(qp *queuedPod, event queueEvent, now time.Time) {
	if until := qp.lastAttempt.Add(backoffDuration(qp.attempts)); now.Before(until) {
		q.setState(qp, backoff, event)
		qp.readyAt = until
		return
	}
	q.activate(qp, event)
}

func (q *queue) activate(qp *queuedPod, event queueEvent) {
	q.setState(qp, active, event)
	if qp.heapIndex < 0 {
		heap.Push(&q.active, qp)
	}
}

func (q *queue) removeFromActive(qp *queuedPod) {
	if qp.heapIndex >= 0 {
		heap.Remove(&q.active, qp.heapIndex)
	}
}

// flush activates the pods whose readyAt has passed. It returns when the next pod becomes active, or
// the zero time.
func (q *queue) flush(now time.Time) (next time.Time) {
	if q.count[backoff]+q.count[unschedulable] == 0 {
		return next
	}
	for _, qp := range q.entries {
		if qp.state != backoff && qp.state != unschedulable {
			continue
		}
		if !now.Before(qp.readyAt) {
			event := eventBackoffComplete
			if qp.state == unschedulable {
				event = eventUnschedulableTimeout
			}
			q.activate(qp, event)
			continue
		}
		if next.IsZero() || qp.readyAt.Before(next) {
			next = qp.readyAt
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

// activeHeap is the heap of active pods.
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

// Push implements heap.Interface.
func (t *activeHeap) Push(x any) {
	if qp, ok := x.(*queuedPod); ok {
		qp.heapIndex = len(*t)
		*t = append(*t, qp)
	}
}

// Pop implements heap.Interface.
func (t *activeHeap) Pop() any {
	last := len(*t) - 1
	qp := (*t)[last]
	(*t)[last] = nil
	*t = (*t)[:last]
	qp.heapIndex = -1
	return qp
}
