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

// Options configures a Manager. All fields but Runtime have defaults.
type Options struct {
	Runtime            Runtime
	UserAgent          string // for HTTP and gRPC probes; default kube-probe/1.37
	MaxConcurrentExecs int    // without hung commands; default 8 per CPU
	OnResult           func(Sample, Target)
	OnStart            func(late time.Duration, missed int64) // delay of a run and the number of runs skipped before it
	OnForget           func(*corev1.Pod)                      // all probes of a pod were removed
	Heartbeat          func()                                 // called every few seconds while Run makes progress
}

// Target identifies the container and type of a probe.
type Target struct {
	Pod       *corev1.Pod
	Container string
	Kind      plan.ProbeKind
}

// Manager runs probes. Watch and Forget may be called from any goroutine, also before Run, and
// never block.
type Manager struct {
	opt         Options
	dial        dialers
	buildRunner func(*probe, *corev1.Container) func(context.Context) outcome
	stopped     chan struct{} // closed when Run returns

	mu    sync.Mutex
	inbox inbox
	ready chan struct{} // capacity 1

	// Owned by Run.
	pods     map[types.UID]*pod
	schedule schedule
	pools    [2]workerPool // exec probes, and all others
	pauses   pauses
	wg       sync.WaitGroup
}

// inbox collects the messages since Run last read it.
type inbox struct {
	watch    map[types.UID]*watch // newest; nil: removed
	finished []finishedRun
	requests []statusRequest
}

// watch is a call of Watch.
type watch struct {
	pod         *corev1.Pod
	want        []plan.ProbeTarget
	health      func(id string, h plan.Health)
	recordEvent func(plan.Reason)
}

// pod is a pod with probes.
type pod struct {
	watch
	instances []*instance // by name and ID
}

// instance is a running container.
type instance struct {
	pod    *pod
	watch  plan.ProbeTarget
	health plan.Health
	probes []*probe // by type
}

// probe is a probe of one container instance.
type probe struct {
	probeState
	in      *instance
	spec    *corev1.Probe
	host    string
	execute func(context.Context) outcome
	timeout time.Duration

	wanted    bool
	heapIndex int  // index in the schedule; -1: not scheduled
	queued    bool // waits for a worker
	run       *run // the current run; nil: none
	skipped   int64
	recent    []Sample // newest first
}

// run is a running probe.
type run struct {
	probe         *probe
	startedAt     time.Time
	pool          *workerPool
	pausedAtStart time.Duration // pauses.total at the start
	cancel        context.CancelFunc
	canceled      bool // the result is ignored
}

// outcome is the result of one run.
type outcome struct {
	result        Result
	output        string
	timedOut      bool // failed because of a timeout
	containerGone bool // the container no longer exists: no result
}

// finishedRun is the message of a finished run.
type finishedRun struct {
	*run
	outcome
	began, ended time.Time // without waiting time
}

const (
	maxSamples      = 5
	maxOutput       = 1 << 10
	execSlotTimeout = 2 * time.Second
	maxExecs        = 512
	maxDials        = 2048
	idleHeartbeat   = 5 * time.Second // heartbeat interval without work
)

// New returns a Manager without probes.
func New(o Options) *Manager {
	o.UserAgent = cmp.Or(o.UserAgent, "kube-probe/1.37")
	if o.Heartbeat == nil {
		o.Heartbeat = func() {}
	}
	o.MaxConcurrentExecs = cmp.Or(o.MaxConcurrentExecs, 8*runtime.GOMAXPROCS(0))
	all := &Manager{
		opt: o, dial: newDialers(), stopped: make(chan struct{}), ready: make(chan struct{}, 1),
		inbox: inbox{watch: map[types.UID]*watch{}}, pods: map[types.UID]*pod{},
		pools: [2]workerPool{
			{limit: o.MaxConcurrentExecs, slotTimeout: execSlotTimeout, maxWithHung: maxExecs},
			{limit: maxDials, maxWithHung: maxDials},
		},
	}
	all.buildRunner = all.runner
	return all
}

