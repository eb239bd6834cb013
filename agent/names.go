package agent

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
)

// holder returns the pod that has the name of the given one and is still here:
// in a worker's hands, or left by an earlier life and not yet ended. nil: none.
func (a *Agent) holder(pod *corev1.Pod) *corev1.Pod {
	for _, e := range a.workers {
		if nameOf(e.pod) == nameOf(pod) {
			return e.pod
		}
	}
	if _, recorded := a.Records[pod.UID]; recorded || a.adopted.has(pod.UID) {
		return nil // the pod itself was here already
	}
	for uid, seen := range a.adopted.pods {
		if uid != pod.UID && seen.Pod != nil && nameOf(seen.Pod) == nameOf(pod) {
			return seen.Pod
		}
	}
	for uid, rec := range a.Records {
		if uid != pod.UID && rec.Pod != nil && nameOf(rec.Pod) == nameOf(pod) {
			return rec.Pod
		}
	}
	return nil
}

// queue has a pod wait for the end of the one that has its name, and shows it on
// the board. Of several the newest waits.
func (a *Agent) queue(pod, holder *corev1.Pod) {
	if was := a.desired.queued[nameOf(pod)]; was != nil && was.UID != pod.UID {
		a.dequeue(was.UID)
	}
	a.desired.queued[nameOf(pod)] = pod
	a.Log.Info("waits for the end of the pod that has its name", "pod", pod.Namespace+"/"+pod.Name, "uid", string(pod.UID), "holder", string(holder.UID))
	if _, here := a.workers[pod.UID]; here {
		return // wanted again while it ends: that is what shows
	}
	why := Told{Reason: plan.Reason{Code: NameTaken, Detail: a.nameTaken(holder)}, Since: time.Now()}
	if was, shown := a.StatusCache.Get(pod.UID); shown && len(was.Why) > 0 && was.Why[0].Code == NameTaken {
		why.Since = was.Why[0].Since
	}
	s := undecided(pod, plan.Verdict{}, plan.Memory{}, why)
	s.At = time.Now()
	a.StatusCache.Put(s)
}

// nameTaken says who has a name, and whether it will be free.
func (a *Agent) nameTaken(holder *corev1.Pod) string {
	e, here := a.workers[holder.UID]
	from := a.desired.from[holder.UID]
	switch {
	case here && e.ending || from == "":
		return fmt.Sprintf("its name belongs to the pod with UID %s, which is ending: it starts when nothing is left of that one", holder.UID)
	default:
		return fmt.Sprintf("its name belongs to the pod with UID %s, which source %s wants: of pods of one name only one runs", holder.UID, from)
	}
}

// dequeue drops a pod that waits for its name, and takes it off the board.
func (a *Agent) dequeue(uid types.UID) {
	if !a.desired.isQueued(uid) {
		return
	}
	a.desired.dequeue(uid)
	if _, here := a.workers[uid]; !here {
		a.StatusCache.Remove(uid)
	}
}
