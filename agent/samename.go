package agent

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/agent/pod"
	"berth/agent/status"
)

// NameTaken is the reason of a pod that waits until the pod with its name is deleted.
const NameTaken = "NameTaken"

// nameHolder returns the pod that has the name of p and still exists: it has a worker,
// or it is from the previous run and not terminated yet. It returns nil if there is none.
func (a *Agent) nameHolder(p *corev1.Pod) *corev1.Pod {
	for _, w := range a.workers {
		if nameOf(w.pod) == nameOf(p) {
			return w.pod
		}
	}
	if _, recorded := a.Records[p.UID]; recorded || a.adopted.has(p.UID) {
		return nil // p itself is from the previous run
	}
	for uid, listed := range a.adopted.pods {
		if uid != p.UID && listed.Pod != nil && nameOf(listed.Pod) == nameOf(p) {
			return listed.Pod
		}
	}
	for uid, rec := range a.Records {
		if uid != p.UID && rec.Pod != nil && nameOf(rec.Pod) == nameOf(p) {
			return rec.Pod
		}
	}
	return nil
}

// queueForName makes a pod wait until the holder of its name is deleted, and publishes
// that. Only the newest of several pods waits.
func (a *Agent) queueForName(p, holder *corev1.Pod) {
	if before := a.desired.queued[nameOf(p)]; before != nil && before.UID != p.UID {
		a.dequeue(before.UID)
	}
	a.desired.queued[nameOf(p)] = p
	a.Log.Info("pod waiting: name in use", "pod", p.Namespace+"/"+p.Name, "podUID", string(p.UID),
		"holderUID", string(holder.UID))
	if _, known := a.workers[p.UID]; known {
		return // desired again while it terminates: its worker publishes that
	}
	why := status.ReportedReason{Reason: plan.Reason{Code: NameTaken, Message: a.nameTakenMessage(holder)},
		Since: time.Now()}
	if before, shown := a.StatusCache.Get(p.UID); shown && len(before.Reasons) > 0 &&
		before.Reasons[0].Code == NameTaken {
		why.Since = before.Reasons[0].Since
	}
	s := pod.UnsyncedSnapshot(p, plan.Verdict{}, plan.Memory{}, why)
	s.At = time.Now()
	a.StatusCache.Put(s)
}

// nameTakenMessage describes the pod that has the name and whether it is terminating.
func (a *Agent) nameTakenMessage(holder *corev1.Pod) string {
	w, known := a.workers[holder.UID]
	from := a.desired.source[holder.UID]
	if known && w.terminating || from == "" {
		return fmt.Sprintf("the pod with UID %s has the same name and is terminating: this pod starts when "+
			"it is deleted",
			holder.UID)
	}
	return fmt.Sprintf("the pod with UID %s from source %s has the same name: only one of them runs", holder.UID, from)
}

// dequeue drops a pod that waits for its name and removes its status.
func (a *Agent) dequeue(uid types.UID) {
	if !a.desired.isQueued(uid) {
		return
	}
	a.desired.dequeue(uid)
	if _, known := a.workers[uid]; !known {
		a.StatusCache.Remove(uid)
	}
}
