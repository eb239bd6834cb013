package allocator

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

// Room owns what concerns the whole node: who is admitted, what is allocated,
// whose turn it is to start. One goroutine; a pod is checked and its resources
// are reserved in one step, so that many pods asking at once never overcommit.
//
//	asked ──fits──► admitted, waits for its turn ──► OK ──started──► OK, slot given back
//	  ├──let in before──► OK, or if nothing of it runs: admitted, waits for its turn
//	  ├──full, and it is critical──► others are told to end for it──► Wait
//	  ├──full, but pods are ending or it is a file's──► Wait (asked again when something is released)
//	  └──full, and a server has assigned it; or it never fits──► Rejected
type Room struct {
	node    admission.Node
	slots   int     // pods that may be starting at once
	from    float64 // see Config
	least   int     // see Config
	stalled func() (percent float64, known bool)
	bound   time.Duration // longest time that a start slot is held
	alone   bool          // no control server: criticality goes by priority only
	left    func(types.UID)
	pulse   func() // nil: nobody
	asks    chan Seat
	frees   chan types.UID
	starts  chan types.UID
	ends    chan types.UID
	nodes   chan admission.Node
	census  chan chan Census
	closed  chan struct{} // when Run has returned
}

// Seat is one pod in the room.
type Seat struct {
	Pod      *corev1.Pod
	Admitted bool // let in before: no check
	Ending   bool // of an Admitted one: it is on its way out, see Ends
	Turn     bool // of an Admitted one: nothing of it runs, it waits for its turn to start
	Resize   bool // known already: wants other resources
	Reply    func(plan.Verdict)
	End      func(plan.End) // tells the pod, once it is in, that it has to go for another; nil: it cannot be told
	told     plan.Verdict   // the last answer: it is not given twice
	since    time.Time      // when a Resize was first deferred
	preempts string         // who has to go for it, by name
}

func (s *Seat) tell(v plan.Verdict) {
	if v != s.told {
		s.told = v
		s.Reply(v)
	}
}

// Config is what a room is made of.
type Config struct {
	Node  admission.Node
	Slots int             // pods starting at once; at least 1
	Bound time.Duration   // longest time that a start slot is held
	Alone bool            // standalone node
	Left  func(types.UID) // told of every pod that has given back what it held; must not wait; nil: nobody

	// Stalled is the part of the time, in percent, in which tasks wait for a CPU (PSI,
	// some avg10). While it is more than From fewer pods start at once, but Least all
	// the same: see Pressed. Nil: nobody knows.
	Stalled func() (percent float64, known bool)
	From    float64
	Least   int // default 1

	// Pulse is told that the room makes progress, every PulseEvery at least; nil:
	// nobody.
	Pulse func()
}

// PulseEvery is how often a loop shows that it makes progress when it has
// nothing to do.
const PulseEvery = 5 * time.Second

