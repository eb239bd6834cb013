package agent

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

// Stages are the five stages of a pass. Each is a struct of its own that knows
// the adapters it needs and nothing of workers.
type Stages struct {
	Prepare   Prepare
	Admit     Admit
	Configure Configure
	Cleanup   Cleanup
	BuildRun  BuildRun
}

// syncPod is one walk through the five stages. It never waits: what takes time
// runs on goroutines of its own, and its end is an input of the next pass.
func (w *worker) syncPod(ctx context.Context) (wake time.Time, done bool) {
	b := w.state
	began := w.now()

	objs := w.objects.Of(b.desired.Pod) // 1 prepare: what the worker does not know by itself
	b.setRefs(ObjectVersions(objs))
	if b.hostStale {
		w.Sync() // for a look before the next decision
	}
	w.stages.Prepare.atHand(b)

	if !w.admissionRequested && !b.finishedOrTerminating() && b.verdict.State != plan.Rejected { // 2 admit
		w.admissionRequested = true
		w.requestedFor = b.desired.Pod
		w.stages.Admit.ask(w.room, b, w.hasReadySandbox(), w.onVerdict(b.podWithAllocation(), false), w.Preempt)
	}
	if w.admissionRequested {
		w.requestResize()
	}

	before := b.memory.Phase
	p := plan.Decide(b.planInput(began, w.limits))
	for _, r := range b.applyPlan(p, began) {
		if r.Detail != "" || r.Event != "" { // else the verdict is on its way: nothing that users could read
			w.logAndReport(b.desired.Pod, r)
		}
	}
	w.updateWaitSpans(began)
	if before == corev1.PodPending && p.Status.Phase == corev1.PodRunning {
		total := began.Sub(p.Memory.Started)
		w.meters.started(PodStart{
			Pod: b.desired.Pod, Status: p.Status, At: began,
			Total: total, Overhead: max(0, total-w.runtimeTime.Total()), Pulling: w.pullTime.Total(),
		})
	}
	w.saveMemory(p)
	for _, key := range p.Cancel {
		if cancel, ok := w.cancels[key]; ok {
			cancel()
		}
	}
	w.checkImages(ctx, p.Seek)
	on := actionContext{pod: b.podWithAllocation(), observed: b.observed, objects: objs}
	for _, a := range p.Configure { // 3 configure
		w.startAction(ctx, "configure", a, func(ctx context.Context, _ *plan.Outcome) error {
			return w.stages.Configure.do(ctx, on, a)
		})
	}
	endOnDisk, hooksOnDisk := w.beforeDestroying(p), w.beforeHooks(p)
	for _, a := range p.Cleanup { // 4 cleanup
		w.startAction(ctx, "cleanup", a, func(ctx context.Context, out *plan.Outcome) error {
			endOnDisk(ctx)
			hooksOnDisk(a)(ctx)
			return w.stages.Cleanup.do(ctx, on, a, out)
		})
	}
	for _, a := range p.BuildRun { // 5 build-run
		w.startAction(ctx, "build-run", a, func(ctx context.Context, out *plan.Outcome) error {
			hooksOnDisk(a)(ctx)
			return w.stages.BuildRun.do(ctx, on, a, out)
		})
	}
	w.updateProbes(p)
	w.releaseAllocation(p)
	w.saveHealth(ctx, p)
	if p.Again {
		w.again(ctx, false)
	}
	w.publishSnapshot(snapshotOf(b, p, began))
	w.meters.passed(w.now().Sub(began))
	return p.Wake, p.Done
}

// actionContext is what the actions of one plan stand on: the pod, what was seen and
// the objects it names, as they were when the plan was made.
type actionContext struct {
	pod      *corev1.Pod
	observed plan.Observed
	objects  plan.Objects
}

// hasReadySandbox reports whether something of the pod already runs here: proof that
// it was admitted.
func (w *worker) hasReadySandbox() bool {
	return slices.ContainsFunc(w.state.observed.Sandboxes, func(s plan.Sandbox) bool { return s.Ready })
}

