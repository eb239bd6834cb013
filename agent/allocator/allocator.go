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

func (r *Request) reply(v plan.Verdict) {
	if v != r.lastReply {
		r.lastReply = v
		r.Reply(v)
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
func (s Snapshot) Rejection(pod *corev1.Pod) string {
	rejections := admission.Check(s.Node, s.Used, pod)
	if len(rejections) == 0 {
		return ""
	}
	return rejections[0].String()
}

// Without returns the snapshot as if an admitted pod had released its resources.
func (s Snapshot) Without(pod *corev1.Pod) Snapshot {
	s.Used.Remove(pod)
	return s
}

// CheckResize returns the verdict for a resize of an admitted pod from was to pod.
func (s Snapshot) CheckResize(was, pod *corev1.Pod) plan.Verdict {
	if verdict := forbiddenResize(s.Node, was, pod); verdict != nil {
		return *verdict
	}
	rest := s.Without(was)
	if rejections := admission.Resources(rest.Node, rest.Used, pod); len(rejections) > 0 {
		return resizeVerdict(rejections)
	}
	return plan.Verdict{State: plan.Admitted}
}

// Submit submits a request. Request.Reply is called at least once, and again when the verdict of a
// waiting pod changes.
func (a *Allocator) Submit(r Request) { a.requests <- r }

// Release releases everything that the pod holds.
func (a *Allocator) Release(uid types.UID) { a.releases <- uid }

// MarkTerminating records that the pod terminates or may no longer be desired. It keeps its
// resources until Release, but no pod is rejected because of them. A request with Admitted and
// without Terminating reverts it.
func (a *Allocator) MarkTerminating(uid types.UID) { a.terminations <- uid }

// ReleaseStartSlot releases the start slot of the pod.
func (a *Allocator) ReleaseStartSlot(uid types.UID) { a.slotReleases <- uid }

// SetNode replaces the node. Admitted pods are not checked again.
func (a *Allocator) SetNode(n admission.Node) {
	select {
	case a.nodeUpdates <- n:
	case <-a.closed:
	}
}

// Snapshot returns the current state.
func (a *Allocator) Snapshot(ctx context.Context) (Snapshot, error) {
	reply := make(chan Snapshot, 1)
	select {
	case a.snapshots <- reply:
		return <-reply, nil
	case <-a.closed:
		return Snapshot{}, errors.New("the allocator has stopped")
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
func (a *Allocator) Run(ctx context.Context) {
	defer close(a.closed)
	s := &state{
		Allocator: a, admitted: map[types.UID]*corev1.Pod{}, preemptFuncs: map[types.UID]func(plan.Termination){},
		terminating: map[types.UID]bool{},
		waiting:     map[types.UID]Request{}, starting: map[types.UID]time.Time{},
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	heartbeat := time.NewTicker(HeartbeatInterval)
	defer heartbeat.Stop()
	for {
		if a.heartbeat != nil {
			a.heartbeat()
		}
		select {
		case <-heartbeat.C:
			continue
		case <-ctx.Done():
			return
		case r := <-a.requests:
			s.handle(r)
			if r.Resize { // it may have released resources
				s.retryWaiting()
			}
		case uid := <-a.releases:
			s.release(uid)
		case uid := <-a.terminations:
			if s.admitted[uid] != nil {
				s.terminating[uid] = true
			}
		case uid := <-a.slotReleases:
			delete(s.starting, uid)
		case n := <-a.nodeUpdates:
			a.node = n
			s.retryWaiting()
		case c := <-a.snapshots:
			c <- Snapshot{len(s.admitted), len(s.starting), len(s.waiting) + len(s.queue), s.used, a.node}
		case <-timer.C:
			s.expireStartSlots()
		}
		s.assignStartSlots()
		if next := s.nextExpiry(); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

func (s *state) handle(r Request) {
	uid := r.Pod.UID
	if r.Resize {
		s.resize(r)
		return
	}
	if r.Admitted {
		if _, in := s.admitted[uid]; !in {
			s.admit(r)
		} else if r.Preempt != nil { // registered before its worker existed
			s.preemptFuncs[uid] = r.Preempt
		}
		if r.NeedsStartSlot {
			s.queue = append(s.queue, r)
		} else {
			r.reply(plan.Verdict{State: plan.Admitted})
		}
		switch {
		case r.Terminating:
			s.terminating[uid] = true
		case s.terminating[uid]: // its resources will not be released, so waiting pods are checked again
			delete(s.terminating, uid)
			s.retryWaiting()
		}
		return
	}
	rejections := s.rejections(r.Pod)
	if len(rejections) == 0 {
		delete(s.waiting, uid)
		s.admit(r)
		s.queue = append(s.queue, r)
		return
	}
	s.preempt(&r)
	v := verdictOf(rejections)
	v.Preempts = r.victims
	if v.State == plan.Wait && podspec.FromAPIServer(r.Pod) {
		v = s.rejectReplaceable(v, r.Pod)
	}
	r.reply(v)
	if v.State == plan.Wait {
		s.waiting[uid] = r
	} else {
		delete(s.waiting, uid)
	}
}

func (s *state) admit(r Request) {
	s.admitted[r.Pod.UID] = r.Pod
	s.used.Add(r.Pod)
	if r.Preempt != nil {
		s.preemptFuncs[r.Pod.UID] = r.Preempt
	}
}

// rejectReplaceable rejects a pod from an API server that does not fit now, because its controller
// can replace it on another node. The pod only waits for resources of terminating pods and for
// devices that are not registered yet.
func (s *state) rejectReplaceable(v plan.Verdict, pod *corev1.Pod) plan.Verdict {
	for _, x := range admission.Check(s.node, s.usedLater(pod), pod) {
		if x.Resource != "" && x.Capacity == 0 && podspec.IsExtended(x.Resource) {
			continue
		}
		// The message describes the present state, in which terminating pods still use resources.
		for _, now := range admission.Check(s.node, s.used, pod) {
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
func verdictOf(rejections []admission.Rejection) plan.Verdict {
	for _, x := range rejections {
		if !x.Recoverable {
			return plan.Verdict{State: plan.Rejected, Reason: x.Reason, Message: x.Message}
		}
	}
	return plan.Verdict{State: plan.Wait, Reason: rejections[0].Reason, Message: rejections[0].Message}
}

func (s *state) release(uid types.UID) {
	if s.released != nil { // before another pod is admitted
		s.released(uid)
	}
	retry := s.waiting[uid].victims != ""
	delete(s.waiting, uid)
	delete(s.starting, uid)
	s.queue = slices.DeleteFunc(s.queue, func(r Request) bool { return r.Pod.UID == uid })
	if pod, in := s.admitted[uid]; in {
		delete(s.admitted, uid)
		delete(s.preemptFuncs, uid)
		delete(s.terminating, uid)
		s.used.Remove(pod)
		retry = true
	}
	if retry {
		s.retryWaiting()
	}
}

// retryWaiting checks the waiting pods again in order of importance.
func (s *state) retryWaiting() {
	waiting := make([]Request, 0, len(s.waiting))
	for _, r := range s.waiting {
		waiting = append(waiting, r)
	}
	s.sort(waiting)
	for _, r := range waiting {
		s.handle(r)
	}
}

func (s *state) sort(requests []Request) {
	slices.SortStableFunc(requests, func(a, b Request) int {
		return cmp.Or(s.compareImportance(a.Pod, b.Pod), compareDeferred(a, b), compareAge(a.Pod, b.Pod))
	})
}

// Compare orders pods for start slots and resources: critical pods first, then by priority, then by
// age.
func (a *Allocator) Compare(x, y *corev1.Pod) int {
	return cmp.Or(a.compareImportance(x, y), compareAge(x, y))
}

func (a *Allocator) compareImportance(x, y *corev1.Pod) int {
	critical := func(p *corev1.Pod) int {
		if podspec.IsCritical(p, a.standalone) {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(critical(x), critical(y)), cmp.Compare(podspec.Priority(y), podspec.Priority(x)))
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
		return slices.Index([]corev1.PodQOSClass{corev1.PodQOSGuaranteed, corev1.PodQOSBurstable,
			corev1.PodQOSBestEffort},
			podspec.QOSClass(p))
	}
	return cmp.Or(cmp.Compare(rank(a.Pod), rank(b.Pod)), a.deferredSince.Compare(b.deferredSince))
}
