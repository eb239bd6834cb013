package agent

import (
	"cmp"
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/allocator"
	"berth/agent/checkpoint"
	"berth/agent/plan"
	"berth/podspec"
)

// adopted is what the runtime had when the agent began, until workers have
// taken it up. It belongs to the agent's goroutine.
type adopted struct {
	pods map[types.UID]RuntimePod
	at   time.Time // of the listing
	old  map[types.UID]bool
}

// adoptedFresh is how long the listing is believed without a look.
const adoptedFresh = 5 * time.Second

// adopt lists what the runtime has, however long it takes to answer: without
// that nothing may be started, or it might be started twice.
func (a *Agent) adopt(ctx context.Context) error {
	for wait, told := 50*time.Millisecond, false; ; wait = min(2*wait, time.Second) {
		began := time.Now()
		pods, err := a.Runtime.Pods(ctx)
		if err == nil {
			a.Log.Info("adopted", "pods", len(pods))
			a.adopted = adopted{pods: pods, at: began, old: map[types.UID]bool{}}
			a.seatRecorded()
			return nil
		}
		a.blocked(err)
		if !told {
			told = true
			a.Log.Warn("waiting for the container runtime", "err", err)
		}
		if !pause(ctx, wait) {
			return ctx.Err()
		}
	}
}

// seatRecorded gives the pods that were let in before the restart their places,
// before anybody new can ask: a full node stays full, whichever source is the
// first to tell.
func (a *Agent) seatRecorded() {
	for _, rec := range a.Records {
		if rec.Pod != nil && rec.Verdict.State == plan.OK && !isTerminal(rec.Memory.Phase) {
			a.allocator.Ask(allocator.Seat{
				Pod: plan.WithResources(rec.Pod, rec.Memory.Sizes.Allocated), Admitted: true, Reply: func(plan.Verdict) {},
				Ending: true, // as far as is known: its source may have let go of it meanwhile
			})
		}
	}
}

// restored is what of a record holds in this life. A verdict that bade the pod
// wait is asked for anew. So is the rejection of a file's pod that never ran:
// the file keeps its UID, and the node that refused it may have got other
// labels, taints or room since. What ran keeps its fate.
// A file's pod that a shutdown of the node has ended runs again after the boot: nobody
// else makes it anew.
func restored(pod *corev1.Pod, rec checkpoint.Record, seen RuntimePod, boot string) (plan.Memory, plan.Verdict) {
	m := rec.Memory
	if ended := m.End; ended != nil && ended.Reason == terminated && !ended.Forget && podspec.IsStatic(pod) && rec.BootID != boot {
		return plan.AfterBoot(m), plan.Verdict{}
	}
	ran := len(seen.Sandboxes)+len(seen.Containers)+len(m.Exits)+len(m.Restarts)+len(m.IPs) > 0
	switch {
	case rec.Verdict.State == plan.Wait:
		return m, plan.Verdict{}
	case rec.Verdict.State == plan.Rejected && podspec.IsStatic(pod) && !ran && m.End == nil:
		return plan.Memory{Started: m.Started}, plan.Verdict{}
	}
	return m, rec.Verdict
}

// has reports whether the runtime had anything of the pod.
func (d *adopted) has(uid types.UID) bool {
	_, ok := d.pods[uid]
	return ok
}

// first orders those that have been here before those that are new, and either as
// they are to start.
func (a *Agent) first(x, y *corev1.Pod) int {
	is := func(pod *corev1.Pod) int {
		if _, known := a.Records[pod.UID]; known || a.adopted.has(pod.UID) {
			return 0
		}
		return 1
	}
	return cmp.Or(is(x)-is(y), a.allocator.Order(x, y))
}

// pick takes what was seen of a pod, and reports whether it may be believed as
// it is.
func (d *adopted) pick(uid types.UID) (seen RuntimePod, fresh bool) {
	seen, ok := d.pods[uid]
	fresh = !ok || !d.old[uid] && time.Since(d.at) < adoptedFresh
	delete(d.pods, uid)
	delete(d.old, uid)
	return seen, fresh
}

// stale notes that something has happened to a pod that nobody has taken up yet.
func (d *adopted) stale(uid types.UID) {
	if d.has(uid) {
		d.old[uid] = true
	}
}
