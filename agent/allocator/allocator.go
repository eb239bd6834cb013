package allocator

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/admission"
	"berth/agent/plan"
	"berth/podspec"
)

// Allocator owns what concerns the whole node: who is admitted, what is allocated,
// whose turn it is to start. One goroutine; a pod is checked and its resources
// are reserved in one step, so that many pods asking at once never overcommit.
//
//	asked ──fits──► admitted, waits for its turn ──► OK ──started──► OK, slot given back
//	  ├──let in before──► OK, or if nothing of it runs: admitted, waits for its turn
//	  ├──full, and it is critical──► others are told to end for it──► Wait
//	  ├──full, but pods are ending or it is a file's──► Wait (asked again when something is released)
//	  └──full, and a server has assigned it; or it never fits──► Rejected
type Allocator struct {
	node              admission.Node
	startSlots        int     // pods that may be starting at once
	pressureThreshold float64 // see Config
	minStartSlots     int     // see Config
	cpuPressure       func() (percent float64, known bool)
	startTimeout      time.Duration // longest time that a start slot is held
	standalone        bool          // no control server: criticality goes by priority only
	released          func(types.UID)
	heartbeat         func() // nil: nobody
	requests          chan Request
	releases          chan types.UID
	slotReleases      chan types.UID
	terminations      chan types.UID
	nodeUpdates       chan admission.Node
	snapshots         chan chan Snapshot
	closed            chan struct{} // when Run has returned
}

// Request is one pod in the room.
type Request struct {
	Pod            *corev1.Pod
	Admitted       bool // let in before: no check
	Terminating    bool // of an Admitted one: it is on its way out, see Ends
	NeedsStartSlot bool // of an Admitted one: nothing of it runs, it waits for its turn to start
	Resize         bool // known already: wants other resources
	Reply          func(plan.Verdict)
	Preempt        func(plan.Termination) // tells the pod, once it is in, that it has to go for another; nil: it cannot be told
	lastReply      plan.Verdict           // the last answer: it is not given twice
	deferredSince  time.Time              // when a Resize was first deferred
	victims        string                 // who has to go for it, by name
}

func (s *Request) reply(v plan.Verdict) {
	if v != s.lastReply {
		s.lastReply = v
		s.Reply(v)
	}
}

// Config is what a room is made of.
type Config struct {
	Node         admission.Node
	StartSlots   int             // pods starting at once; at least 1
	StartTimeout time.Duration   // longest time that a start slot is held
	Standalone   bool            // standalone node
	Released     func(types.UID) // told of every pod that has given back what it held; must not wait; nil: nobody

	// CPUPressure is the part of the time, in percent, in which tasks wait for a CPU (PSI,
	// some avg10). While it is more than From fewer pods start at once, but Least all
	// the same: see Pressed. Nil: nobody knows.
	CPUPressure          func() (percent float64, known bool)
	CPUPressureThreshold float64
	MinStartSlots        int // default 1

	// Heartbeat is told that the room makes progress, every PulseEvery at least; nil:
	// nobody.
	Heartbeat func()
}

// HeartbeatInterval is how often a loop shows that it makes progress when it has
// nothing to do.
const HeartbeatInterval = 5 * time.Second

// New returns a room that Run has to be called for.
func New(c Config) *Allocator {
	return &Allocator{
		node: c.Node, startSlots: max(1, c.StartSlots), startTimeout: cmp.Or(c.StartTimeout, 30*time.Second), standalone: c.Standalone,
		cpuPressure: c.CPUPressure, pressureThreshold: c.CPUPressureThreshold, minStartSlots: c.MinStartSlots, released: c.Released, heartbeat: c.Heartbeat,
		requests: make(chan Request), releases: make(chan types.UID), slotReleases: make(chan types.UID), terminations: make(chan types.UID),
		nodeUpdates: make(chan admission.Node), snapshots: make(chan chan Snapshot), closed: make(chan struct{}),
	}
}

// Snapshot is what the room holds.
type Snapshot struct {
	Admitted, Starting, Waiting int
	Used                        admission.Used
	Node                        admission.Node
}

// Rejection says why a new pod would not be let in now; empty: it would.
func (c Snapshot) Rejection(pod *corev1.Pod) string {
	refusals := admission.Check(c.Node, c.Used, pod)
	if len(refusals) == 0 {
		return ""
	}
	return refusals[0].String()
}

