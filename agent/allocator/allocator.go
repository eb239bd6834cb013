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

// Allocator admits pods, reserves their resources and assigns start slots. It checks a pod and
// reserves its resources in one step on one goroutine, so that concurrent requests never overcommit
// the node.
//
//	request ──fits──► admitted, queued for a start slot ──► Admitted ──ReleaseStartSlot──► slot free
//	  ├──admitted before──► Admitted, or queued for a start slot if none of its containers run
//	  ├──no resources, critical pod──► other pods are preempted ──► Wait
//	  ├──no resources, but pods are terminating or the pod is static──► Wait (retried after a release)
//	  └──no resources, pod from an API server; or it can never fit──► Rejected
type Allocator struct {
	node              admission.Node
	startSlots        int     // pods that may start at once
	pressureThreshold float64 // see Config
	minStartSlots     int     // see Config
	cpuPressure       func() (percent float64, known bool)
	startTimeout      time.Duration // longest time that a start slot is held
	standalone        bool          // no API server: priority alone determines criticality
	released          func(types.UID)
	heartbeat         func() // nil: none
	requests          chan Request
	releases          chan types.UID
	slotReleases      chan types.UID
	terminations      chan types.UID
	nodeUpdates       chan admission.Node
	snapshots         chan chan Snapshot
	closed            chan struct{} // closed when Run has returned
}

// Request asks to admit a pod, to register an admitted one or to resize one.
type Request struct {
	Pod            *corev1.Pod
	Admitted       bool // admitted before, so it is not checked again
	Terminating    bool // with Admitted: see MarkTerminating
	NeedsStartSlot bool // with Admitted: none of its containers run and it waits for a start slot
	Resize         bool // the pod is known and wants other resources
	Reply          func(plan.Verdict)
	// terminates the admitted pod in favor of another one, nil: it cannot be preempted
	Preempt       func(plan.Termination)
	lastReply     plan.Verdict // last verdict, not sent twice
	deferredSince time.Time    // first deferral of a Resize
	victims       string       // names of the pods preempted for it
}

func (s *Request) reply(v plan.Verdict) {
	if v != s.lastReply {
		s.lastReply = v
		s.Reply(v)
	}
}

// Config is the configuration of an Allocator.
type Config struct {
	Node         admission.Node
	StartSlots   int             // pods that may start at once, at least 1
	StartTimeout time.Duration   // longest time that a start slot is held
	Standalone   bool            // there is no API server
	Released     func(types.UID) // called when a pod has released its resources, must not block, optional

	// CPUPressure returns the percentage of time in which tasks wait for a CPU (PSI some avg10).
	// Above CPUPressureThreshold fewer pods start at once, but at least MinStartSlots, see
	// StartSlotsUnderPressure. Optional.
	CPUPressure          func() (percent float64, known bool)
	CPUPressureThreshold float64
	MinStartSlots        int // default 1

	// Heartbeat is called at least every HeartbeatInterval while Run makes progress. Optional.
	Heartbeat func()
}

// HeartbeatInterval is the interval at which an idle loop reports progress.
const HeartbeatInterval = 5 * time.Second

// New returns an Allocator. The caller must call Run.
func New(c Config) *Allocator {
	return &Allocator{
		node: c.Node, startSlots: max(1, c.StartSlots), startTimeout: cmp.Or(c.StartTimeout, 30*time.Second),
		standalone:  c.Standalone,
		cpuPressure: c.CPUPressure, pressureThreshold: c.CPUPressureThreshold, minStartSlots: c.MinStartSlots,
		released: c.Released, heartbeat: c.Heartbeat,
		requests: make(chan Request), releases: make(chan types.UID), slotReleases: make(chan types.UID),
		terminations: make(chan types.UID),
		nodeUpdates:  make(chan admission.Node), snapshots: make(chan chan Snapshot), closed: make(chan struct{}),
	}
}

// Snapshot is the state of the allocator at one time.
type Snapshot struct {
	Admitted, Starting, Waiting int
	Used                        admission.Used
	Node                        admission.Node
}

// Rejection returns why a new pod would not be admitted now, or "".
func (c Snapshot) Rejection(pod *corev1.Pod) string {
	refusals := admission.Check(c.Node, c.Used, pod)
	if len(refusals) == 0 {
		return ""
	}
	return refusals[0].String()
}

