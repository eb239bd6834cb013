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
	firstBackOff  = time.Second
	longestBack   = 10 * time.Second
	longestWaited = 5 * time.Minute // then a pod is looked at again, told or not
)

// state says where a waiting pod is.
type state int

const (
	active  state = iota // its turn comes
	resting              // backing off, then active
	waiting              // until something changes that may help
	gated                // until its gates are gone
	assumed              // on its way to a node
)

// entry is one pod without a node.
type entry struct {
	pod      *corev1.Pod
	state    state
	since    time.Time // in the queue
	attempts int
	tried    time.Time
	until    time.Time        // resting, waiting: active, rested then
	refused  []placement.Rule // waiting: what refused it
	index    int              // in the heap

	// turn counts the attempts, and that the pod is forgotten: a call to the server
	// that has waited for its place sees by it whether what it has to say is still so.
	turn atomic.Int64
	// calling is held by a call that writes of the pod: one at a time.
	calling sync.Mutex
}

// queue is the pods without a node. It has no clock: callers say what time it is.
type queue struct {
	entries map[types.UID]*entry
	turn    turns
}

func newQueue() *queue { return &queue{entries: map[types.UID]*entry{}} }

// set takes in a new pod, or what is new about it. It reports whether the pod
// is one more that waits for its gates.
func (q *queue) set(pod *corev1.Pod, now time.Time) (newlyGated bool) {
	e, known := q.entries[pod.UID]
	if !known {
		e = &entry{pod: pod, since: now, state: waiting, index: -1}
		q.entries[pod.UID] = e
	}
	old := e.pod
	e.pod = pod
	switch {
	case e.state == assumed:
	case len(pod.Spec.SchedulingGates) > 0:
		q.leaveTurn(e)
		e.state = gated
		return !known
	case !known || e.state == gated:
		q.activate(e)
	case e.state == active:
		heap.Fix(&q.turn, e.index)
	case e.state == waiting && wishesChanged(old, pod):
		q.wake(e, now)
	}
	return false
}

// wishesChanged reports whether another node may do for the pod now.
func wishesChanged(old, pod *corev1.Pod) bool {
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

// drop forgets a pod.
func (q *queue) drop(uid types.UID) {
	if e, ok := q.entries[uid]; ok {
		q.leaveTurn(e)
		e.turn.Add(1)
		delete(q.entries, uid)
	}
}

// next takes the pod whose turn it is: the highest priority, then the longest
// in the queue. nil: none.
func (q *queue) next(now time.Time) *entry {
	if len(q.turn) == 0 {
		return nil
	}
	e, ok := heap.Pop(&q.turn).(*entry)
	if !ok {
		return nil
	}
	e.state = assumed
	e.attempts++
	e.turn.Add(1)
	e.tried = now
	return e
}

// wait puts a pod for which there was no node aside.
func (q *queue) wait(e *entry, refused []placement.Rule, now time.Time) {
	e.state, e.refused, e.until = waiting, refused, now.Add(longestWaited)
}

// rest puts a pod aside for its back-off: something went wrong.
func (q *queue) rest(uid types.UID, now time.Time) {
	if e, ok := q.entries[uid]; ok {
		q.wake(e, now)
	}
}

// again wakes a pod that waits; one that has had another turn since needs nothing.
func (q *queue) again(uid types.UID, now time.Time) {
	if e, ok := q.entries[uid]; ok && e.state == waiting {
		q.wake(e, now)
	}
}

// tell wakes the pods that one of the rules refused; no rules wake all.
func (q *queue) tell(now time.Time, rules ...placement.Rule) {
	for _, e := range q.entries {
		if e.state == waiting && (len(rules) == 0 || slices.ContainsFunc(e.refused, func(r placement.Rule) bool { return slices.Contains(rules, r) })) {
			q.wake(e, now)
		}
	}
}

// wake makes a pod active as soon as its back-off is over.
func (q *queue) wake(e *entry, now time.Time) {
	if until := e.tried.Add(backOff(e.attempts)); now.Before(until) {
		e.state, e.until = resting, until
		return
	}
	q.activate(e)
}

func (q *queue) activate(e *entry) {
	e.state = active
	if e.index < 0 {
		heap.Push(&q.turn, e)
	}
}

func (q *queue) leaveTurn(e *entry) {
	if e.index >= 0 {
		heap.Remove(&q.turn, e.index)
	}
}

// due activates what has rested or waited long enough and says when the next
// one will have; zero: none.
func (q *queue) due(now time.Time) (next time.Time) {
	for _, e := range q.entries {
		if e.state != resting && e.state != waiting {
			continue
		}
		if !now.Before(e.until) {
			q.activate(e)
			continue
		}
		if next.IsZero() || e.until.Before(next) {
			next = e.until
		}
	}
	return next
}

func backOff(attempts int) time.Duration {
	if attempts == 0 {
		return 0
	}
	return min(longestBack, firstBackOff<<min(attempts-1, 10))
}

// turns is a heap of active entries.
type turns []*entry

func (t *turns) Len() int { return len(*t) }

func (t *turns) Less(i, j int) bool {
	one, other := (*t)[i], (*t)[j]
	a, b := podspec.Priority(one.pod), podspec.Priority(other.pod)
	if a != b {
		return a > b
	}
	return one.since.Before(other.since)
}

func (t *turns) Swap(i, j int) {
	all := *t
	all[i], all[j] = all[j], all[i]
	all[i].index, all[j].index = i, j
}

// Push is for package heap.
func (t *turns) Push(x any) {
	if e, ok := x.(*entry); ok {
		e.index = len(*t)
		*t = append(*t, e)
	}
}

// Pop is for package heap.
func (t *turns) Pop() any {
	last := len(*t) - 1
	e := (*t)[last]
	(*t)[last] = nil
	*t = (*t)[:last]
	e.index = -1
	return e
}