// Without is a census as if a pod were gone that has been let in.
func (c Snapshot) Without(pod *corev1.Pod) Snapshot {
	c.Used.Remove(pod)
	return c
}

// CheckResize says what a pod that has been let in would be answered if it wanted other
// resources; was is the pod with what it holds.
func (c Snapshot) CheckResize(was, pod *corev1.Pod) plan.Verdict {
	if no := forbiddenResize(c.Node, was, pod); no != nil {
		return *no
	}
	rest := c.Without(was)
	if refusals := admission.Resources(rest.Node, rest.Used, pod); len(refusals) > 0 {
		return resizeVerdict(refusals)
	}
	return plan.Verdict{State: plan.Admitted}
}

// Submit asks for a pod. Answers come by Seat.Reply: one at least, more while the
// pod waits.
func (r *Allocator) Submit(s Request) { r.requests <- s }

// Release gives back all that the pod holds.
func (r *Allocator) Release(uid types.UID) { r.releases <- uid }

// MarkTerminating says that the pod is on its way out, or that nobody may want it any more:
// it holds its room until Release, but nobody is rejected for want of that room.
// Asking for it again as admitted and not Ending takes that back.
func (r *Allocator) MarkTerminating(uid types.UID) { r.terminations <- uid }

// ReleaseStartSlot gives the pod's start slot back.
func (r *Allocator) ReleaseStartSlot(uid types.UID) { r.slotReleases <- uid }

// SetNode changes what the node offers. Nobody who is in is judged again.
func (r *Allocator) SetNode(n admission.Node) {
	select {
	case r.nodeUpdates <- n:
	case <-r.closed:
	}
}

// Snapshot counts.
func (r *Allocator) Snapshot(ctx context.Context) (Snapshot, error) {
	reply := make(chan Snapshot, 1)
	select {
	case r.snapshots <- reply:
		return <-reply, nil
	case <-r.closed:
		return Snapshot{}, errors.New("the agent has left")
	case <-ctx.Done():
		return Snapshot{}, ctx.Err()
	}
}

// state is the state that Run owns.
type state struct {
	*Allocator
	used         admission.Used
	admitted     map[types.UID]*corev1.Pod
	preemptFuncs map[types.UID]func(plan.Termination) // of the admitted that can be told to go
	terminating  map[types.UID]bool                   // of the admitted: their room comes free soon
	waiting      map[types.UID]Request                // does not fit now
	queue        []Request                            // admitted, waits for a start slot
	starting     map[types.UID]time.Time              // since when
	throttled    bool                                 // slots than there might be: the CPUs are under pressure
}

// Run is the room's goroutine. It ends with ctx, which must outlive everybody
// who asks, releases or starts.
func (r *Allocator) Run(ctx context.Context) {
	defer close(r.closed)
	f := &state{
		Allocator: r, admitted: map[types.UID]*corev1.Pod{}, preemptFuncs: map[types.UID]func(plan.Termination){}, terminating: map[types.UID]bool{},
		waiting: map[types.UID]Request{}, starting: map[types.UID]time.Time{},
	}
	tick := time.NewTimer(0)
	defer tick.Stop()
	pulse := time.NewTicker(HeartbeatInterval)
	defer pulse.Stop()
	for {
		if r.heartbeat != nil {
			r.heartbeat()
		}
		select {
		case <-pulse.C:
			continue
		case <-ctx.Done():
			return
		case s := <-r.requests:
			f.handle(s)
			if s.Resize { // it may have left room
				f.retryWaiting()
			}
		case uid := <-r.releases:
			f.release(uid)
		case uid := <-r.terminations:
			if f.admitted[uid] != nil {
				f.terminating[uid] = true
			}
		case uid := <-r.slotReleases:
			delete(f.starting, uid)
		case n := <-r.nodeUpdates:
			r.node = n
			f.retryWaiting()
		case c := <-r.snapshots:
			c <- Snapshot{len(f.admitted), len(f.starting), len(f.waiting) + len(f.queue), f.used, r.node}
		case <-tick.C:
			f.expireStartSlots()
		}
		f.assignStartSlots()
		if next := f.nextExpiry(); !next.IsZero() {
			tick.Reset(time.Until(next))
		}
	}
}

