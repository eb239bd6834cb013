package agent

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/allocator"
	"berth/agent/plan"
	"berth/agent/status/events"
)

// RuntimeEvent is what the runtime told of a pod without being asked. It is a hint:
// what it says is older than the newest look.
type RuntimeEvent struct {
	Sandbox    *plan.Sandbox
	Containers []plan.Container
	Incomplete bool // something happened, no details: look

	// Listed is the whole pod as Runtime.List would give it, told by a runtime
	// that is polled: compared with what is known, and looked into if it differs.
	Listed *RuntimePod
}

// worker owns one pod: one goroutine, wake, pass, sleep. Others tell it things
// through its mailbox and never wait for it.
//
//	asleep ──mail, end of an action, or the wake time──► pass ──► asleep
//	   └──ctx ends──► left (the pod stays as it is)      └──Plan.Done──► gone
type worker struct {
	stages   *Stages
	limits   plan.Limits
	room     *allocator.Room
	objects  *objects
	keep     func(Desired, plan.Verdict, plan.Memory)                        // saved soon
	sync     func(context.Context, Desired, plan.Verdict, plan.Memory) error // saved before it returns
	publish  func(*Snapshot)
	tell     func(*corev1.Pod, plan.Reason)
	timeline *events.Timeline
	log      *slog.Logger
	meters   Metrics
	now      func() time.Time
	fault    func(moment string, a plan.Action)
	polled   func() bool                            // the runtime has no events: what happens is told late
	prober   Prober                                 // nil: nobody probes
	again    func(ctx context.Context, edited bool) // the pod is over and to be made anew: its file wants something else since, or it returns

	sandboxes *sandboxCalls

	inbox inbox
	// Below: the worker's goroutine only.
	state               *state
	observing           bool
	checkingImages      bool
	imagesImported      bool // images came to the node since it was last asked
	cancels             map[plan.OpKey]context.CancelFunc
	ops                 sync.WaitGroup
	admissionRequested  bool                       // the room was asked
	requestedFor        *corev1.Pod                // of which the room knows what it wants
	startSlotReleased   bool                       // its start slot was given back
	released            bool                       // the room was left
	terminationReported bool                       // the room was told that the pod ends
	auditPending        bool                       // the next look confirms or clears what the audit found
	observeErr          string                     // why the last look failed; empty: it did not
	observeErrSince     time.Time                  // when the first of those failed
	published           *Snapshot                  // what was published last; nil: nothing
	onDisk              *onDisk                    // of the pod's end
	saved               keptState                  // what was last handed to keep
	requests            []request                  // of users, not yet answered
	waitSpans           map[waitSpan]events.SpanID // open on the timeline
	lastMemory          plan.Memory                // of the last pass: what users have seen of its health is on disk
	probed              probeRequest               // what the prober was last asked for
	runtimeTime         events.Stopwatch           // of pulls, and of calls that change the runtime; any goroutine
	pullTime            events.Stopwatch           // of pulls; any goroutine
}

// inbox takes what is told to a worker. Telling never blocks.
type inbox struct {
	mu       sync.Mutex
	messages messages
	ready    chan struct{} // capacity 1
}

// messages is everything told since the worker last looked.
type messages struct {
	desired        *Desired
	events         []RuntimeEvent
	verdicts       []admissionResult
	termination    *plan.End // asked for by the room
	outcomes       []plan.Outcome
	observations   []observation
	images         *imageCheck
	health         map[string]plan.Health
	imagesImported bool // images came that nobody pulled
	reconnected    bool // the runtime came back: try again what failed for want of it
	audit          *observation
	requests       []request
}

// imageCheck is what an asking for images has found.
type imageCheck struct {
	at     time.Time
	images plan.ImagesSeen
}

func (m *inbox) put(f func(*messages)) {
	m.mu.Lock()
	f(&m.messages)
	m.mu.Unlock()
	select {
	case m.ready <- struct{}{}:
	default:
	}
}

func (m *inbox) take() messages {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.messages
	m.messages = messages{}
	return p
}

// Update hands the worker a newer wish. An end that it has not read yet stays.
func (w *worker) Update(wish Desired) {
	w.inbox.put(func(p *messages) {
		if wish.Termination == nil && p.desired != nil {
			wish.Termination = p.desired.Termination
		}
		p.desired = &wish
	})
}

