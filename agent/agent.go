package agent

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/admission"
	"berth/agent/allocator"
	"berth/agent/checkpoint"
	"berth/agent/plan"
	"berth/agent/source"
	"berth/agent/status"
	"berth/agent/status/events"
)

// Config is what an Agent is made of.
type Config struct {
	Stages        *Stages
	Limits        plan.Limits
	Allocator     allocator.Config
	Runtime       Runtime
	Host          HostPods
	Leaks         LeakFinder // nil: the runtime is believed to forget nothing
	Sources       []Source
	Store         *checkpoint.Store
	Records       map[types.UID]checkpoint.Record // of the agent's last life
	BootID        string                          // of the host's running kernel; empty: not known
	Events        *events.Events
	Prober        Prober        // nil: nobody probes, see plan.Limits.Probing
	AuditInterval time.Duration // between two audits; zero: 45 s
	Metrics       Metrics
	Log           *slog.Logger
	Fault         func(moment string, a plan.Action) // told "before" and "after" every action, for crash tests; nil: nobody
	// Heartbeat is told by the loops of the agent and of the room that they make
	// progress, every room.PulseEvery at least. nil: nobody asks.
	Heartbeat func(loop string)
}

// Source is where wishes come from.
type Source interface {
	// Run tells everything that the source wants now, and again whenever that
	// changes, until ctx ends.
	Run(ctx context.Context, tell func(source.Snapshot)) error
}

// Runtime is what the agent itself, not a pod's worker, asks of the runtime.
type Runtime interface {
	// Pods returns all pods of ours in the runtime, with full details.
	Pods(ctx context.Context) (map[types.UID]RuntimePod, error)
	// List is Pods by name, existence and state only: cheap.
	List(ctx context.Context) (map[types.UID]RuntimePod, error)
	// Watch tells hints until ctx ends; an empty uid says that the runtime came
	// (back) into reach and may have changed in between; with Listed set, also
	// that it is polled.
	Watch(ctx context.Context, tell func(uid types.UID, h RuntimeEvent)) error
}

// RuntimePod is a pod as the runtime has it.
type RuntimePod struct {
	Pod        *corev1.Pod // from labels: enough to end it
	Sandboxes  []plan.Sandbox
	Containers []plan.Container
}

// HostPods lists the pods that left something on the host.
type HostPods interface {
	Pods(ctx context.Context) ([]types.UID, error)
}

// Agent turns wishes and events into mail for workers. Its loop is one
// goroutine and owns all fields below the line.
type Agent struct {
	Config
	StatusCache *Board

	allocator *allocator.Room
	calls     chan func()
	ready     chan struct{} // closed when adopted
	left      chan struct{} // closed when Run returns
	snaps     sync.Map      // newest *source.Snapshot by source
	fresh     chan struct{} // readable: snaps has a newer one; capacity 1
	polls     atomic.Bool   // the runtime has no events
	short     atomic.Bool   // the node is under pressure
	wait      waiting

	// ---
	desired *desiredPods
	workers map[types.UID]*entry
	wg      sync.WaitGroup
	begin   func(*worker)
	adopted adopted
	audits  audits
	sweeps  sweeps

	followed bool                        // the stream of the runtime's events has begun once
	taken    map[string]*source.Snapshot // by source: the last acted on
	returned map[types.UID]int           // of pods that are being made anew, see plan.Memory
}

// entry is one worker in the agent's hands.
type entry struct {
	*worker
	pod    *corev1.Pod
	ending bool
}