func (f *state) handle(s Request) {
	uid := s.Pod.UID
	if s.Resize {
		f.resize(s)
		return
	}
	if s.Admitted {
		if _, in := f.admitted[uid]; !in {
			f.admit(s)
		} else if s.Preempt != nil { // seated before anybody spoke for it
			f.preemptFuncs[uid] = s.Preempt
		}
		if s.NeedsStartSlot {
			f.queue = append(f.queue, s)
		} else {
			s.reply(plan.Verdict{State: plan.Admitted})
		}
		switch {
		case s.Terminating:
			f.terminating[uid] = true
		case f.terminating[uid]: // it stays: who counts on its room is to hear of it
			delete(f.terminating, uid)
			f.retryWaiting()
		}
		return
	}
	refusals := f.rejections(s.Pod)
	if len(refusals) == 0 {
		delete(f.waiting, uid)
		f.admit(s)
		f.queue = append(f.queue, s)
		return
	}
	f.preempt(&s)
	v := verdictOf(refusals)
	v.Preempts = s.victims
	if v.State == plan.Wait && podspec.FromAPIServer(s.Pod) {
		v = f.rejectReplaceable(v, s.Pod)
	}
	s.reply(v)
	if v.State == plan.Wait {
		f.waiting[uid] = s
	} else {
		delete(f.waiting, uid)
	}
}

func (f *state) admit(s Request) {
	f.admitted[s.Pod.UID] = s.Pod
	f.used.Add(s.Pod)
	if s.Preempt != nil {
		f.preemptFuncs[s.Pod.UID] = s.Preempt
	}
}

// rejectReplaceable rejects a pod of a server that does not fit now: its controller has
// another made, which may fit elsewhere. It waits only for what comes by itself:
// the room of pods that are ending, and devices that are not registered yet.
func (f *state) rejectReplaceable(v plan.Verdict, pod *corev1.Pod) plan.Verdict {
	for _, x := range admission.Check(f.node, f.usedLater(pod), pod) {
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

func (f *state) release(uid types.UID) {
	if f.released != nil { // before anybody is let in for it
		f.released(uid)
	}
	claimed := f.waiting[uid].victims != ""
	delete(f.waiting, uid)
	delete(f.starting, uid)
	f.queue = slices.DeleteFunc(f.queue, func(s Request) bool { return s.Pod.UID == uid })
	if pod, in := f.admitted[uid]; in {
		delete(f.admitted, uid)
		delete(f.preemptFuncs, uid)
		delete(f.terminating, uid)
		f.used.Remove(pod)
		claimed = true
	}
	if claimed {
		f.retryWaiting()
	}
}

// retryWaiting asks for everybody who waits for room, the most important first.
func (f *state) retryWaiting() {
	waiting := make([]Request, 0, len(f.waiting))
	for _, s := range f.waiting {
		waiting = append(waiting, s)
	}
	f.sort(waiting)
	for _, s := range waiting {
		f.handle(s)
	}
}

func (f *state) sort(seats []Request) {
	slices.SortStableFunc(seats, func(a, b Request) int {
		return cmp.Or(f.compareImportance(a.Pod, b.Pod), compareDeferred(a, b), compareAge(a.Pod, b.Pod))
	})
}

// Compare compares two pods by whose turn comes first: critical pods, then priority,
// then age.
func (r *Allocator) Compare(a, b *corev1.Pod) int {
	return cmp.Or(r.compareImportance(a, b), compareAge(a, b))
}

func (r *Allocator) compareImportance(a, b *corev1.Pod) int {
	critical := func(p *corev1.Pod) int {
		if podspec.IsCritical(p, r.standalone) {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(critical(a), critical(b)), cmp.Compare(podspec.Priority(b), podspec.Priority(a)))
}

func compareAge(a, b *corev1.Pod) int {
	return cmp.Or(
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		cmp.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name),
	)
}

// compareDeferred puts resizes that are deferred in upstream's order: by quality of
// service, then the one that has waited longer.
func compareDeferred(a, b Request) int {
	if !a.Resize || !b.Resize {
		return 0
	}
	rank := func(p *corev1.Pod) int {
		return slices.Index([]corev1.PodQOSClass{corev1.PodQOSGuaranteed, corev1.PodQOSBurstable, corev1.PodQOSBestEffort}, podspec.QOSClass(p))
	}
	return cmp.Or(cmp.Compare(rank(a.Pod), rank(b.Pod)), a.deferredSince.Compare(b.deferredSince))
}