// New returns a room that Run has to be called for.
func New(c Config) *Room {
	return &Room{
		node: c.Node, slots: max(1, c.Slots), bound: cmp.Or(c.Bound, 30*time.Second), alone: c.Alone,
		stalled: c.Stalled, from: c.From, least: c.Least, left: c.Left, pulse: c.Pulse,
		asks: make(chan Seat), frees: make(chan types.UID), starts: make(chan types.UID), ends: make(chan types.UID),
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

// Without is a census as if a pod were gone that has been let in.
func (c Census) Without(pod *corev1.Pod) Census {
	c.Used.Remove(pod)
	return c
}

// Resize says what a pod that has been let in would be answered if it wanted other
// resources; was is the pod with what it holds.
func (c Census) Resize(was, pod *corev1.Pod) plan.Verdict {
	if no := forbidden(c.Node, was, pod); no != nil {
		return *no
	}
	rest := c.Without(was)
	if refusals := admission.Resources(rest.Node, rest.Used, pod); len(refusals) > 0 {
		return unresized(refusals)
	}
	return plan.Verdict{State: plan.OK}
}

// Ask asks for a pod. Answers come by Seat.Reply: one at least, more while the
// pod waits.
func (r *Room) Ask(s Seat) { r.asks <- s }

// Release gives back all that the pod holds.
func (r *Room) Release(uid types.UID) { r.frees <- uid }

// Ends says that the pod is on its way out, or that nobody may want it any more:
// it holds its room until Release, but nobody is rejected for want of that room.
// Asking for it again as admitted and not Ending takes that back.
func (r *Room) Ends(uid types.UID) { r.ends <- uid }

// Started gives the pod's start slot back.
func (r *Room) Started(uid types.UID) { r.starts <- uid }

// SetNode changes what the node offers. Nobody who is in is judged again.
func (r *Room) SetNode(n admission.Node) {
	select {
	case r.nodes <- n:
	case <-r.closed:
	}
}

// Census counts.
func (r *Room) Census(ctx context.Context) (Census, error) {
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
	*Room
	used     admission.Used
	admitted map[types.UID]*corev1.Pod
	tell     map[types.UID]func(plan.End) // of the admitted that can be told to go
	ending   map[types.UID]bool           // of the admitted: their room comes free soon
	waiting  map[types.UID]Seat           // does not fit now
	queue    []Seat                       // admitted, waits for a start slot
	starting map[types.UID]time.Time      // since when
	fewer    bool                         // slots than there might be: the CPUs are under pressure
}

// Run is the room's goroutine. It ends with ctx, which must outlive everybody
// who asks, releases or starts.
func (r *Room) Run(ctx context.Context) {
	defer close(r.closed)
	f := &floor{
		Room: r, admitted: map[types.UID]*corev1.Pod{}, tell: map[types.UID]func(plan.End){}, ending: map[types.UID]bool{},
		waiting: map[types.UID]Seat{}, starting: map[types.UID]time.Time{},
	}
	tick := time.NewTimer(0)
	defer tick.Stop()
	pulse := time.NewTicker(PulseEvery)
	defer pulse.Stop()
	for {
		if r.pulse != nil {
			r.pulse()
		}
		select {
		case <-pulse.C:
			continue
		case <-ctx.Done():
			return
		case s := <-r.asks:
			f.enter(s)
			if s.Resize { // it may have left room
				f.again()
			}
		case uid := <-r.frees:
			f.leave(uid)
		case uid := <-r.ends:
			if f.admitted[uid] != nil {
				f.ending[uid] = true
			}
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

func (f *floor) enter(s Seat) {
	uid := s.Pod.UID
	if s.Resize {
		f.resize(s)
		return
	}
	if s.Admitted {
		if _, in := f.admitted[uid]; !in {
			f.admit(s)
		} else if s.End != nil { // seated before anybody spoke for it
			f.tell[uid] = s.End
		}
		if s.Turn {
			f.queue = append(f.queue, s)
		} else {
			s.tell(plan.Verdict{State: plan.OK})
		}
		switch {
		case s.Ending:
			f.ending[uid] = true
		case f.ending[uid]: // it stays: who counts on its room is to hear of it
			delete(f.ending, uid)
			f.again()
		}
		return
	}
	refusals := f.refusals(s.Pod)
	if len(refusals) == 0 {
		delete(f.waiting, uid)
		f.admit(s)
		f.queue = append(f.queue, s)
		return
	}
	f.preempt(&s)
	v := verdictOf(refusals)
	v.Preempts = s.preempts
	if v.State == plan.Wait && podspec.FromAPIServer(s.Pod) {
		v = f.orReplaced(v, s.Pod)
	}
	s.tell(v)
	if v.State == plan.Wait {
		f.waiting[uid] = s
	} else {
		delete(f.waiting, uid)
	}
}

func (f *floor) admit(s Seat) {
	f.admitted[s.Pod.UID] = s.Pod
	f.used.Add(s.Pod)
	if s.End != nil {
		f.tell[s.Pod.UID] = s.End
	}
}

// orReplaced rejects a pod of a server that does not fit now: its controller has
// another made, which may fit elsewhere. It waits only for what comes by itself:
// the room of pods that are ending, and devices that are not registered yet.
func (f *floor) orReplaced(v plan.Verdict, pod *corev1.Pod) plan.Verdict {
	for _, x := range admission.Check(f.node, f.later(pod), pod) {
		if x.Resource != "" && x.Capacity == 0 && podspec.IsExtended(x.Resource) {
			continue
		}
		// In the words of what is in the way now: what ends holds its room still.
		for _, now := range admission.Check(f.node, f.used, pod) {
			if now.Reason == x.Reason {
				x = now
				break
			}
		}
		return plan.Verdict{State: plan.Rejected, Reason: x.Reason, Message: x.Message}
	}
	return v
}

// verdictOf is Rejected as soon as one refusal is for good: waiting for room
// would be in vain.
func verdictOf(refusals []admission.Rejection) plan.Verdict {
	for _, x := range refusals {
		if !x.Recoverable {
			return plan.Verdict{State: plan.Rejected, Reason: x.Reason, Message: x.Message}
		}
	}
	return plan.Verdict{State: plan.Wait, Reason: refusals[0].Reason, Message: refusals[0].Message}
}

func (f *floor) leave(uid types.UID) {
	if f.left != nil { // before anybody is let in for it
		f.left(uid)
	}
	claimed := f.waiting[uid].preempts != ""
	delete(f.waiting, uid)
	delete(f.starting, uid)
	f.queue = slices.DeleteFunc(f.queue, func(s Seat) bool { return s.Pod.UID == uid })
	if pod, in := f.admitted[uid]; in {
		delete(f.admitted, uid)
		delete(f.tell, uid)
		delete(f.ending, uid)
		f.used.Remove(pod)
		claimed = true
	}
	if claimed {
		f.again()
	}
}

// again asks for everybody who waits for room, the most important first.
func (f *floor) again() {
	waiting := make([]Seat, 0, len(f.waiting))
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
	for f.free() > 0 && len(f.queue) > 0 {
		s := f.queue[0]
		f.queue = f.queue[1:]
		f.starting[s.Pod.UID] = time.Now()
		s.tell(plan.Verdict{State: plan.OK})
	}
	for i := range f.queue {
		f.queue[i].tell(queued(i, f.slots, f.fewer))
	}
}

// queued is the answer to a pod with so many before it. The number is told
// roughly, or every start would wake everybody who waits.
func queued(before, slots int, fewer bool) plan.Verdict {
	words := "it is next"
	if before > 0 {
		words = fmt.Sprintf("fewer than %d others are before it", 1<<bits.Len(uint(before)))
	}
	most := fmt.Sprintf("at most %d pods start at once", slots)
	if fewer {
		most += ", fewer while the CPUs are under pressure"
	}
	return plan.Verdict{
		State: plan.Wait, Reason: "StartQueued",
		Message: fmt.Sprintf("waits for its turn, because %s: %s", most, words),
	}
}

func (f *floor) sort(seats []Seat) {
	slices.SortStableFunc(seats, func(a, b Seat) int {
		return cmp.Or(f.weight(a.Pod, b.Pod), deferral(a, b), age(a.Pod, b.Pod))
	})
}

// Order compares two pods by whose turn comes first: critical pods, then priority,
// then age.
func (r *Room) Order(a, b *corev1.Pod) int { return cmp.Or(r.weight(a, b), age(a, b)) }

func (r *Room) weight(a, b *corev1.Pod) int {
	critical := func(p *corev1.Pod) int {
		if podspec.IsCritical(p, r.alone) {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(critical(a), critical(b)), cmp.Compare(podspec.Priority(b), podspec.Priority(a)))
}

func age(a, b *corev1.Pod) int {
	return cmp.Or(
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		cmp.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name),
	)
}

// deferral puts resizes that are deferred in upstream's order: by quality of
// service, then the one that has waited longer.
func deferral(a, b Seat) int {
	if !a.Resize || !b.Resize {
		return 0
	}
	rank := func(p *corev1.Pod) int {
		return slices.Index([]corev1.PodQOSClass{corev1.PodQOSGuaranteed, corev1.PodQOSBurstable, corev1.PodQOSBestEffort}, podspec.QOSClass(p))
	}
	return cmp.Or(cmp.Compare(rank(a.Pod), rank(b.Pod)), a.since.Compare(b.since))
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
	if f.fewer {
		next = time.Now().Add(lookAgain)
	}
	for _, since := range f.starting {
		if at := since.Add(f.bound); next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next
}
