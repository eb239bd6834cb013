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

// Hint is what the runtime told of a pod without being asked. It is a hint:
// what it says is older than the newest look.
type Hint struct {
	Sandbox    *plan.Sandbox
	Containers []plan.Container
	Bare       bool // something happened, no details: look

	// Listed is the whole pod as Runtime.List would give it, told by a runtime
	// that is polled: compared with what is known, and looked into if it differs.
	Listed *Adopted
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
	keep     func(Wish, plan.Verdict, plan.Memory)                        // saved soon
	sync     func(context.Context, Wish, plan.Verdict, plan.Memory) error // saved before it returns
	publish  func(*Snapshot)
	tell     func(*corev1.Pod, plan.Reason)
	timeline *events.Timeline
	log      *slog.Logger
	meters   Meters
	now      func() time.Time
	fault    func(moment string, a plan.Action)
	polled   func() bool                            // the runtime has no events: what happens is told late
	prober   Prober                                 // nil: nobody probes
	again    func(ctx context.Context, edited bool) // the pod is over and to be made anew: its file wants something else since, or it returns

	sandboxes *sandboxCalls

	mail mailbox
	// Below: the worker's goroutine only.
	book    *book
	looking bool
	seeking bool
	came    bool // images came to the node since it was last asked
	cancels map[plan.OpKey]context.CancelFunc
	ops     sync.WaitGroup
	asked   bool                   // the room was asked
	wants   *corev1.Pod            // of which the room knows what it wants
	begun   bool                   // its start slot was given back
	left    bool                   // the room was left
	ended   bool                   // the room was told that the pod ends
	audited bool                   // the next look confirms or clears what the audit found
	blind   string                 // why the last look failed; empty: it did not
	blindAt time.Time              // when the first of those failed
	shown   *Snapshot              // what was published last; nil: nothing
	onDisk  *onDisk                // of the pod's end
	kept    keptState              // what was last handed to keep
	asks    []ask                  // of users, not yet answered
	waits   map[wait]events.SpanID // open on the timeline
	told    plan.Memory            // of the last pass: what users have seen of its health is on disk
	watched watched                // what the prober was last asked for
	making  events.Stopwatch       // of pulls, and of calls that change the runtime; any goroutine
	pulling events.Stopwatch       // of pulls; any goroutine
}

// mailbox takes what is told to a worker. Telling never blocks.
type mailbox struct {
	mu    sync.Mutex
	post  post
	ready chan struct{} // capacity 1
}

// post is everything told since the worker last looked.
type post struct {
	wish     *Wish
	hints    []Hint
	answers  []answer
	end      *plan.End // asked for by the room
	outcomes []plan.Outcome
	sights   []sight
	found    *found
	health   map[string]plan.Health
	came     bool // images came that nobody pulled
	recheck  bool // the runtime came back: try again what failed for want of it
	audit    *sight
	asks     []ask
}

// found is what an asking for images has found.
type found struct {
	at     time.Time
	images plan.ImagesSeen
}

func (m *mailbox) put(f func(*post)) {
	m.mu.Lock()
	f(&m.post)
	m.mu.Unlock()
	select {
	case m.ready <- struct{}{}:
	default:
	}
}

func (m *mailbox) take() post {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.post
	m.post = post{}
	return p
}

// Want hands the worker a newer wish. An end that it has not read yet stays.
func (w *worker) Want(wish Wish) {
	w.mail.put(func(p *post) {
		if wish.End == nil && p.wish != nil {
			wish.End = p.wish.End
		}
		p.wish = &wish
	})
}

// end tells the worker that its pod has to go for another.
func (w *worker) end(e plan.End) {
	e.At = time.Now()
	w.mail.put(func(p *post) { p.end = &e })
}

// Hint hands the worker what the runtime told.
func (w *worker) Hint(h Hint) {
	w.mail.put(func(p *post) {
		if len(p.hints) >= 64 { // a storm: details do not matter, one look does
			p.hints = []Hint{{Bare: true}}
		}
		p.hints = append(p.hints, h)
	})
}

// Nudge asks for a pass soon.
func (w *worker) Nudge() { w.mail.put(func(*post) {}) }

