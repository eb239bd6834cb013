package agent

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/admission"
	"berth/agent/allocator"
	"berth/agent/checkpoint"
	"berth/agent/ownership"
	"berth/agent/plan"
	"berth/agent/pod"
	"berth/agent/source"
	"berth/agent/status"
	"berth/agent/status/events"
)

// Config is the configuration of an Agent.
type Config struct {
	Stages        *pod.Stages // stage admit is filled in by New
	Limits        plan.Limits
	Allocator     allocator.Config
	Runtime       Runtime
	Host          HostPods
	Owner         PodOwner   // nil: every pod of Host and Runtime belongs to the agent
	Adopter       Adopter    // nil: no pod of another program is adopted
	Leaks         LeakFinder // nil: no leak scans
	Sources       []Source
	Store         *checkpoint.Store
	Records       map[types.UID]checkpoint.Record // of the previous run
	BootID        string                          // boot ID of the host; empty: unknown
	Events        *events.Recorder
	Prober        pod.Prober    // nil: no probes run, see plan.Limits.Probing
	AuditInterval time.Duration // zero: 45 s
	Metrics       Metrics
	// PodDeleted is called when nothing is left of a pod that was deleted. It must not block. Nil: none.
	PodDeleted func(types.UID)
	Log        *slog.Logger
	Fault      func(moment string, a plan.Action) // called "before" and "after" every action, for crash tests
	// Heartbeat is called by the loops of the agent and the allocator while they make
	// progress, at least every allocator.PulseEvery. Nil: none.
	Heartbeat func(loop string)
}

// Source is a source of desired pods.
type Source interface {
	// Run sends everything that the source has now, and again whenever that changes,
	// until ctx ends.
	Run(ctx context.Context, send func(source.Snapshot)) error
}

// Runtime is the part of the runtime that the agent itself uses.
type Runtime interface {
	// Pods returns all pods of this agent in the runtime, with full details.
	Pods(ctx context.Context) (map[types.UID]RuntimePod, error)
	// List is Pods with name, existence and state only. It is cheap.
	List(ctx context.Context) (map[types.UID]RuntimePod, error)
	// Watch sends events until ctx ends. An empty uid means that the runtime has become
	// reachable (again) and may have changed before. With Listed set, it also means that
	// the runtime is polled.
	Watch(ctx context.Context, send func(uid types.UID, e pod.RuntimeEvent)) error
}

// RuntimePod is a pod in the runtime.
type RuntimePod struct {
	Pod        *corev1.Pod // restored from labels, sufficient to terminate it
	Sandboxes  []plan.Sandbox
	Containers []plan.Container
}

func (p RuntimePod) listing() pod.Listing {
	return pod.Listing{Sandboxes: p.Sandboxes, Containers: p.Containers}
}

// HostPods lists the pods of this agent that have directories, volumes or cgroups on the host. Pods
// of other programs are not listed.
type HostPods interface {
	Pods(ctx context.Context) ([]types.UID, error)
}

// PodOwner records which pods on the host belong to this agent.
type PodOwner interface {
	// Prove records that the runtime proves that berth created these pods. After an error it may be
	// repeated.
	Prove(uids ...types.UID) error
	// Deleted records that berth has deleted these pods.
	Deleted(uids ...types.UID)
}

// Metrics receives measurements, from many goroutines. A nil field is not called.
type Metrics struct {
	Pods          pod.Metrics
	AuditFinished func() // a comparison with the complete runtime state
	// Relisted is called for each successful list of the runtime. interval is the time since the
	// previous one started; 0: none.
	Relisted        func(started time.Time, interval, took time.Duration)
	EventStreamLost func()            // the event stream of the runtime was interrupted
	LeakRemoved     func(kind string) // a leaked object was removed
}

func tick(f func()) {
	if f != nil {
		f()
	}
}

// Agent runs all pods of the node. Its loop runs on one goroutine, which owns all fields
// below the line.
type Agent struct {
	Config
	StatusCache *status.Cache

	allocator     *allocator.Allocator
	calls         chan func()
	ready         chan struct{} // closed after adoption
	stopped       chan struct{} // closed when Run returns
	snapshots     sync.Map      // newest *source.Snapshot by source
	snapshotReady chan struct{} // readable after a change of snapshots; capacity 1
	runtimePolled atomic.Bool   // the runtime has no event stream
	underPressure atomic.Bool   // the node is under pressure
	startup       startup

	// ---
	desired   *desiredPods
	workers   map[types.UID]*worker
	wg        sync.WaitGroup
	runWorker func(*worker)
	adopted   adopted
	audits    audits
	leaks     leaks

	connectedBefore bool                            // the runtime was reachable once
	applied         map[string]*source.Snapshot     // the last applied, by source
	returned        map[types.UID]int               // of evicted pods that are recreated, see plan.Memory
	foreign         map[types.UID]ownership.Foreign // pods of other programs that may be adopted
	sourceUIDs      map[types.UID]types.UID         // of static pods with the kubelet's identity, by that
}

