package probes

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
)

// Options is what New needs. Every zero field but Runtime has a default.
type Options struct {
	Runtime            Runtime
	UserAgent          string // of HTTP and gRPC probes; default kube-probe/1.37
	MaxConcurrentExecs int    // commands under way at once, those that hang not counted; default 8 per CPU
	OnResult           func(Sample, Target)
	OnStart            func(late time.Duration, missed int64) // how late a run began, and how many before it fell out
	OnForget           func(*corev1.Pod)                      // nothing is left of a pod that had probes
	Heartbeat          func()                                 // told that Run makes progress, every few seconds at least
}

// Target says whose probe it is.
type Target struct {
	Pod       *corev1.Pod
	Container string
	Kind      plan.ProbeKind
}

// Manager runs probes. Watch and Forget may be called from any goroutine, also
// before Run, and never block.
type Manager struct {
	opt  Options
	dial dialers
	make func(*probe, *corev1.Container) func(context.Context) answer
	left chan struct{} // closed when Run returns

	mu    sync.Mutex
	post  post
	ready chan struct{} // capacity 1

	// ---
	pods     map[types.UID]*pod
	schedule schedule
	lanes    [2]lane // commands, and all else
	stalls   stalls
	wg       sync.WaitGroup
}

// post is everything told since the owner last looked.
type post struct {
	watch map[types.UID]*watch // newest; nil: forget
	ends  []end
	asks  []ask
}

// watch is one call of Watch.
type watch struct {
	pod    *corev1.Pod
	want   []plan.Watch
	health func(id string, h plan.Health)
	event  func(plan.Reason)
}

// pod is one pod with probes.
type pod struct {
	watch
	instances []*instance // by name and ID
}

// instance is one running container.
type instance struct {
	pod    *pod
	watch  plan.Watch
	health plan.Health
	probes []*probe // by kind, in the order in which they are asked for
}

// probe is one probe of one container instance.
type probe struct {
	course
	in      *instance
	spec    *corev1.Probe
	host    string
	do      func(context.Context) answer
	timeout time.Duration

	wanted  bool
	at      int  // in the schedule; -1: not in it
	queued  bool // waits for its turn
	run     *run // under way; nil: not
	skipped int64
	last    []Sample // newest first
}

// run is a probe under way.
type run struct {
	probe   *probe
	began   time.Time
	lane    *lane
	stalled time.Duration // stalls.total when it began
	cancel  context.CancelFunc
	void    bool // it was called off: its end says nothing
}

// answer is what a runner has found out.
type answer struct {
	result Result
	output string
	late   bool // it failed because nothing came in time
	gone   bool // the container is gone: there is nothing to say
}

// end is mail of a probe that has ended.
type end struct {
	*run
	answer
	began, ended time.Time // of the probe itself
}

const (
	keptSamples   = 5
	keptOutput    = 1 << 10
	commandsQuick = 2 * time.Second
	mostCommands  = 512
	mostDials     = 2048
	shows         = 5 * time.Second // how often Run shows progress when it has nothing to do
)

// New returns Probes that run nothing yet.
func New(o Options) *Manager {
	o.UserAgent = cmp.Or(o.UserAgent, "kube-probe/1.37")
	if o.Heartbeat == nil {
		o.Heartbeat = func() {}
	}
	o.MaxConcurrentExecs = cmp.Or(o.MaxConcurrentExecs, 8*runtime.GOMAXPROCS(0))
	all := &Manager{
		opt: o, dial: newDialers(), left: make(chan struct{}), ready: make(chan struct{}, 1),
		post: post{watch: map[types.UID]*watch{}}, pods: map[types.UID]*pod{},
		lanes: [2]lane{
			{limit: o.MaxConcurrentExecs, quick: commandsQuick, most: mostCommands},
			{limit: mostDials, most: mostDials},
		},
	}
	all.make = all.runner
	return all
}

// Watch has exactly these probes of a pod run from now on. health is told what
// the probes of one container add up to whenever that has changed, event what
// users are to be told; neither may block.
func (o *Manager) Watch(pod *corev1.Pod, want []plan.Watch, health func(id string, h plan.Health), event func(plan.Reason)) {
	o.mail(func(p *post) { p.watch[pod.UID] = &watch{pod, want, health, event} })
}

// Forget says that nothing is left of a pod.
func (o *Manager) Forget(uid types.UID) { o.mail(func(p *post) { p.watch[uid] = nil }) }

func (o *Manager) mail(f func(*post)) {
	o.mu.Lock()
	f(&o.post)
	o.mu.Unlock()
	select {
	case o.ready <- struct{}{}:
	default:
	}
}

func (o *Manager) take() post {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.post
	o.post = post{watch: map[types.UID]*watch{}}
	return p
}

// Run runs what is wanted until ctx ends, and returns when no probe is under way
// any more.
func (o *Manager) Run(ctx context.Context) error {
	defer close(o.left)
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		o.wg.Wait()
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	idle := time.NewTicker(shows)
	defer idle.Stop()
	for {
		o.opt.Heartbeat()
		select {
		case <-ctx.Done():
			return nil
		case <-idle.C:
		case <-o.ready:
		case <-timer.C:
		}
		now := time.Now()
		o.stalls.beat(now, o.busy())
		o.read(o.take(), now)
		next := o.start(ctx)
		if o.busy() {
			next = soonest(next, now.Add(pulse))
			if o.stalls.last.IsZero() {
				o.stalls.last = now
			}
		}
		timer.Stop()
		if !next.IsZero() {
			timer.Reset(max(0, time.Until(next)))
		}
	}
}

func (o *Manager) busy() bool { return o.lanes[0].all+o.lanes[1].all > 0 }