// Watch sets the probes of a pod. health is called when the combined result of a container's probes
// changes, event for results that are reported as events. Neither may block.
func (o *Manager) Watch(
	pod *corev1.Pod,
	want []plan.ProbeTarget,
	health func(id string, h plan.Health),
	event func(plan.Reason),
) {
	o.send(func(p *inbox) { p.watch[pod.UID] = &watch{pod, want, health, event} })
}

// Forget removes all probes of a pod that no longer exists.
func (o *Manager) Forget(uid types.UID) { o.send(func(p *inbox) { p.watch[uid] = nil }) }

func (o *Manager) send(f func(*inbox)) {
	o.mu.Lock()
	f(&o.inbox)
	o.mu.Unlock()
	select {
	case o.ready <- struct{}{}:
	default:
	}
}

func (o *Manager) drainInbox() inbox {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.inbox
	o.inbox = inbox{watch: map[types.UID]*watch{}}
	return p
}

// Run runs the probes until ctx ends, and returns when all running probes have ended.
func (o *Manager) Run(ctx context.Context) error {
	defer close(o.stopped)
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		o.wg.Wait()
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	idle := time.NewTicker(idleHeartbeat)
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
		o.pauses.tick(now, o.busy())
		o.handleInbox(o.drainInbox(), now)
		next := o.startDue(ctx)
		if o.busy() {
			next = soonest(next, now.Add(pauseTick))
			if o.pauses.last.IsZero() {
				o.pauses.last = now
			}
		}
		timer.Stop()
		if !next.IsZero() {
			timer.Reset(max(0, time.Until(next)))
		}
	}
}

func (o *Manager) busy() bool { return o.pools[0].running+o.pools[1].running > 0 }

// handleInbox handles all messages: finished runs first.
func (o *Manager) handleInbox(p inbox, now time.Time) {
	for _, e := range p.finished {
		o.handleFinished(e)
	}
	for uid, w := range p.watch {
		if w == nil {
			o.removePod(uid)
			continue
		}
		o.setPod(w, now)
	}
	for _, a := range p.requests {
		a.reply <- o.statuses(a.uid)
	}
}

// startDue starts due probes as far as workers are available, and returns when to call it again.
func (o *Manager) startDue(ctx context.Context) (next time.Time) {
	now := time.Now()
	for p := o.schedule.take(now); p != nil; p = o.schedule.take(now) {
		p.queued = true
		l := o.poolOf(p)
		l.queue = append(l.queue, p)
	}
	for i := range o.pools {
		l := &o.pools[i]
		next = soonest(next, l.releaseHung(now))
		for l.hasSlot() {
			p := l.pop()
			if p == nil {
				break
			}
			o.startRun(ctx, l, p)
		}
	}
	return soonest(next, o.schedule.next())
}

