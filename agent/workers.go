package agent

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/checkpoint"
	"berth/agent/plan"
	"berth/agent/pod"
	"berth/agent/source"
	"berth/agent/status"
	"berth/agent/status/events"
	"berth/podspec"
)

// worker is the agent's side of a pod worker. It implements pod.Agent.
type worker struct {
	*pod.Worker
	agent    *Agent
	uid      types.UID
	ref      events.PodRef
	timeline *events.Timeline

	// Below: the agent's goroutine only.
	pod         *corev1.Pod
	terminating bool // final: a pod that is desired again gets another worker
}

var _ pod.Agent = (*worker)(nil)

// Objects implements pod.Agent.
func (w *worker) Objects(p *corev1.Pod) plan.Objects { return w.agent.desired.objects.Of(p) }

// Save implements pod.Agent.
func (w *worker) Save(r pod.Record) {
	w.agent.Store.Put(w.uid, checkpoint.Record{
		Pod: r.Pod, Verdict: r.Verdict, Memory: r.Memory,
		Objects: w.agent.desired.objects.persistent(r.Pod), BootID: w.agent.BootID, OwnerMarked: true,
	})
}

// Flush implements pod.Agent.
func (w *worker) Flush(ctx context.Context) error { return w.agent.Store.Flush(ctx) }

// Publish implements pod.Agent.
func (w *worker) Publish(s *status.Snapshot) { w.agent.StatusCache.Put(s) }

// Report implements pod.Agent.
func (w *worker) Report(p *corev1.Pod, r plan.Reason) {
	if r.EventType != "" {
		w.agent.Events.Record(w.ref, events.EventFromReason(p, r))
	}
	w.historyChanged()
}

// RuntimePolled implements pod.Agent.
func (w *worker) RuntimePolled() bool { return w.agent.runtimePolled.Load() }

// Recreate implements pod.Agent.
func (w *worker) Recreate(ctx context.Context, why pod.RecreateCause) {
	w.agent.call(ctx, func() { w.agent.recreate(w, why) })
}

func (w *worker) historyChanged() {
	w.agent.Store.PutHistory(w.uid, func() checkpoint.History { return w.agent.history(w.uid, w.timeline) })
}

// applySnapshot applies a newer snapshot of a source.
func (a *Agent) applySnapshot(ctx context.Context, snap *source.Snapshot) {
	first := !a.desired.ready[snap.Source]
	objectsChanged := a.desired.objects.replace(snap)
	c := a.desired.apply(snap)
	for _, uid := range c.removed {
		a.terminateRemoved(uid)
	}
	// Pods that run here claim their resources before new pods request any.
	c.changed = a.adoptWanted(ctx, snap, c.changed)
	slices.SortStableFunc(c.changed, a.compareStart)
	a.startAll(c.changed)
	if objectsChanged {
		a.eachWorker((*pod.Worker).Sync)
	}
	if (first || c.dropped) && a.desired.allReady(len(a.Sources)) {
		a.terminateOrphans(ctx)
	}
}

// startOrUpdate passes a desired pod to its worker, or starts one. A pod whose name
// is still used by a terminating one waits until that one is deleted (A4).
func (a *Agent) startOrUpdate(p *corev1.Pod) {
	if p.DeletionTimestamp != nil {
		a.terminateDeleted(p)
		return
	}
	if w, known := a.workers[p.UID]; known && !w.terminating {
		w.pod = p
		w.Update(pod.Desired{Pod: p})
		return
	}
	if holder := a.nameHolder(p); holder != nil {
		a.queueForName(p, holder)
		return
	}
	a.startWorker(pod.Desired{Pod: p})
}

// startWorker starts a worker for a pod, with its record from before an agent restart.
func (a *Agent) startWorker(d pod.Desired) {
	p := d.Pod
	a.Events.PodCreated(p.UID)
	var r pod.Restored
	listed, current := a.adopted.take(p.UID)
	if rec, ok := a.Records[p.UID]; ok {
		r.Memory, r.Verdict = restored(p, rec, listed, a.BootID)
		if d.Termination == nil && editedSince(rec, p, r.Memory, r.Verdict) {
			d.Termination = deletion(p)
		}
		r.History = &pod.History{History: rec.History, Last: a.Store.PreviousRun(), AgentStarted: a.startup.since}
		delete(a.Records, p.UID)
	} else if a.isAdopted(p.UID) { // the agent ended before it could write the record
		r.Memory, r.Verdict = adoptedState(p, listed)
	} else {
		r.Memory.RecreateCount = a.returned[p.UID]
		if a.Store.PreviousRun().EndedAt.IsZero() { // no previous run is known: the pod may have run in one
			r.Memory.Restarts = checkpoint.AttemptsFromLogs(a.Stages.BuildRun.LogDir(p), a.startup.since)
		}
	}
	delete(a.returned, p.UID)
	r.Observed, r.Current = listed.listing(), current
	w := a.newWorker(d, r)
	memoryEnd := r.Memory.Termination
	w.terminating = d.Termination != nil || memoryEnd != nil && memoryEnd.RemovePod
	a.workers[p.UID] = w
	a.runWorker(w)
}