// Preempt tells the worker that its pod has to go for another.
func (w *worker) Preempt(e plan.End) {
	e.At = time.Now()
	w.inbox.put(func(p *messages) { p.termination = &e })
}

// Notify hands the worker what the runtime told.
func (w *worker) Notify(h RuntimeEvent) {
	w.inbox.put(func(p *messages) {
		if len(p.events) >= 64 { // a storm: details do not matter, one look does
			p.events = []RuntimeEvent{{Incomplete: true}}
		}
		p.events = append(p.events, h)
	})
}

// Sync asks for a pass soon.
func (w *worker) Sync() { w.inbox.put(func(*messages) {}) }

// CheckImages tells that images came to the node that nobody has pulled.
func (w *worker) CheckImages() { w.inbox.put(func(p *messages) { p.imagesImported = true }) }

// RuntimeReconnected tells that the runtime came back.
func (w *worker) RuntimeReconnected() { w.inbox.put(func(p *messages) { p.reconnected = true }) }

// Run keeps the pod as wished until nothing of it is left (true) or ctx ends
// (false). When ctx ends the pod is left as it is: stopping a pod is a
// decision, never a cancelled context.
func (w *worker) Run(ctx context.Context) (done bool) {
	ctx, leave := context.WithCancel(ctx)
	defer func() {
		leave()
		w.ops.Wait()
	}()
	wake := time.NewTimer(0)
	defer wake.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-w.inbox.ready:
		case <-wake.C:
		}
		w.handleMessages(ctx, w.inbox.take())
		next, done := w.step(ctx)
		if done {
			return true
		}
		wake.Stop()
		if !next.IsZero() {
			wake.Reset(max(0, next.Sub(w.now())))
		}
	}
}

// handleMessages takes the mail into the book, oldest matter first.
func (w *worker) handleMessages(ctx context.Context, p messages) {
	b := w.state
	if p.desired != nil {
		w.handleDesired(ctx, *p.desired)
	}
	if p.termination != nil && b.desired.Pod != nil && b.desired.Termination == nil {
		b.setDesired(Desired{Pod: b.desired.Pod, Termination: p.termination})
	}
	for _, a := range p.verdicts {
		if a.State == plan.Rejected && b.verdict.State != plan.Rejected && b.verdict.State != plan.OK {
			w.meters.rejected(a.Reason)
		}
		b.applyVerdict(a)
		if b.rejectedBeforeEdit(a) {
			w.again(ctx, true)
		}
	}
	for _, r := range p.outcomes {
		w.handleOutcome(ctx, r)
	}
	for _, h := range p.events {
		b.applyEvent(h, w.now())
	}
	for _, s := range p.observations {
		w.observing = false
		w.handleObservation(s)
	}
	if p.images != nil {
		w.checkingImages = false
		b.applyImages(p.images.images, p.images.at)
	}
	w.imagesImported = w.imagesImported || p.imagesImported
	if w.imagesImported && !w.checkingImages && b.everObserved {
		w.imagesImported = false
		w.checkImages(ctx, b.observed.Absent(b.desired.Pod))
	}
	if p.health != nil {
		w.applyHealth(p.health)
	}
	if p.reconnected {
		b.clearUnavailable()
	}
	if p.audit != nil {
		w.handleAudit(*p.audit)
	}
	w.requests = append(w.requests, p.requests...)
	w.handleRequests(ctx)
}

// step looks if it must, passes if it may, and returns when to wake.
func (w *worker) step(ctx context.Context) (wake time.Time, done bool) {
	b := w.state
	if b.desired.Pod == nil {
		return time.Time{}, false
	}
	due, later := b.recheckDue(w.now())
	if !w.observing && (due || !b.canDecide()) {
		w.observe(ctx, due || b.runtimeStale)
	}
	if !b.canDecide() {
		return later, false
	}
	wake, done = w.syncPod(ctx)
	if wake.IsZero() || !later.IsZero() && later.Before(wake) {
		wake = later
	}
	return wake, done
}

// observeRetry is how long a look that failed is held back: the runtime is away.
const observeRetry = 250 * time.Millisecond

