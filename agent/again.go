package agent

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/checkpoint"
	"berth/agent/plan"
	"berth/agent/source"
)

// What a pod has come to is for good (I8), and an edit of images or amounts keeps
// the UID of a file's pod. So one that is over is made anew by an edit: it ends,
// and when nothing is left of it what its file wants now begins with an empty
// memory, as a pod that is wanted again while it ends does.

// HasFinished reports whether what has become of a pod is for good.
func HasFinished(m plan.Memory, v plan.Verdict) bool {
	return m.End != nil || isTerminal(m.Phase) || !m.Finished.IsZero() || v.State == plan.Rejected
}

// editedSince reports whether a pod that was over in an earlier life has been edited
// while no agent was there.
func editedSince(rec checkpoint.Record, pod *corev1.Pod, m plan.Memory, v plan.Verdict) bool {
	return source.ManifestChanged(rec.Pod, pod) && HasFinished(m, v)
}

// handleDesired takes a newer wish.
func (w *worker) handleDesired(ctx context.Context, wish Desired) {
	b := w.state
	anew := wish.Termination == nil && !b.deleting() && source.ManifestChanged(b.desired.Pod, wish.Pod) && HasFinished(b.memory, b.verdict)
	b.setDesired(wish)
	if anew {
		w.again(ctx, true)
	}
}

// deleting reports whether the pod ends for good already.
func (b *state) deleting() bool { return b.desired.Termination != nil && b.desired.Termination.Forget }

// rejectedBeforeEdit reports whether an answer has rejected the pod as it was before an
// edit.
func (b *state) rejectedBeforeEdit(a admissionResult) bool {
	return a.State == plan.Rejected && b.verdict.State == plan.Rejected && !b.deleting() && source.ManifestChanged(a.pod, b.desired.Pod)
}

// again ends a pod so that it begins anew: it was edited, or had to go for what the
// node lacked and may be back.
func (a *Agent) again(w *worker, edited bool) {
	for uid, e := range a.workers {
		if e.worker == w && !e.ending && a.desired.wanted[uid] != nil && (edited || !a.short.Load()) {
			a.Log.Info("a pod that is over is made anew", "pod", e.String(), "uid", string(uid), "edited", edited)
			if s, shown := a.StatusCache.Get(uid); shown && !edited {
				a.returned[uid] = a.Limits.Returned(s.Memory)
			}
			a.end(e, anew(e.pod))
		}
	}
}

// anew is the end that makes room for the same pod.
func anew(pod *corev1.Pod) plan.End {
	return plan.End{Reason: "Deleted", Grace: graceOf(pod), Forget: true}
}