// Seek tells that images came to the node that nobody has pulled.
func (w *worker) Seek() { w.mail.put(func(p *post) { p.came = true }) }

// Recheck tells that the runtime came back.
func (w *worker) Recheck() { w.mail.put(func(p *post) { p.recheck = true }) }

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
		case <-w.mail.ready:
		case <-wake.C:
		}
		w.read(ctx, w.mail.take())
		next, done := w.turn(ctx)
		if done {
			return true
		}
		wake.Stop()
		if !next.IsZero() {
			wake.Reset(max(0, next.Sub(w.now())))
		}
	}
}

// read takes the mail into the book, oldest matter first.
func (w *worker) read(ctx context.Context, p post) {
	b := w.book
	if p.wish != nil {
		w.wished(ctx, *p.wish)
	}
	if p.end != nil && b.wish.Pod != nil && b.wish.End == nil {
		b.wished(Wish{Pod: b.wish.Pod, End: p.end})
	}
	for _, a := range p.answers {
		if a.State == plan.Rejected && b.verdict.State != plan.Rejected && b.verdict.State != plan.OK {
			w.meters.rejected(a.Reason)
		}
		b.answered(a)
		if b.rejectedEarlier(a) {
			w.again(ctx, true)
		}
	}
	for _, r := range p.outcomes {
		w.settle(ctx, r)
	}
	for _, h := range p.hints {
		b.noted(h, w.now())
	}
	for _, s := range p.sights {
		w.looking = false
		w.saw(s)
	}
	if p.found != nil {
		w.seeking = false
		b.found(p.found.images, p.found.at)
	}
	w.came = w.came || p.came
	if w.came && !w.seeking && b.looked {
		w.came = false
		w.seek(ctx, b.seen.Absent(b.wish.Pod))
	}
	if p.health != nil {
		w.feels(p.health)
	}
	if p.recheck {
		b.recovered()
	}
	if p.audit != nil {
		w.audit(*p.audit)
	}
	w.asks = append(w.asks, p.asks...)
	w.answer(ctx)
}

// turn looks if it must, passes if it may, and returns when to wake.
func (w *worker) turn(ctx context.Context) (wake time.Time, done bool) {
	b := w.book
	if b.wish.Pod == nil {
		return time.Time{}, false
	}
	due, later := b.lookDue(w.now())
	if !w.looking && (due || !b.mayDecide()) {
		w.look(ctx, due || b.doubt)
	}
	if !b.mayDecide() {
		return later, false
	}
	wake, done = w.pass(ctx)
	if wake.IsZero() || !later.IsZero() && later.Before(wake) {
		wake = later
	}
	return wake, done
}

// lookAgain is how long a look that failed is held back: the runtime is away.
const lookAgain = 250 * time.Millisecond

// look begins a look at the pod, at the runtime only if asked: a worker that
// begins was told what the agent's own listing has shown. Its end is mail.
func (w *worker) look(ctx context.Context, runtime bool) {
	w.looking = true
	b := w.book
	pod, at, heard := plan.WithResources(b.pod(), b.memory.Sizes.Pod), b.settle, b.heard
	objs := w.objects.Of(pod)
	host := !b.looked || b.doubtOfHost
	if runtime {
		b.suspicion = nil // what is told from now on is another
	}
	again := w.blind != "" // those that fail in a row have one span: the timeline has other things to tell
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
			pause(ctx, lookAgain)
		}
		s.at, s.heard, s.began = at, heard, began
		w.mail.put(func(p *post) { p.sights = append(p.sights, s) })
	})
}

// seek asks the node for images that only a hand can bring. It leaves no trace on
// the timeline: that would soon tell of nothing else.
func (w *worker) seek(ctx context.Context, images []string) {
	if w.seeking || len(images) == 0 {
		return
	}
	w.seeking = true
	pod := w.book.wish.Pod
	objs := w.objects.Of(pod)
	w.ops.Go(func() {
		f := &found{at: w.now(), images: w.stages.Prepare.Images.Observe(ctx, pod, images, objs)}
		w.mail.put(func(p *post) { p.found = f })
	})
}

