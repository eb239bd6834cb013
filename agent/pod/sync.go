package pod

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

// Stages are the five stages of a sync pass. Each is a struct with the adapters that it
// needs. Stages do not depend on workers.
type Stages struct {
	Prepare   Prepare
	Admit     Admit
	Configure Configure
	Cleanup   Cleanup
	BuildRun  BuildRun
}

// syncPod is one sync pass: the five stages once. It starts actions and does not
// wait for them. It waits for the disk at most once, before it publishes a
// changed readiness, see persistHealth.
func (w *Worker) syncPod(ctx context.Context) (wake time.Time, done bool) {
	s := w.state
	now := w.now()

	objs := w.agent.Objects(s.desired.Pod) // 1 prepare: inputs from outside of the worker
	s.setRefs(objs.Versions())
	if s.hostStale {
		w.Sync() // observe before the next decision
	}
	w.stages.Prepare.refresh(s)

	w.admit() // 2 admit

	before := s.memory.Phase
	p := plan.Decide(s.planInput(now, w.Limits))
	for _, r := range s.applyPlan(p, now) {
		if r.Message != "" || r.EventType != "" { // otherwise the verdict is pending
			w.logAndReport(s.desired.Pod, r)
		}
	}
	w.updateWaitSpans(now)
	if before == corev1.PodPending && p.Status.Phase == corev1.PodRunning {
		w.reportPodStart(p, now)
	}
	w.saveRecord(p)
	for _, key := range p.Cancel {
		if cancel, ok := w.cancels[key]; ok {
			cancel()
		}
	}
	w.checkImages(ctx, p.CheckImages)

	ac := actionContext{pod: s.podWithAllocation(), observed: s.observed, objects: objs}
	d := w.durability(p)
	for _, a := range p.Configure { // 3 configure
		w.startAction(ctx, "configure", a, d.before(a), func(ctx context.Context, _ *plan.Outcome) error {
			return w.stages.Configure.do(ctx, ac, a)
		})
	}
	for _, a := range p.Cleanup { // 4 cleanup
		w.startAction(ctx, "cleanup", a, d.before(a), func(ctx context.Context, out *plan.Outcome) error {
			return w.stages.Cleanup.do(ctx, ac, a, out)
		})
	}
	for _, a := range p.BuildRun { // 5 build-run
		w.startAction(ctx, "build-run", a, d.before(a), func(ctx context.Context, out *plan.Outcome) error {
			return w.stages.BuildRun.do(ctx, ac, a, out)
		})
	}

	w.updateProbes(p)
	w.releaseResources(p)
	w.persistHealth(ctx, p)
	if p.Recreate {
		w.agent.Recreate(ctx, Returned)
	}
	w.publish(newSnapshot(s, p, now))
	w.metrics.syncFinished(w.now().Sub(now))
	return p.Wake, p.Done
}

// reportPodStart reports the duration of the pod start.
func (w *Worker) reportPodStart(p plan.Plan, now time.Time) {
	total := now.Sub(p.Memory.StartTime)
	w.metrics.podStarted(Start{
		Pod: w.state.desired.Pod, Status: p.Status, At: now,
		Total: total, Overhead: max(0, total-w.runtimeTime.Total()), Pulling: w.pullTime.Total(),
	})
}