// New returns an agent that has not begun.
func New(c Config) *Agent {
	if c.AuditInterval == 0 {
		c.AuditInterval = 45 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Heartbeat == nil {
		c.Heartbeat = func(string) {}
	}
	c.Allocator.Pulse = func() { c.Heartbeat("room") }
	if c.Fault == nil {
		c.Fault = func(string, plan.Action) {}
	}
	a := &Agent{
		Config: c, StatusCache: status.New(), allocator: allocator.New(c.Allocator), calls: make(chan func(), 64), ready: make(chan struct{}), left: make(chan struct{}),
		fresh: make(chan struct{}, 1), taken: map[string]*source.Snapshot{}, returned: map[types.UID]int{},
		wait:    waiting{pods: map[string]map[types.UID]*corev1.Pod{}, since: time.Now()},
		desired: newDesiredPods(), workers: map[types.UID]*entry{}, audits: audits{gone: map[types.UID]time.Time{}}, sweeps: newSweeps(),
	}
	a.desired.restoreEphemeralContainers(c.Records)
	a.recall()
	return a
}

// Ready is closed once the agent has adopted what the runtime has.
func (a *Agent) Ready() <-chan struct{} { return a.ready }

// Snapshots returns the newest snapshot of every source.
func (a *Agent) Snapshots() (all []*source.Snapshot) {
	a.snaps.Range(func(_, s any) bool {
		if snap, ok := s.(*source.Snapshot); ok {
			all = append(all, snap)
		}
		return true
	})
	return all
}

// SetNode changes what the node offers to pods that are not let in yet.
func (a *Agent) SetNode(n admission.Node) {
	a.allocator.SetNode(n)
	if now := len(n.PressureConditions) > 0; a.short.Swap(now) && !now {
		a.SyncAllPods() // for those that return
	}
}

// AllocatorState counts what the room holds.
func (a *Agent) AllocatorState(ctx context.Context) (allocator.Census, error) {
	return a.allocator.Census(ctx)
}

// Run is the agent's loop. It returns when ctx ends and every goroutine that
// it started has ended; the pods stay as they are.
func (a *Agent) Run(ctx context.Context) error {
	defer close(a.left)
	roomCtx, closeRoom := context.WithCancel(context.WithoutCancel(ctx))
	var seats sync.WaitGroup
	seats.Go(func() { a.allocator.Run(roomCtx) })
	defer func() {
		a.wg.Wait()
		closeRoom()
		seats.Wait()
	}()
	a.begin = func(w *worker) {
		a.wg.Go(func() {
			if done := w.Run(ctx); done {
				a.call(ctx, func() { a.done(w) })
			}
		})
	}
	a.wg.Go(func() {
		err := a.Runtime.Watch(ctx, func(uid types.UID, h RuntimeEvent) { a.call(ctx, func() { a.hint(ctx, uid, h) }) })
		if err != nil && ctx.Err() == nil {
			a.Log.Error("watch the runtime", "err", err)
		}
	})
	for _, s := range a.Sources { // heard at once, acted on after adoption
		a.wg.Go(func() {
			err := s.Run(ctx, func(snap source.Snapshot) { a.holdSnapshot(&snap) })
			if err != nil && ctx.Err() == nil {
				a.Log.Error("source ended", "err", err)
			}
		})
	}
	if err := a.adopt(ctx); err != nil {
		return nil // ctx ended
	}
	take := func(snap *source.Snapshot) { a.take(ctx, snap) }
	a.settle(take)
	close(a.ready)
	a.suspect() // the last life may have ended in the middle of anything
	defer a.sweeps.timer.Stop()
	audit := time.NewTicker(a.AuditInterval)
	defer audit.Stop()
	pulse := time.NewTicker(allocator.PulseEvery)
	defer pulse.Stop()
	for {
		a.Heartbeat("agent")
		select {
		case <-pulse.C:
		case <-ctx.Done():
			return nil
		case f := <-a.calls:
			f()
		case <-a.fresh:
			a.applyHeldSnapshots(take)
		case <-audit.C:
			a.audit(ctx)
			a.sweep(ctx)
		case <-a.sweeps.calls.torn:
			a.suspect()
		case <-a.sweeps.timer.C:
			a.sweeps.due = time.Time{}
			a.sweep(ctx)
		}
	}
}

// call runs f on the agent's loop, soon.
func (a *Agent) call(ctx context.Context, f func()) {
	select {
	case a.calls <- f:
	case <-a.left:
	case <-ctx.Done():
	}
}

// take acts on a newer snapshot of a source.
func (a *Agent) take(ctx context.Context, snap *source.Snapshot) {
	first := !a.desired.ready[snap.Source]
	changed := a.desired.objects.replace(snap)
	c := a.desired.apply(snap)
	for _, uid := range c.gone {
		a.gone(uid)
	}
	// Those that run here take their place before anybody new asks for one.
	slices.SortStableFunc(c.run, a.first)
	for _, pod := range c.run {
		a.wanted(pod)
	}
	if changed {
		a.each((*worker).Sync)
	}
	if first && a.desired.allReady(len(a.Sources)) {
		a.endOrphans(ctx)
	}
}

// wanted hands a pod to its worker, or makes one. A pod whose name is still
// held by an ending one waits for that one's end.
func (a *Agent) wanted(pod *corev1.Pod) {
	if pod.DeletionTimestamp != nil {
		a.deleted(pod)
		return
	}
	if e, known := a.workers[pod.UID]; known && !e.ending {
		e.pod = pod
		e.Update(Desired{Pod: pod})
		return
	}
	if holder := a.holder(pod); holder != nil {
		a.queue(pod, holder)
		return
	}
	a.start(Desired{Pod: pod})
}

// deleted ends a pod whose object waits for that on the server. Its worker goes
// through the end even if nothing is known of the pod: something may be here.
func (a *Agent) deleted(pod *corev1.Pod) {
	end := plan.End{Reason: "Deleted", Grace: graceOf(pod), Forget: true}
	if e, known := a.workers[pod.UID]; known {
		e.pod = pod
		a.end(e, end)
		return
	}
	a.dequeue(pod.UID)
	end.At = time.Now()
	a.start(Desired{Pod: pod, Termination: &end})
}

// gone ends a pod that its source no longer wants.
func (a *Agent) gone(uid types.UID) {
	a.dequeue(uid)
	if e, known := a.workers[uid]; known {
		a.end(e, plan.End{Reason: "Deleted", Grace: graceOf(e.pod), Forget: true})
	}
}

// end asks for the end of a pod, for whatever reason; it never takes back or
// lengthens one.
func (a *Agent) end(e *entry, end plan.End) {
	end.At = time.Now()
	e.ending = e.ending || end.Forget
	a.allocator.Ends(e.pod.UID) // before anybody asks for what it holds
	e.Update(Desired{Pod: e.pod, Termination: &end})
}

// start makes a worker for a pod, with what was known of it in an earlier life.
func (a *Agent) start(wish Desired) {
	pod := wish.Pod
	w := a.newWorker(pod)
	b := w.state
	b.memory.Returned = a.returned[pod.UID]
	delete(a.returned, pod.UID)
	seen, fresh := a.adopted.pick(pod.UID)
	if rec, ok := a.Records[pod.UID]; ok {
		b.memory, b.verdict = restored(pod, rec, seen, a.BootID)
		if wish.Termination == nil && editedSince(rec, pod, b.memory, b.verdict) {
			end := anew(pod)
			end.At = time.Now()
			wish.Termination = &end
		}
		w.restoreHistory(rec.History, a.Store.PreviousRun(), a.wait.since)
		delete(a.Records, pod.UID)
	} else if a.Store.PreviousRun().EndedAt.IsZero() { // of an earlier life nothing is known: the pod may have had one
		b.memory.Restarts = checkpoint.AttemptsFromLogs(a.Stages.BuildRun.LogDir(pod), a.wait.since)
	}
	b.observed = b.observed.Looked(seen.Sandboxes, seen.Containers)
	b.runtimeStale = !fresh || wish.Termination != nil // an orphan is ended by what there is, not by what is remembered
	if !isTerminal(b.memory.Phase) && (b.verdict.State == plan.OK || wish.Termination == nil && w.hasReadySandbox()) {
		w.admissionRequested = true
		has, ending := plan.WithResources(pod, b.memory.Sizes.Allocated), wish.Termination != nil || b.memory.End != nil
		if b.startQueued = !ending && !b.anyRunning(); b.startQueued { // as after a boot
			b.verdict = plan.Verdict{}
		}
		a.allocator.Ask(allocator.Seat{Pod: has, Admitted: true, Ending: ending, Turn: b.startQueued, Reply: w.onVerdict(has, false), End: w.Preempt})
	}
	ending := wish.Termination != nil || b.memory.End != nil && b.memory.End.Forget
	a.workers[pod.UID] = &entry{worker: w, pod: pod, ending: ending}
	w.Update(wish)
	a.begin(w)
}

func (a *Agent) newWorker(pod *corev1.Pod) *worker {
	uid, ref := pod.UID, events.RefOf(pod)
	log := a.Log.With("pod", pod.Namespace+"/"+pod.Name, "uid", string(uid))
	var line *events.Timeline
	changed := func() { a.Store.PutHistory(uid, func() checkpoint.History { return a.story(uid, line) }) }
	line = events.NewTimeline(events.OfContainers(len(pod.Spec.InitContainers)+len(pod.Spec.Containers), changed))
	w := &worker{
		stages: a.Stages, limits: a.Limits, room: a.allocator, objects: a.desired.objects,
		keep: func(w Desired, v plan.Verdict, m plan.Memory) {
			a.Store.Put(uid, checkpoint.Record{Pod: w.Pod, Verdict: v, Memory: m, Objects: a.desired.objects.kept(w.Pod), BootID: a.BootID})
		},
		sync: func(ctx context.Context, w Desired, v plan.Verdict, m plan.Memory) error {
			return a.Store.Sync(ctx, uid, checkpoint.Record{Pod: w.Pod, Verdict: v, Memory: m, Objects: a.desired.objects.kept(w.Pod), BootID: a.BootID})
		},
		publish: a.StatusCache.Put,
		tell: func(pod *corev1.Pod, r plan.Reason) {
			if r.Event != "" {
				a.Events.Record(ref, events.EventOf(pod, r))
			}
			changed()
		},
		timeline: line,
		log:      log, meters: a.Metrics, now: time.Now, fault: a.Fault, polled: a.polls.Load, prober: a.Prober,
		inbox:     inbox{ready: make(chan struct{}, 1)},
		sandboxes: a.sweeps.calls,
		state:     newState(), cancels: map[plan.OpKey]context.CancelFunc{},
	}
	w.again = func(ctx context.Context, edited bool) { a.call(ctx, func() { a.again(w, edited) }) }
	return w
}

// done lets go of a pod of which nothing is left, and of its name.
func (a *Agent) done(w *worker) {
	pod := w.state.desired.Pod
	delete(a.workers, pod.UID)
	delete(a.desired.ephemeral, pod.UID)
	a.allocator.Release(pod.UID)
	a.Store.Delete(pod.UID)
	if _, returns := a.returned[pod.UID]; !returns { // else what befell it is to be read on
		a.Events.Forget(pod.UID)
	}
	if a.Prober != nil {
		a.Prober.Forget(pod.UID)
	}
	a.StatusCache.Remove(pod.UID)
	a.audits.gone[pod.UID] = time.Now()
	a.Log.Info("pod is gone", "pod", pod.Namespace+"/"+pod.Name, "uid", string(pod.UID))
	if next := a.desired.next(nameOf(pod), pod.UID); next != nil {
		a.wanted(next)
	}
}

// hint passes on what the runtime told.
func (a *Agent) hint(ctx context.Context, uid types.UID, h RuntimeEvent) {
	if uid == "" {
		if a.followed && h.Listed == nil {
			a.Metrics.missed()
		}
		a.followed = true
		a.polls.Store(h.Listed != nil)
		a.each((*worker).RuntimeReconnected)
		a.audit(ctx)
		a.suspect()
		return
	}
	if e, known := a.workers[uid]; known {
		e.Notify(h)
		return
	}
	a.adopted.stale(uid)
}

// SyncAllPods asks every worker for a pass: something of the node has changed.
func (a *Agent) SyncAllPods() { a.call(context.Background(), func() { a.each((*worker).Sync) }) }

// ImagesImported tells that images are on the node that nobody has pulled: whoever waits
// for one looks again now.
func (a *Agent) ImagesImported() {
	a.call(context.Background(), func() { a.each((*worker).CheckImages) })
}

func (a *Agent) each(tell func(*worker)) {
	for _, e := range a.workers {
		tell(e.worker)
	}
}

// Timeline returns the timeline of a pod that has a worker; nil: it has none.
// Before adoption it is that of the agent's earlier lives.
func (a *Agent) Timeline(ctx context.Context, uid types.UID) *events.Timeline {
	if line := a.earlier(uid); line != nil {
		return line
	}
	reply := make(chan *events.Timeline, 1)
	a.call(ctx, func() {
		if e, known := a.workers[uid]; known {
			reply <- e.timeline
			return
		}
		reply <- nil
	})
	select {
	case t := <-reply:
		return t
	case <-a.left:
		return nil
	case <-ctx.Done():
		return nil
	}
}

func (e *entry) String() string { return fmt.Sprintf("%s/%s", e.pod.Namespace, e.pod.Name) }
