package agent

import (
	"cmp"
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/checkpoint"
	"berth/agent/plan"
	"berth/agent/pod"
	"berth/agent/source"
)

// terminate terminates a pod. It never reverts or delays an earlier termination.
func (a *Agent) terminate(w *worker, end plan.Termination) {
	end.RequestedAt = time.Now()
	w.terminating = w.terminating || end.RemovePod
	a.allocator.MarkTerminating(w.pod.UID) // before another pod requests its resources
	w.Update(pod.Desired{Pod: w.pod, Termination: &end})
}

// terminateDeleted terminates a pod whose object is being deleted on the API server. It
// starts a worker even for an unknown pod, of which something may exist on this node.
func (a *Agent) terminateDeleted(p *corev1.Pod) {
	if w, known := a.workers[p.UID]; known {
		w.pod = p
		a.terminate(w, *deletion(p))
		return
	}
	a.dequeue(p.UID)
	a.startWorker(pod.Desired{Pod: p, Termination: deletion(p)})
}

// terminateRemoved terminates a pod that its source no longer has.
func (a *Agent) terminateRemoved(uid types.UID) {
	a.dequeue(uid)
	if w, known := a.workers[uid]; known {
		a.terminate(w, *deletion(w.pod))
	}
}

// defaultEvictionGrace is the grace period of an evicted pod, unless the eviction
// gives it more. The pod's own grace period does not apply, because the
// pod uses resources that others need.
const defaultEvictionGrace = time.Second

// Reason and message of a pod that is terminated by a node shutdown, as the kubelet
// has them.
const (
	shutdownReason  = "Terminated"
	shutdownMessage = "Pod was terminated in response to imminent node shutdown."
)

// ShutdownPod terminates a pod because the node shuts down, and reports whether the pod
// exists.
func (a *Agent) ShutdownPod(ctx context.Context, uid types.UID, grace time.Duration) (found bool) {
	return a.terminateByUID(ctx, uid, plan.Termination{Reason: shutdownReason, Message: shutdownMessage, Grace: grace})
}

// EvictPod evicts a pod, and reports whether the pod exists.
func (a *Agent) EvictPod(ctx context.Context, uid types.UID, why *plan.Eviction) (found bool) {
	return a.terminateByUID(ctx, uid, plan.Termination{
		Reason: "Evicted", Message: why.Message, EventDetail: why.EventDetail, NodeCaused: why.NodeCaused,
		Grace: cmp.Or(why.Grace, defaultEvictionGrace),
	})
}

func (a *Agent) terminateByUID(ctx context.Context, uid types.UID, end plan.Termination) (found bool) {
	reply := make(chan bool, 1)
	a.call(ctx, func() {
		w, known := a.workers[uid]
		if known {
			a.terminate(w, end)
		}
		reply <- known
	})
	select {
	case found = <-reply:
		return found
	case <-a.stopped:
	case <-ctx.Done():
	}
	return false
}

// The outcome of a pod is final (invariant I8 of package plan), and an edit of images
// or resources in a manifest file keeps the UID. A finished pod is therefore
// recreated after an edit: it terminates, and once it is deleted it starts with an empty
// memory, like a pod that is desired again while it terminates.

// recreate terminates a finished pod so that it starts again: its manifest was edited,
// or it was evicted because of node pressure that may be over.
func (a *Agent) recreate(w *worker, why pod.RecreateCause) {
	edited := why == pod.Edited
	if a.workers[w.uid] != w || w.terminating || a.desired.pods[w.uid] == nil || !edited && a.underPressure.Load() {
		return
	}
	a.Log.Info("finished pod recreated", "pod", w.String(), "podUID", string(w.uid), "cause", string(why))
	if s, shown := a.StatusCache.Get(w.uid); shown && !edited {
		a.returned[w.uid] = a.Limits.RecreateCount(s.Memory)
	}
	a.terminate(w, *deletion(w.pod))
}

// editedSince reports whether the manifest of a pod that had finished before an agent
// restart was edited while no agent ran.
func editedSince(rec checkpoint.Record, p *corev1.Pod, m plan.Memory, v plan.Verdict) bool {
	return source.ManifestChanged(rec.Pod, p) && plan.HasFinished(m, v)
}

func (w *worker) String() string { return w.pod.Namespace + "/" + w.pod.Name }