// New returns an Agent. The caller must call Run.
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
	if c.Records == nil {
		c.Records = map[types.UID]checkpoint.Record{}
	}
	if c.PodDeleted == nil {
		c.PodDeleted = func(types.UID) {}
	}
	if c.Owner == nil {
		c.Owner = noOwner{}
	}
	heartbeat := c.Heartbeat
	c.Allocator.Heartbeat = func() { heartbeat("allocator") }
	alloc := allocator.New(c.Allocator)
	var stages pod.Stages
	if c.Stages != nil {
		stages = *c.Stages
	}
	stages.Admit.Allocator = alloc
	c.Stages = &stages
	a := &Agent{
		Config: c, StatusCache: status.New(), allocator: alloc, calls: make(chan func(), 64),
		ready: make(chan struct{}), stopped: make(chan struct{}), snapshotReady: make(chan struct{}, 1),
		startup: startup{pods: map[string]map[types.UID]*corev1.Pod{}, since: time.Now()},
		desired: newDesiredPods(), workers: map[types.UID]*worker{}, leaks: newLeaks(),
		audits:  audits{deleted: map[types.UID]time.Time{}},
		applied: map[string]*source.Snapshot{}, returned: map[types.UID]int{},
		sourceUIDs: map[types.UID]types.UID{},
	}
	a.desired.restoreEphemeralContainers(c.Records)
	a.restoreEvents()
	return a
}

// Ready returns a channel that is closed once the agent has adopted the pods of the runtime.
func (a *Agent) Ready() <-chan struct{} { return a.ready }

// Snapshots returns the newest snapshot of every source.
func (a *Agent) Snapshots() (all []*source.Snapshot) {
	a.snapshots.Range(func(_, s any) bool {
		if snap, ok := s.(*source.Snapshot); ok {
			all = append(all, snap)
		}
		return true
	})
	return all
}

// SetNode changes the node for pods that are not admitted yet.
func (a *Agent) SetNode(n admission.Node) {
	a.allocator.SetNode(n)
	if now := len(n.PressureConditions) > 0; a.underPressure.Swap(now) && !now {
		a.SyncAllPods() // evicted pods may return
	}
}

// AllocatorState returns a snapshot of the allocator.
func (a *Agent) AllocatorState(ctx context.Context) (allocator.Snapshot, error) {
	return a.allocator.Snapshot(ctx)
}

// Rejection returns why a new pod would not be admitted now. Empty: it would be, or this is not
// known. The pod replaces another one, which may be nil.
func (a *Agent) Rejection(ctx context.Context, pod, replaced *corev1.Pod) string {
	state, err := a.AllocatorState(ctx)
	if err != nil {
		return ""
	}
	if replaced != nil {
		state = state.Without(replaced)
	}
	return state.Rejection(pod)
}

// CheckResize returns the verdict on a resize of an admitted pod.
func (a *Agent) CheckResize(ctx context.Context, old, pod *corev1.Pod) plan.Verdict {
	state, err := a.AllocatorState(ctx)
	if err != nil {
		return plan.Verdict{State: plan.Admitted}
	}
	return state.CheckResize(old, pod)
}

// Run is the agent's loop. It returns when ctx has ended and every goroutine that it
// started has ended. The pods keep running (A5).
func (a *Agent) Run(ctx context.Context) error {
	defer close(a.stopped)
	allocatorCtx, stopAllocator := context.WithCancel(context.WithoutCancel(ctx))
	var allocatorDone sync.WaitGroup
	allocatorDone.Go(func() { a.allocator.Run(allocatorCtx) })
	defer func() { // the allocator stops last, because workers use it until they end
		a.wg.Wait()
		stopAllocator()
		allocatorDone.Wait()
	}()
	a.runWorker = func(w *worker) {
		a.wg.Go(func() {
			if done := w.Run(ctx); done {
				a.call(ctx, func() { a.workerDone(w) })
			}
		})
	}
	a.wg.Go(func() {
		err := a.Runtime.Watch(ctx, func(uid types.UID, e pod.RuntimeEvent) {
			a.call(ctx, func() { a.handleEvent(ctx, uid, e) })
		})
		if err != nil && ctx.Err() == nil {
			a.Log.Error("runtime watch failed", "err", err)
		}
	})
	for _, s := range a.Sources { // received immediately, applied after adoption
		a.wg.Go(func() {
			err := s.Run(ctx, func(snap source.Snapshot) { a.holdSnapshot(&snap) })
			if err != nil && ctx.Err() == nil {
				a.Log.Error("pod source stopped", "err", err)
			}
		})
	}
	if err := a.adopt(ctx); err != nil {
		return nil // ctx ended
	}
	a.finishStartup(ctx)
	close(a.ready)
	a.suspectLeaks() // the previous run may have ended during a runtime call
	a.loop(ctx)
	return nil
}

func (a *Agent) loop(ctx context.Context) {
	defer a.leaks.timer.Stop()
	audit := time.NewTicker(a.AuditInterval)
	defer audit.Stop()
	heartbeat := time.NewTicker(allocator.HeartbeatInterval)
	defer heartbeat.Stop()
	for {
		a.Heartbeat("agent")
		select {
		case <-heartbeat.C:
		case <-ctx.Done():
			return
		case f := <-a.calls:
			f()
		case <-a.snapshotReady:
			a.applySnapshots(ctx)
		case <-audit.C:
			a.audit(ctx)
			a.collectLeaks(ctx)
		case <-a.leaks.calls.failed:
			a.suspectLeaks()
		case <-a.leaks.timer.C:
			a.leaks.due = time.Time{}
			a.collectLeaks(ctx)
		}
	}
}

// call schedules f on the agent's loop.
func (a *Agent) call(ctx context.Context, f func()) {
	select {
	case a.calls <- f:
	case <-a.stopped:
	case <-ctx.Done():
	}
}