// saw takes in the end of a look.
func (w *worker) saw(s sight) {
	b := w.book
	if s.err != nil {
		if s.runtime {
			b.suspect(nil, w.now())
		}
		if text := s.err.Error(); text != w.blind && plan.KindOf(s.err) != plan.Canceled {
			if w.blind == "" {
				w.blindAt = w.now()
			}
			w.blind = text
			w.publishBlind()
			w.log.Warn("what there is of the pod is not known; nothing is done until it is", "err", s.err)
		}
		return
	}
	w.blind = ""
	if w.audited && s.runtime && s.at == b.settle {
		w.audited = false
		if diff := b.seen.Differences(s.sandboxes, s.containers); diff != "" {
			w.meters.diverged()
			w.log.Warn("the runtime shows what no outcome or event told", "diff", diff)
		}
	}
	b.saw(s)
}

// publishBlind shows why nothing is done for the pod: as it was last, or as far as
// it is known.
func (w *worker) publishBlind() {
	b := w.book
	why := Told{Reason: plan.Reason{Code: LookFailed, Detail: w.blind}, Since: w.blindAt}
	s := undecided(b.wish.Pod, b.verdict, b.memory, why)
	if w.shown != nil && w.shown.Passes > 0 {
		was := *w.shown
		was.Busy, was.Failed = working(b)
		s = &was
		s.Why = append(slices.DeleteFunc(slices.Clone(s.Why), func(t Told) bool { return t.Code == LookFailed }), why)
	}
	s.At = w.now()
	w.show(s)
}

func (w *worker) show(s *Snapshot) {
	w.shown = s
	w.publish(s)
}

// audit compares what is known with a listing made beside it. A difference is
// looked into, and counted if the look confirms it; there should be none.
func (w *worker) audit(s sight) {
	b := w.book
	if !b.looked || b.doubt || b.seen.Differences(s.sandboxes, s.containers) == "" {
		return
	}
	if b.touching() || !b.changed.Before(s.began) { // it may show the time before
		b.suspect(&s, w.now())
		return
	}
	w.audited = true
	b.suspect(nil, w.now())
}

// lookAfterStart is how long after a start a container is looked at again when
// nobody tells of its end: many that fail do so at once.
const lookAfterStart = 200 * time.Millisecond

// lookOnce reads one container that was started a moment ago.
func (w *worker) lookOnce(ctx context.Context, id string) {
	w.ops.Go(func() {
		if !pause(ctx, lookAfterStart) {
			return
		}
		ctx, end := w.span(ctx, "prepare", "look after start", "")
		k, err := w.stages.Prepare.Runtime.Container(ctx, id)
		end(err)
		if err != nil {
			w.Hint(Hint{Bare: true})
			return
		}
		w.Hint(Hint{Containers: []plan.Container{k}})
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

// begin starts one action. Its end comes back as mail, never sooner.
func (w *worker) begin(ctx context.Context, stage string, a plan.Action, do func(context.Context, *plan.Outcome) error) {
	name, cause := w.book.spanOf(a)
	w.book.begun(a, w.now())
	pod := w.book.wish.Pod
	for _, r := range plan.Begun(a) {
		w.say(pod, r)
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
			making, pulling := w.making.Begin(), w.pulling.Begin()
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
		w.mail.put(func(p *post) { p.outcomes = append(p.outcomes, out) })
	})
}

// settle takes in the end of an action.
func (w *worker) settle(ctx context.Context, r plan.Outcome) {
	delete(w.cancels, r.Action.Key())
	w.book.ended(r)
	if _, start := r.Action.(plan.StartContainer); start && r.Err == nil && r.Container != nil && w.polled() {
		w.lookOnce(ctx, r.Container.ID)
	}
	w.meters.ended(w.book.wish.Pod, r)
	w.report(r)
}

// report tells users how an action has ended. The log has one line of each
// failure: the first reason, or the error if users are told nothing.
func (w *worker) report(r plan.Outcome) {
	pod := w.book.wish.Pod
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
			w.say(pod, reason)
		case i == 0:
			w.say(pod, reason, attrs...)
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

// say logs a reason and tells it to users.
func (w *worker) say(pod *corev1.Pod, r plan.Reason, more ...any) {
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