// observe begins a look at the pod, at the runtime only if asked: a worker that
// begins was told what the agent's own listing has shown. Its end is mail.
func (w *worker) observe(ctx context.Context, runtime bool) {
	w.observing = true
	b := w.state
	pod, at, heard := plan.WithResources(b.podWithAllocation(), b.memory.Sizes.Pod), b.outcomeSeq, b.eventSeq
	objs := w.objects.Of(pod)
	host := !b.everObserved || b.hostStale
	if runtime {
		b.recheck = nil // what is told from now on is another
	}
	again := w.observeErr != "" // those that fail in a row have one span: the timeline has other things to tell
	w.ops.Go(func() {
		spanned, end := ctx, func(error) {}
		if !again {
			spanned, end = w.span(ctx, "prepare", "look", "")
		}
		began := w.now()
		s := w.stages.Prepare.look(spanned, pod, objs, host, runtime)
		w.meters.acted("prepare", w.now().Sub(began))
		end(s.err)
		if s.err != nil {
			pause(ctx, observeRetry)
		}
		s.outcomeSeq, s.eventSeq, s.started = at, heard, began
		w.inbox.put(func(p *messages) { p.observations = append(p.observations, s) })
	})
}

// checkImages asks the node for images that only a hand can bring. It leaves no trace on
// the timeline: that would soon tell of nothing else.
func (w *worker) checkImages(ctx context.Context, images []string) {
	if w.checkingImages || len(images) == 0 {
		return
	}
	w.checkingImages = true
	pod := w.state.desired.Pod
	objs := w.objects.Of(pod)
	w.ops.Go(func() {
		f := &imageCheck{at: w.now(), images: w.stages.Prepare.Images.Observe(ctx, pod, images, objs)}
		w.inbox.put(func(p *messages) { p.images = f })
	})
}

// handleObservation takes in the end of a look.
func (w *worker) handleObservation(s observation) {
	b := w.state
	if s.err != nil {
		if s.runtime {
			b.requestRecheck(nil, w.now())
		}
		if text := s.err.Error(); text != w.observeErr && plan.KindOf(s.err) != plan.Canceled {
			if w.observeErr == "" {
				w.observeErrSince = w.now()
			}
			w.observeErr = text
			w.publishObserveError()
			w.log.Warn("what there is of the pod is not known; nothing is done until it is", "err", s.err)
		}
		return
	}
	w.observeErr = ""
	if w.auditPending && s.runtime && s.outcomeSeq == b.outcomeSeq {
		w.auditPending = false
		if diff := b.observed.Differences(s.sandboxes, s.containers); diff != "" {
			w.meters.diverged()
			w.log.Warn("the runtime shows what no outcome or event told", "diff", diff)
		}
	}
	b.applyObservation(s)
}

// publishObserveError shows why nothing is done for the pod: as it was last, or as far as
// it is known.
func (w *worker) publishObserveError() {
	b := w.state
	why := Told{Reason: plan.Reason{Code: ObserveFailed, Detail: w.observeErr}, Since: w.observeErrSince}
	s := undecided(b.desired.Pod, b.verdict, b.memory, why)
	if w.published != nil && w.published.Passes > 0 {
		was := *w.published
		was.Busy, was.Failed = working(b)
		s = &was
		s.Why = append(slices.DeleteFunc(slices.Clone(s.Why), func(t Told) bool { return t.Code == ObserveFailed }), why)
	}
	s.At = w.now()
	w.publishSnapshot(s)
}

func (w *worker) publishSnapshot(s *Snapshot) {
	w.published = s
	w.publish(s)
}

// handleAudit compares what is known with a listing made beside it. A difference is
// looked into, and counted if the look confirms it; there should be none.
func (w *worker) handleAudit(s observation) {
	b := w.state
	if !b.everObserved || b.runtimeStale || b.observed.Differences(s.sandboxes, s.containers) == "" {
		return
	}
	if b.changingRuntime() || !b.lastChange.Before(s.started) { // it may show the time before
		b.requestRecheck(&s, w.now())
		return
	}
	w.auditPending = true
	b.requestRecheck(nil, w.now())
}

// observeAfterStartDelay is how long after a start a container is looked at again when
// nobody tells of its end: many that fail do so at once.
const observeAfterStartDelay = 200 * time.Millisecond