// startRun starts one probe.
func (o *Manager) startRun(ctx context.Context, l *workerPool, p *probe) {
	now := time.Now()
	missed := p.missed(now)
	p.skipped += missed
	if o.opt.OnStart != nil {
		o.opt.OnStart(now.Sub(p.due), missed)
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &run{probe: p, startedAt: now, pool: l, pausedAtStart: o.pauses.total, cancel: cancel}
	p.run = r
	l.started(r)
	do := p.execute
	o.wg.Go(func() {
		e := finishedRun{run: r, began: time.Now()}
		e.outcome = do(ctx)
		e.ended = time.Now()
		o.send(func(p *inbox) { p.finished = append(p.finished, e) })
	})
}

// handleFinished handles the end of one run.
func (o *Manager) handleFinished(e finishedRun) {
	p := e.run.probe
	e.pool.ended(e.run)
	e.cancel()
	p.run = nil
	if e.canceled {
		o.reschedule(p)
		return
	}
	took := e.ended.Sub(e.began)
	if paused := o.pauses.total - e.pausedAtStart; e.timedOut && paused > took/4 {
		e.outcome = outcome{
			result: Unknown,
			output: fmt.Sprintf("not counted: the node was paused for %s during the probe",
				paused.Round(time.Millisecond)),
		}
	}
	if e.containerGone {
		p.due = e.ended.Add(p.retryPause())
		o.reschedule(p)
		return
	}
	counted := p.record(e.result, truncate(e.output, maxOutput), e.began, e.ended)
	s := Sample{At: e.began, Duration: took, Result: e.result, Counted: counted, Output: truncate(e.output, maxOutput)}
	p.recent = slices.Insert(p.recent, 0, s)
	if len(p.recent) > maxSamples {
		p.recent = p.recent[:maxSamples]
	}
	if o.opt.OnResult != nil {
		o.opt.OnResult(s, Target{p.in.pod.pod, p.in.watch.Name, p.Kind})
	}
	p.recordEvent(s)
	o.reschedule(p)
	p.in.updateHealth(p)
}

// retryPause delays the next run if the container is gone. If it is not, the next sync pass updates
// the probes.
func (p *probe) retryPause() time.Duration { return min(p.period, time.Second) }

// reschedule schedules the next run of a probe, unless its work is done.
func (o *Manager) reschedule(p *probe) {
	done := p.passed != nil && (p.Kind == plan.StartupProbe || p.Kind == plan.LivenessProbe && !*p.passed)
	if p.wanted && !done && p.run == nil && !p.queued {
		o.schedule.add(p)
	}
}

func (o *Manager) poolOf(p *probe) *workerPool {
	if p.spec.Exec != nil {
		return &o.pools[0]
	}
	return &o.pools[1]
}

// recordEvent reports a result other than success as an event. Early failures are expected during
// startup and not reported.
func (p *probe) recordEvent(s Sample) {
	r := plan.Reason{Target: p.in.watch.Name, EventType: corev1.EventTypeWarning}
	switch {
	case s.Result == Failure && s.Counted:
		r.Code, r.Message = "Unhealthy", fmt.Sprintf("%s probe failed: %s", p.Kind, s.Output)
	case s.Result == Warning:
		r.Code, r.Message = "ProbeWarning", fmt.Sprintf("%s probe warning: %s", p.Kind, s.Output)
	case s.Result == Unknown:
		r.Code, r.Message = "Unhealthy", fmt.Sprintf(
			"%s probe errored and resulted in %s state: %s",
			p.Kind,
			s.Result,
			s.Output,
		)
	default:
		return
	}
	p.in.pod.recordEvent(r)
}

// updateHealth reports the combined result of the container's probes if it has changed.
func (in *instance) updateHealth(p *probe) {
	h := in.health
	was := h.StateOf(p.Kind)
	if was != nil && *was == p.ProbeState {
		return
	}
	h.Probes = slices.DeleteFunc(slices.Clone(h.Probes), func(x plan.ProbeState) bool { return x.Kind == p.Kind })
	h.Probes = append(h.Probes, p.ProbeState)
	slices.SortFunc(h.Probes, func(a, b plan.ProbeState) int { return cmp.Compare(a.Kind, b.Kind) })
	if p.passed != nil {
		switch ok := *p.passed; {
		case p.Kind == plan.ReadinessProbe:
			h.Ready = ok
		case !ok:
			h.Failed, h.FailedProbe, h.Message = true, kindText(p.Kind), p.ProbeState.Failure
		case p.Kind == plan.StartupProbe:
			h.Started = true
		}
	}
	in.health = h
	in.pod.health(in.watch.ID, h)
}

// kindText returns the probe type as used in messages.
func kindText(k plan.ProbeKind) string {
	return map[plan.ProbeKind]string{
		plan.StartupProbe: "startup", plan.ReadinessProbe: "readiness", plan.LivenessProbe: "liveness",
	}[k]
}

func soonest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// truncate shortens an output to n bytes.
func truncate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n]
}