func (a *Agent) newWorker(d pod.Desired, r pod.Restored) *worker {
	p := d.Pod
	w := &worker{agent: a, uid: p.UID, ref: events.PodRefOf(p), pod: p}
	containers := len(p.Spec.InitContainers) + len(p.Spec.Containers)
	w.timeline = events.NewTimeline(events.OptionsForContainers(containers, w.historyChanged))
	c := pod.Config{
		Stages: a.Stages, Limits: a.Limits, Prober: a.Prober, Metrics: a.Metrics.Pods, Fault: a.Fault,
		ActionStarted: a.leaks.calls.actionStarted,
	}
	log := a.Log.With("pod", p.Namespace+"/"+p.Name, "podUID", string(p.UID))
	w.Worker = pod.New(c, w, d, r, w.timeline, log)
	return w
}

// workerDone removes the state of a deleted pod, and starts the pod that waits for its
// name.
func (a *Agent) workerDone(w *worker) {
	p := w.pod
	delete(a.workers, p.UID)
	delete(a.desired.ephemeral, p.UID)
	a.allocator.Release(p.UID)
	a.Store.Delete(p.UID)
	a.Owner.Deleted(p.UID)
	a.forgetAdoption(p.UID)
	if _, returns := a.returned[p.UID]; !returns { // otherwise its events must remain readable
		a.Events.PodDeleted(p.UID)
	}
	if a.Prober != nil {
		a.Prober.Forget(p.UID)
	}
	a.StatusCache.Remove(p.UID)
	a.audits.deleted[p.UID] = time.Now()
	a.PodDeleted(p.UID)
	a.Log.Info("pod removed", "pod", p.Namespace+"/"+p.Name, "podUID", string(p.UID))
	if next := a.desired.next(nameOf(p), p.UID); next != nil {
		a.startOrUpdate(next)
	}
}

func (a *Agent) eachWorker(f func(*pod.Worker)) {
	for _, w := range a.workers {
		f(w.Worker)
	}
}

// handleEvent forwards an event of the runtime to the worker.
func (a *Agent) handleEvent(ctx context.Context, uid types.UID, e pod.RuntimeEvent) {
	if uid == "" {
		if a.connectedBefore && e.Listed == nil {
			tick(a.Metrics.EventStreamLost)
		}
		a.connectedBefore = true
		a.runtimePolled.Store(e.Listed != nil)
		a.eachWorker((*pod.Worker).RuntimeReconnected)
		a.audit(ctx)
		a.suspectLeaks()
		return
	}
	if w, known := a.workers[uid]; known {
		w.Notify(e)
		return
	}
	a.adopted.markStale(uid)
}

// SyncAllPods requests a sync pass of every pod after a change of the node.
func (a *Agent) SyncAllPods() {
	a.call(context.Background(), func() { a.eachWorker((*pod.Worker).Sync) })
}

// ImagesImported reports that images were imported on the node without a pull. Pods that
// wait for one check again.
func (a *Agent) ImagesImported() {
	a.call(context.Background(), func() { a.eachWorker((*pod.Worker).ImagesImported) })
}

// Timeline returns the timeline of a pod that has a worker, or nil if it has none. Before
// adoption it is the recorded one.
func (a *Agent) Timeline(ctx context.Context, uid types.UID) *events.Timeline {
	if line := a.recordedTimeline(uid); line != nil {
		return line
	}
	reply := make(chan *events.Timeline, 1)
	a.call(ctx, func() {
		if w, known := a.workers[uid]; known {
			reply <- w.timeline
			return
		}
		reply <- nil
	})
	select {
	case t := <-reply:
		return t
	case <-a.stopped:
		return nil
	case <-ctx.Done():
		return nil
	}
}

// history returns the history of a pod, which remains readable after an agent restart.
// The store calls it on its own goroutine.
func (a *Agent) history(uid types.UID, t *events.Timeline) checkpoint.History {
	var h checkpoint.History
	var err error
	if h.Timeline, err = json.Marshal(t); err != nil {
		a.Log.Debug("timeline not encoded", "podUID", string(uid), "err", err)
	}
	if h.Events, err = a.Events.Save(uid); err != nil {
		a.Log.Debug("events not encoded", "podUID", string(uid), "err", err)
	}
	if snap, ok := a.StatusCache.Get(uid); ok && snap.Syncs > 0 {
		if h.Reported, err = pod.EncodeReasons(snap.Reasons); err != nil {
			a.Log.Debug("reasons not encoded", "podUID", string(uid), "err", err)
		}
	}
	return h
}

// restoreEvents restores the events that were recorded before an agent restart.
func (a *Agent) restoreEvents() {
	for uid, rec := range a.Records {
		if rec.Pod == nil || rec.Events == nil {
			continue
		}
		if err := a.Events.Restore(events.PodRefOf(rec.Pod), rec.Events); err != nil {
			a.Log.Warn("stored events unreadable", "podUID", string(uid), "err", err)
		}
	}
}

// deletion returns the termination of a pod that is deleted now.
func deletion(p *corev1.Pod) *plan.Termination {
	return &plan.Termination{Reason: "Deleted", Grace: podspec.GracePeriod(p), RemovePod: true, RequestedAt: time.Now()}
}