// read takes the mail in, oldest matter first.
func (o *Manager) read(p post, now time.Time) {
	for _, e := range p.ends {
		o.settle(e)
	}
	for uid, w := range p.watch {
		if w == nil {
			o.forget(uid)
			continue
		}
		o.set(w, now)
	}
	for _, a := range p.asks {
		a.reply <- o.report(a.uid)
	}
}

// start begins what is due, as far as there is room, and returns when to look
// again.
func (o *Manager) start(ctx context.Context) (next time.Time) {
	now := time.Now()
	for p := o.schedule.take(now); p != nil; p = o.schedule.take(now) {
		p.queued = true
		l := o.laneOf(p)
		l.queue = append(l.queue, p)
	}
	for i := range o.lanes {
		l := &o.lanes[i]
		next = soonest(next, l.giveUp(now))
		for l.free() {
			p := l.pop()
			if p == nil {
				break
			}
			o.begin(ctx, l, p)
		}
	}
	return soonest(next, o.schedule.next())
}

// begin runs one probe.
func (o *Manager) begin(ctx context.Context, l *lane, p *probe) {
	now := time.Now()
	missed := p.missed(now)
	p.skipped += missed
	if o.opt.OnStart != nil {
		o.opt.OnStart(now.Sub(p.due), missed)
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &run{probe: p, began: now, lane: l, stalled: o.stalls.total, cancel: cancel}
	p.run = r
	l.begun(r)
	do := p.do
	o.wg.Go(func() {
		e := end{run: r, began: time.Now()}
		e.answer = do(ctx)
		e.ended = time.Now()
		o.mail(func(p *post) { p.ends = append(p.ends, e) })
	})
}

// settle takes in the end of one probe.
func (o *Manager) settle(e end) {
	p := e.run.probe
	e.lane.ended(e.run)
	e.cancel()
	p.run = nil
	if e.void {
		o.reschedule(p)
		return
	}
	took := e.ended.Sub(e.began)
	if stood := o.stalls.total - e.stalled; e.late && stood > took/4 {
		e.answer = answer{result: Unknown, output: fmt.Sprintf("not counted: this node stood still for %s meanwhile", stood.Round(time.Millisecond))}
	}
	if e.gone {
		p.due = e.ended.Add(p.soonPause())
		o.reschedule(p)
		return
	}
	counted := p.took(e.result, clip(e.output, keptOutput), e.began, e.ended)
	s := Sample{At: e.began, Duration: took, Result: e.result, Counted: counted, Output: clip(e.output, keptOutput)}
	p.last = slices.Insert(p.last, 0, s)
	if len(p.last) > keptSamples {
		p.last = p.last[:keptSamples]
	}
	if o.opt.OnResult != nil {
		o.opt.OnResult(s, Target{p.in.pod.pod, p.in.watch.Name, p.Kind})
	}
	p.say(s)
	o.reschedule(p)
	p.in.sum(p)
}

// soonPause is how long a probe of a container that is gone is held back: if it
// is not, the next pass asks for another or for none.
func (p *probe) soonPause() time.Duration { return min(p.period, time.Second) }

// reschedule puts a probe that has ended back, unless it has done its work.
func (o *Manager) reschedule(p *probe) {
	done := p.passed != nil && (p.Kind == plan.StartupProbe || p.Kind == plan.LivenessProbe && !*p.passed)
	if p.wanted && !done && p.run == nil && !p.queued {
		o.schedule.add(p)
	}
}

func (o *Manager) laneOf(p *probe) *lane {
	if p.spec.Exec != nil {
		return &o.lanes[0]
	}
	return &o.lanes[1]
}

// say tells users of a result that is not as it should be. Early failures are
// part of every start and not worth a word.
func (p *probe) say(s Sample) {
	r := plan.Reason{On: p.in.watch.Name, Event: corev1.EventTypeWarning}
	switch {
	case s.Result == Failure && s.Counted:
		r.Code, r.Detail = "Unhealthy", fmt.Sprintf("%s probe failed: %s", p.Kind, s.Output)
	case s.Result == Warning:
		r.Code, r.Detail = "ProbeWarning", fmt.Sprintf("%s probe warning: %s", p.Kind, s.Output)
	case s.Result == Unknown:
		r.Code, r.Detail = "Unhealthy", fmt.Sprintf("%s probe errored and resulted in %s state: %s", p.Kind, s.Result, s.Output)
	default:
		return
	}
	p.in.pod.event(r)
}

// sum tells what the container's probes add up to, if that has changed.
func (in *instance) sum(p *probe) {
	h := in.health
	was := h.Of(p.Kind)
	if was != nil && *was == p.Probed {
		return
	}
	h.Probed = slices.DeleteFunc(slices.Clone(h.Probed), func(x plan.Probed) bool { return x.Kind == p.Kind })
	h.Probed = append(h.Probed, p.Probed)
	slices.SortFunc(h.Probed, func(a, b plan.Probed) int { return cmp.Compare(a.Kind, b.Kind) })
	if p.passed != nil {
		switch ok := *p.passed; {
		case p.Kind == plan.ReadinessProbe:
			h.Ready = ok
		case !ok:
			h.Dead, h.Probe, h.Message = true, kindText(p.Kind), p.Probed.Failure
		case p.Kind == plan.StartupProbe:
			h.Started = true
		}
	}
	in.health = h
	in.pod.health(in.watch.ID, h)
}

// kindText is how sentences name a kind of probe.
func kindText(k plan.ProbeKind) string {
	return map[plan.ProbeKind]string{plan.StartupProbe: "startup", plan.ReadinessProbe: "readiness", plan.LivenessProbe: "liveness"}[k]
}

func soonest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// clip shortens an output to n bytes.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n]
}