// Without returns the snapshot as if an admitted pod had released its resources.
func (c Snapshot) Without(pod *corev1.Pod) Snapshot {
	c.Used.Remove(pod)
	return c
}

// CheckResize returns the verdict for a resize of an admitted pod from was to pod.
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

// Submit submits a request. Request.Reply is called at least once, and again when the verdict of a
// waiting pod changes.
func (r *Allocator) Submit(s Request) { r.requests <- s }

// Release releases everything that the pod holds.
func (r *Allocator) Release(uid types.UID) { r.releases <- uid }

// MarkTerminating records that the pod terminates or may no longer be desired. It keeps its
// resources until Release, but no pod is rejected because of them. A request with Admitted and
// without Terminating reverts it.
func (r *Allocator) MarkTerminating(uid types.UID) { r.terminations <- uid }

// ReleaseStartSlot releases the start slot of the pod.
func (r *Allocator) ReleaseStartSlot(uid types.UID) { r.slotReleases <- uid }

// SetNode replaces the node. Admitted pods are not checked again.
func (r *Allocator) SetNode(n admission.Node) {
	select {
	case r.nodeUpdates <- n:
	case <-r.closed:
	}
}

// Snapshot returns the current state.
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

// state is the state owned by Run.
type state struct {
	*Allocator
	used         admission.Used
	admitted     map[types.UID]*corev1.Pod
	preemptFuncs map[types.UID]func(plan.Termination) // of admitted pods that can be preempted
	terminating  map[types.UID]bool                   // of admitted pods: their resources will be released
	waiting      map[types.UID]Request                // no resources at present
	queue        []Request                            // admitted, waiting for a start slot
	starting     map[types.UID]time.Time              // start times
	throttled    bool                                 // fewer start slots because of CPU pressure
}

// Run processes requests until ctx is done. No other method may be called after that, except
// SetNode and Snapshot.
func (r *Allocator) Run(ctx context.Context) {
	defer close(r.closed)
	f := &state{
		Allocator: r, admitted: map[types.UID]*corev1.Pod{}, preemptFuncs: map[types.UID]func(plan.Termination){},
		terminating: map[types.UID]bool{},
		waiting:     map[types.UID]Request{}, starting: map[types.UID]time.Time{},
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
			if s.Resize { // it may have released resources
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
		} else if s.Preempt != nil { // registered before its worker existed
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
		case f.terminating[uid]: // its resources will not be released, so waiting pods are checked again
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

// rejectReplaceable rejects a pod from an API server that does not fit now, because its controller
// can replace it on another node. The pod only waits for resources of terminating pods and for
// devices that are not registered yet.
func (f *state) rejectReplaceable(v plan.Verdict, pod *corev1.Pod) plan.Verdict {
	for _, x := range admission.Check(f.node, f.usedLater(pod), pod) {
		if x.Resource != "" && x.Capacity == 0 && podspec.IsExtended(x.Resource) {
			continue
		}
		// The message describes the present state, in which terminating pods still use resources.
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

// verdictOf returns Rejected if any rejection is permanent, because waiting would be useless.
func verdictOf(refusals []admission.Rejection) plan.Verdict {
	for _, x := range refusals {
		if !x.Recoverable {
			return plan.Verdict{State: plan.Rejected, Reason: x.Reason, Message: x.Message}
		}
	}
	return plan.Verdict{State: plan.Wait, Reason: refusals[0].Reason, Message: refusals[0].Message}
}

func (f *state) release(uid types.UID) {
	if f.released != nil { // before another pod is admitted
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

// retryWaiting checks the waiting pods again in order of importance.
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

// Compare orders pods for start slots and resources: critical pods first, then by priority, then by
// age.
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

// compareDeferred orders deferred resizes as upstream: by QoS class, then by waiting time.
func compareDeferred(a, b Request) int {
	if !a.Resize || !b.Resize {
		return 0
	}
	rank := func(p *corev1.Pod) int {
		return slices.Index([]corev1.PodQOSClass{corev1.PodQOSGuaranteed, corev1.PodQOSBurstable, corev1.PodQOSBestEffort},
			podspec.QOSClass(p))
	}
	return cmp.Or(cmp.Compare(rank(a.Pod), rank(b.Pod)), a.deferredSince.Compare(b.deferredSince))
}