// observeAfterStart reads one container that was started a moment ago.
func (w *worker) observeAfterStart(ctx context.Context, id string) {
	w.ops.Go(func() {
		if !pause(ctx, observeAfterStartDelay) {
			return
		}
		ctx, end := w.span(ctx, "prepare", "look after start", "")
		k, err := w.stages.Prepare.Runtime.Container(ctx, id)
		end(err)
		if err != nil {
			w.Notify(RuntimeEvent{Incomplete: true})
			return
		}
		w.Notify(RuntimeEvent{Containers: []plan.Container{k}})
	})
}

// pause waits; false: ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// startAction starts one action. Its end comes back as mail, never sooner.
func (w *worker) startAction(ctx context.Context, stage string, a plan.Action, do func(context.Context, *plan.Outcome) error) {
	name, cause := w.state.actionSpan(a)
	w.state.actionStarted(a, w.now())
	pod := w.state.desired.Pod
	for _, r := range plan.Begun(a) {
		w.logAndReport(pod, r)
	}
	ctx, cancel := context.WithCancel(ctx)
	w.cancels[a.Key()] = cancel
	w.ops.Go(func() {
		defer cancel()
		ctx, end := w.span(ctx, stage, name, cause)
		out := plan.Outcome{Action: a, Began: w.now()}
		w.fault("before", a)
		made := func() {}
		if _, pull := a.(plan.PullImage); pull { // pods may share one: the call is not made under each one's span
			making, pulling := w.runtimeTime.Begin(), w.pullTime.Begin()
			made = func() { making(); pulling() }
		}
		ended := w.sandboxes.begin(a)
		out.Err = do(ctx, &out)
		ended(out.Err)
		made()
		w.fault("after", a)
		out.Ended = w.now()
		w.meters.acted(stage, out.Ended.Sub(out.Began))
		if out.Err != nil && ctx.Err() != nil && plan.KindOf(out.Err) != plan.Canceled {
			out.Err = &plan.Error{Kind: plan.Canceled, Err: out.Err}
		}
		end(out.Err)
		w.inbox.put(func(p *messages) { p.outcomes = append(p.outcomes, out) })
	})
}

// handleOutcome takes in the end of an action.
func (w *worker) handleOutcome(ctx context.Context, r plan.Outcome) {
	delete(w.cancels, r.Action.Key())
	w.state.actionFinished(r)
	if _, start := r.Action.(plan.StartContainer); start && r.Err == nil && r.Container != nil && w.polled() {
		w.observeAfterStart(ctx, r.Container.ID)
	}
	w.meters.ended(w.state.desired.Pod, r)
	w.reportOutcome(r)
}

// reportOutcome tells users how an action has ended. The log has one line of each
// failure: the first reason, or the error if users are told nothing.
func (w *worker) reportOutcome(r plan.Outcome) {
	pod := w.state.desired.Pod
	attrs := []any{"op", r.Action.Key().String(), "took", r.Ended.Sub(r.Began)}
	failed := r.Err != nil && plan.KindOf(r.Err) != plan.Canceled
	switch r.Action.(type) {
	case plan.PostStart, plan.PreStop: // users are not told what a hook has printed
		if failed {
			attrs = append(attrs, "err", r.Err)
		}
	}
	reasons := plan.Ended(r)
	for i, reason := range reasons {
		switch {
		case !failed:
			w.logAndReport(pod, reason)
		case i == 0:
			w.logAndReport(pod, reason, attrs...)
		default:
			w.tell(pod, reason)
		}
	}
	switch attrs = append(attrs, "err", r.Err); {
	case !failed:
		w.log.Debug("action", attrs...)
	case len(reasons) == 0:
		w.log.Warn("action", attrs...)
	}
}

// logAndReport logs a reason and tells it to users.
func (w *worker) logAndReport(pod *corev1.Pod, r plan.Reason, more ...any) {
	level := slog.LevelInfo
	if r.Event == corev1.EventTypeWarning {
		level = slog.LevelWarn
	}
	attrs := []any{"reason", r.Code}
	if r.On != "" {
		attrs = append(attrs, "on", r.On)
	}
	w.log.Log(context.Background(), level, r.Detail, append(attrs, more...)...)
	w.tell(pod, r)
}
