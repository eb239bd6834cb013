package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/admission"
	"berth/agent/plan"
	"berth/podspec"
)

// room owns what concerns the whole node: who is admitted, what is allocated,
// whose turn it is to start. One goroutine; a pod is checked and its resources
// are reserved in one step, so that many pods asking at once never overcommit.
//
//	asked ──fits──► admitted, waits for its turn ──► OK ──started──► OK, slot given back
//	  ├──full──► Wait (asked again when something is released)
//	  └──never fits──► Rejected
type room struct {
	node   admission.Node
	slots  int           // pods that may be starting at once
	bound  time.Duration // longest time that a start slot is held
	alone  bool          // no control server: criticality goes by priority only
	asks   chan seat
	frees  chan types.UID
	starts chan types.UID
	nodes  chan admission.Node
	census chan chan Census
	closed chan struct{} // when Run has returned
}

// seat is one pod in the room.
type seat struct {
	pod      *corev1.Pod
	admitted bool // let in before: no check
	resize   bool // known already: wants other resources
	reply    func(plan.Verdict)
	told     plan.Verdict // the last answer: it is not given twice
}

func (s *seat) tell(v plan.Verdict) {
	if v != s.told {
		s.told = v
		s.reply(v)
	}
}

// RoomConfig is what a room is made of.
type RoomConfig struct {
	Node  admission.Node
	Slots int           // pods starting at once; at least 1
	Bound time.Duration // longest time that a start slot is held
	Alone bool          // standalone node
}

func newRoom(c RoomConfig) *room {
	return &room{
		node: c.Node, slots: max(1, c.Slots), bound: cmp.Or(c.Bound, 30*time.Second), alone: c.Alone,
		asks: make(chan seat), frees: make(chan types.UID), starts: make(chan types.UID),
		nodes: make(chan admission.Node), census: make(chan chan Census), closed: make(chan struct{}),
	}
}

// Census is what the room holds.
type Census struct {
	Admitted, Starting, Waiting int
	Used                        admission.Used
	Node                        admission.Node
}

// Refusal says why a new pod would not be let in now; empty: it would.
func (c Census) Refusal(pod *corev1.Pod) string {
	refusals := admission.Check(c.Node, c.Used, pod)
	if len(refusals) == 0 {
		return ""
	}
	return refusals[0].String()
}

// Ask asks for a pod. Answers come by seat.reply: one at least, more while the
// pod waits.
func (r *room) Ask(s seat) { r.asks <- s }

// Release gives back all that the pod holds.
func (r *room) Release(uid types.UID) { r.frees <- uid }

// Started gives the pod's start slot back.
func (r *room) Started(uid types.UID) { r.starts <- uid }

// SetNode changes what the node offers. Nobody who is in is judged again.
func (r *room) SetNode(n admission.Node) { r.nodes <- n }

// Census counts.
func (r *room) Census(ctx context.Context) (Census, error) {
	reply := make(chan Census, 1)
	select {
	case r.census <- reply:
		return <-reply, nil
	case <-r.closed:
		return Census{}, errors.New("the agent has left")
	case <-ctx.Done():
		return Census{}, ctx.Err()
	}
}

// floor is the state that Run owns.
type floor struct {
	*room
	used     admission.Used
	admitted map[types.UID]*corev1.Pod
	waiting  map[types.UID]seat      // does not fit now
	queue    []seat                  // admitted, waits for a start slot
	starting map[types.UID]time.Time // since when
}

// Run is the room's goroutine. It ends with ctx, which must outlive everybody
// who asks, releases or starts.
func (r *room) Run(ctx context.Context) {
	defer close(r.closed)
	f := &floor{room: r, admitted: map[types.UID]*corev1.Pod{}, waiting: map[types.UID]seat{}, starting: map[types.UID]time.Time{}}
	tick := time.NewTimer(0)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-r.asks:
			f.enter(s)
			if s.resize { // it may have left room
				f.again()
			}
		case uid := <-r.frees:
			f.leave(uid)
		case uid := <-r.starts:
			delete(f.starting, uid)
		case n := <-r.nodes:
			r.node = n
			f.again()
		case c := <-r.census:
			c <- Census{len(f.admitted), len(f.starting), len(f.waiting) + len(f.queue), f.used, r.node}
		case <-tick.C:
			f.expire()
		}
		f.turn()
		if next := f.nextExpiry(); !next.IsZero() {
			tick.Reset(time.Until(next))
		}
	}
}