// releaseAllocation gives the start slot back when the pod has no more starts to make
// soon, and its place when it is over or ends before it was let in. Each is
// told once.
func (w *worker) releaseAllocation(p plan.Plan) {
	b := w.state
	if !w.admissionRequested || w.released {
		return
	}
	in := b.verdict.State == plan.OK
	switch {
	case isTerminal(p.Status.Phase), p.Memory.End != nil && !in:
		w.released = true
		w.room.Release(b.desired.Pod.UID)
	case in && !w.startSlotReleased && !b.isStarting(): // what the plan asks for is under way by now
		w.startSlotReleased = true
		w.room.Started(b.desired.Pod.UID)
	}
	if in && !w.terminationReported && !w.released && (b.desired.Termination != nil || p.Memory.End != nil) {
		w.terminationReported = true
		w.room.Ends(b.desired.Pod.UID)
	}
}

// keptState is what was handed to the store.
type keptState struct {
	wish    Desired
	verdict plan.VerdictState // OK or Rejected; what is asked again is not kept
	memory  plan.Memory
	refs    map[plan.Ref]plan.Version
}

// saveMemory saves what the plan asks to be kept, if it changed. No start waits
// for it.
func (w *worker) saveMemory(p plan.Plan) {
	now := keptState{wish: w.state.desired, memory: p.Memory, refs: w.state.refs}
	if v := w.state.persistentVerdict().State; v == plan.OK || v == plan.Rejected {
		now.verdict = v
	}
	if now.wish == w.saved.wish && now.verdict == w.saved.verdict && maps.Equal(now.refs, w.saved.refs) && reflect.DeepEqual(now.memory, w.saved.memory) {
		return
	}
	w.saved = now
	w.keep(w.state.desired, w.state.persistentVerdict(), p.Memory)
}

// onDisk is one synced writing. For an end all destructive actions wait for it,
// of later passes too.
type onDisk struct {
	end   plan.End
	begun atomic.Bool
	over  chan struct{} // closed when written
	write func(context.Context)
}

// wait returns once it is written, or ctx has ended. The first who waits writes.
func (d *onDisk) wait(ctx context.Context) {
	if !d.begun.Swap(true) {
		d.write(ctx)
		close(d.over)
	}
	select {
	case <-d.over:
	case <-ctx.Done():
	}
}

// beforeDestroying returns what the first destructive action of an ending pod
// waits for: that its end is on disk. Without it a restart could bring a pod
// back that was already half gone.
func (w *worker) beforeDestroying(p plan.Plan) func(context.Context) {
	end := p.Memory.End
	if len(p.Cleanup) == 0 || end == nil {
		return func(context.Context) {}
	}
	if w.onDisk == nil || w.onDisk.end != *end {
		w.onDisk = w.toDisk(p.Memory)
		w.onDisk.end = *end
	}
	return w.onDisk.wait
}

// toDisk is the writing of a memory, begun by the first who waits for it.
func (w *worker) toDisk(m plan.Memory) *onDisk {
	wish, verdict := w.state.desired, w.state.persistentVerdict()
	return &onDisk{over: make(chan struct{}), write: func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, syncBound)
		defer cancel()
		// A full or dying disk must not keep pods from ending or starting; the
		// store says so itself.
		if err := w.sync(ctx, wish, verdict, m); err != nil {
			w.log.Debug("not on disk", "err", err)
		}
	}}
}

// beforeHooks returns what an action waits for that runs a hook, or starts a
// container that has one: that it is on disk that the hook is to run. Without
// it a restart could leave a container half started, or half told to stop. What
// is stopped only to be replaced waits likewise, or a restart could take its end
// for the container's own, or kill those of a new round too, and a resize, which
// may have been carried out or not.
func (w *worker) beforeHooks(p plan.Plan) func(plan.Action) func(context.Context) {
	disk := w.toDisk(p.Memory)
	return func(a plan.Action) func(context.Context) {
		switch a := a.(type) {
		case plan.PreStop, plan.ResizeContainer:
			return disk.wait
		case plan.StopContainer:
			if a.Replaces() {
				return disk.wait
			}
		case plan.StartContainer:
			if p.Memory.Hooks[a.Name].PostStart == plan.HookPending {
				return disk.wait
			}
		}
		return func(context.Context) {}
	}
}

const syncBound = 2 * time.Second
