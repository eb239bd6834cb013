package pod

import (
	"context"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/checkpoint"
	"berth/agent/plan"
	"berth/agent/status"
	"berth/agent/status/events"
)

// Config is shared by all workers of a node.
type Config struct {
	Stages  *Stages
	Limits  plan.Limits
	Prober  Prober // nil: no probes run, see plan.Limits.Probing
	Metrics Metrics
	Now     func() time.Time                   // nil: time.Now
	Fault   func(moment string, a plan.Action) // called "before" and "after" every action, for crash tests; nil: none
	// ActionStarted is called when an action starts, done when it ends. Nil: neither.
	ActionStarted func(a plan.Action) (done func(error))
}

// Agent is what a worker needs from the agent above it. All methods may be called
// from any goroutine. Only Flush waits.
type Agent interface {
	// Objects returns the ConfigMaps, Secrets and other objects that the pod
	// references, all as of one moment.
	Objects(pod *corev1.Pod) plan.Objects
	// Save hands the newest record of the pod to the store, which writes it soon.
	Save(Record)
	// Flush waits until everything saved before is on disk. It returns an error if that fails.
	Flush(ctx context.Context) error
	// Publish replaces the pod's snapshot in the status cache.
	Publish(*status.Snapshot)
	// Report records an event of the pod if the reason has an event type, and marks
	// the pod's history as changed.
	Report(pod *corev1.Pod, r plan.Reason)
	// RuntimePolled reports whether the runtime has no event stream, so that a
	// change is noticed late.
	RuntimePolled() bool
	// Recreate terminates a finished pod and starts it again with an empty memory.
	Recreate(ctx context.Context, why RecreateCause)
}

// RecreateCause is the cause of the recreation of a finished pod.
type RecreateCause string

const (
	Edited   RecreateCause = "edited"   // its manifest changed
	Returned RecreateCause = "returned" // it was evicted because of the node, and the back-off is over
)

// Record is the persistent state of a pod. The agent adds the referenced objects.
type Record struct {
	Pod     *corev1.Pod
	Verdict plan.Verdict
	Memory  plan.Memory
}

// Restored is the known state of a pod when its worker is created.
type Restored struct {
	Verdict  plan.Verdict
	Memory   plan.Memory
	Observed Listing // of the runtime, at the adoption
	Current  bool    // Observed is current: it needs no observation before the first decision
	History  *History
}

// History is what was reported about a pod before an agent restart.
type History struct {
	checkpoint.History
	Last         checkpoint.PreviousRun
	AgentStarted time.Time
}

// Worker owns one pod. One goroutine runs it; the other goroutines send it
// messages and never wait for it.
//
//	idle ──message, outcome of an action, or timer──► sync pass ──► idle
//	  └──ctx ends──► stopped (the pod keeps running)     └──Plan.Done──► done
type Worker struct {
	Config
	agent    Agent
	stages   *Stages
	metrics  Metrics
	now      func() time.Time
	log      *slog.Logger
	timeline *events.Timeline
	inbox    *inbox

	// Below: the worker's goroutine only.
	state   *state
	cancels map[plan.ActionKey]context.CancelFunc
	ops     sync.WaitGroup

	observing       bool
	auditPending    bool      // the next observation confirms or clears a divergence found by the audit
	observeErr      string    // of the last observation; empty: it succeeded
	observeErrSince time.Time // when the first of consecutive failures happened
	checkingImages  bool
	imagesImported  bool // since the last check for missing images

	admission admission
	requests  []request // of users, not answered yet

	saved             savedState
	terminationRecord *durableRecord             // shared by all passes with this termination
	published         *status.Snapshot           // nil: none yet
	waitSpans         map[waitSpan]events.SpanID // open on the timeline
	probed            probeRequest               // last sent to the prober
	runtimeTime       events.Stopwatch           // pulls and runtime calls that change something; any goroutine
	pullTime          events.Stopwatch           // pulls; any goroutine
}

// New returns a worker. The caller must call Run. If the pod was admitted before, New
// claims its resources, so that the order of the calls determines the order of the
// claims. timeline and log are those of the pod.
func New(c Config, a Agent, d Desired, r Restored, timeline *events.Timeline, log *slog.Logger) *Worker {
	w := &Worker{
		Config: c, agent: a, stages: c.Stages, metrics: c.Metrics, now: c.Now, log: log, timeline: timeline,
		inbox: newInbox(), state: newState(), cancels: map[plan.ActionKey]context.CancelFunc{},
	}
	if w.now == nil {
		w.now = time.Now
	}
	s := w.state
	s.verdict, s.memory = r.Verdict, r.Memory
	if r.History != nil {
		w.restoreHistory(*r.History)
	}
	s.observed = s.observed.WithRuntime(r.Observed.Sandboxes, r.Observed.Containers)
	// A termination acts on what exists now, not on what was listed earlier.
	s.runtimeStale = !r.Current || d.Termination != nil
	w.claimResources(d)
	w.Update(d)
	return w
}

// Timeline returns the timeline of the pod.
func (w *Worker) Timeline() *events.Timeline { return w.timeline }

// Run keeps the pod in its desired state until nothing of it is left (true) or
// ctx ends (false). When ctx ends the pod keeps running: a pod is stopped only
// by changing its desired state (A5).
func (w *Worker) Run(ctx context.Context) (done bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		w.ops.Wait()
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-w.inbox.ready:
		case <-timer.C:
		}
		w.handleMessages(ctx, w.inbox.take())
		next, done := w.step(ctx)
		if done {
			return true
		}
		timer.Stop()
		if !next.IsZero() {
			timer.Reset(max(0, next.Sub(w.now())))
		}
	}
}

// step starts an observation if one is due, runs a sync pass if the observed
// state is current, and returns when to run again.
func (w *Worker) step(ctx context.Context) (wake time.Time, done bool) {
	s := w.state
	if s.desired.Pod == nil {
		return time.Time{}, false
	}
	due, later := s.recheckDue(w.now())
	if !w.observing && (due || !s.canDecide()) {
		w.observe(ctx, due || s.runtimeStale)
	}
	if !s.canDecide() {
		return later, false
	}
	wake, done = w.syncPod(ctx)
	if wake.IsZero() || !later.IsZero() && later.Before(wake) {
		wake = later
	}
	return wake, done
}