func (f *floor) enter(s seat) {
	uid := s.pod.UID
	if s.resize {
		f.resize(s)
		return
	}
	if s.admitted {
		if _, in := f.admitted[uid]; !in {
			f.admitted[uid] = s.pod
			f.used.Add(s.pod)
		}
		s.tell(plan.Verdict{State: plan.OK})
		return
	}
	refusals := admission.Check(f.node, f.used, s.pod)
	if len(refusals) == 0 {
		delete(f.waiting, uid)
		f.admitted[uid] = s.pod
		f.used.Add(s.pod)
		f.queue = append(f.queue, s)
		return
	}
	v := verdictOf(refusals)
	s.tell(v)
	if v.State == plan.Wait {
		f.waiting[uid] = s
	} else {
		delete(f.waiting, uid)
	}
}

// verdictOf is Rejected as soon as one refusal is for good: waiting for room
// would be in vain.
func verdictOf(refusals []admission.Refusal) plan.Verdict {
	for _, x := range refusals {
		if !x.Recoverable {
			return plan.Verdict{State: plan.Rejected, Reason: x.Reason, Message: x.Message}
		}
	}
	return plan.Verdict{State: plan.Wait, Reason: refusals[0].Reason, Message: refusals[0].Message}
}

func (f *floor) leave(uid types.UID) {
	delete(f.waiting, uid)
	delete(f.starting, uid)
	f.queue = slices.DeleteFunc(f.queue, func(s seat) bool { return s.pod.UID == uid })
	if pod, in := f.admitted[uid]; in {
		delete(f.admitted, uid)
		f.used.Remove(pod)
		f.again()
	}
}

// again asks for everybody who waits for room, the most important first.
func (f *floor) again() {
	waiting := make([]seat, 0, len(f.waiting))
	for _, s := range f.waiting {
		waiting = append(waiting, s)
	}
	f.sort(waiting)
	for _, s := range waiting {
		f.enter(s)
	}
}

// turn hands out free start slots: critical pods, then priority, then age.
func (f *floor) turn() {
	if len(f.queue) == 0 {
		return
	}
	f.sort(f.queue)
	for len(f.queue) > 0 && len(f.starting) < f.slots {
		s := f.queue[0]
		f.queue = f.queue[1:]
		f.starting[s.pod.UID] = time.Now()
		s.tell(plan.Verdict{State: plan.OK})
	}
	for i := range f.queue {
		f.queue[i].tell(queued(i, f.slots))
	}
}

// queued is the answer to a pod with so many before it. The number is told
// roughly, or every start would wake everybody who waits.
func queued(before, slots int) plan.Verdict {
	words := "it is next"
	if before > 0 {
		words = fmt.Sprintf("fewer than %d others are before it", 1<<bits.Len(uint(before)))
	}
	return plan.Verdict{
		State: plan.Wait, Reason: "StartQueued",
		Message: fmt.Sprintf("waits for its turn, because at most %d pods start at once: %s", slots, words),
	}
}

func (f *floor) sort(seats []seat) {
	critical := func(p *corev1.Pod) int {
		if podspec.Critical(p, f.alone) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(seats, func(a, b seat) int {
		return cmp.Or(
			cmp.Compare(critical(a.pod), critical(b.pod)),
			cmp.Compare(podspec.Priority(b.pod), podspec.Priority(a.pod)),
			a.pod.CreationTimestamp.Compare(b.pod.CreationTimestamp.Time),
			cmp.Compare(a.pod.Namespace+"/"+a.pod.Name, b.pod.Namespace+"/"+b.pod.Name),
		)
	})
}

// expire takes the slot of a start that takes too long: a slow pull must not
// hold up the node.
func (f *floor) expire() {
	for uid, since := range f.starting {
		if time.Since(since) >= f.bound {
			delete(f.starting, uid)
		}
	}
}

func (f *floor) nextExpiry() (next time.Time) {
	if len(f.queue) == 0 {
		return time.Time{}
	}
	for _, since := range f.starting {
		if at := since.Add(f.bound); next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next
}
