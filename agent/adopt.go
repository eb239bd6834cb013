package agent

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/allocator"
	"berth/agent/checkpoint"
	"berth/agent/plan"
	"berth/agent/pod"
	"berth/podspec"
)

// adopted is the state of the runtime at the start of the agent, until workers take it
// over. It belongs to the agent's goroutine.
type adopted struct {
	pods   map[types.UID]RuntimePod
	listed time.Time
	stale  map[types.UID]bool // the pod has changed since
}

// adoptedValidity is the time for which the listing replaces an observation.
const adoptedValidity = 5 * time.Second

// adopt lists the pods of the runtime. It retries until that succeeds, because without
// the list a pod might be started twice (A1).
func (a *Agent) adopt(ctx context.Context) error {
	logged := false
	for delay := 50 * time.Millisecond; ; delay = min(2*delay, time.Second) {
		started := time.Now()
		pods, err := a.Runtime.Pods(ctx)
		if err == nil {
			err = a.listForeign(ctx)
		}
		if err == nil {
			a.Log.Info("pods adopted", "pods", len(pods))
			a.adopted = adopted{pods: pods, listed: started, stale: map[types.UID]bool{}}
			a.proveOwner(slices.Sorted(maps.Keys(pods))...)
			a.reserveRecorded()
			return nil
		}
		a.runtimeUnavailable(err)
		if !logged {
			logged = true
			a.Log.Warn("waiting for the container runtime", "err", err)
		}
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// reserveRecorded reserves the resources of the pods that were admitted before the
// restart, before a new pod can request any (A7): a full node stays full, whichever
// source is ready first.
func (a *Agent) reserveRecorded() {
	for _, rec := range a.Records {
		if rec.Pod != nil && rec.Verdict.State == plan.Admitted && !pod.IsTerminal(rec.Memory.Phase) {
			a.allocator.Submit(allocator.Request{
				Pod: plan.WithResources(rec.Pod, rec.Memory.Resources.Allocated), Admitted: true,
				Reply:       func(plan.Verdict) {},
				Terminating: true, // until its worker starts, because its source may have removed it
			})
		}
	}
}

// restored returns the part of a record that is still valid. The verdict Wait is requested
// again. So is the rejection of a pod from a file that never ran: the file keeps its
// UID, and the labels, taints or resources of the node may have changed. A pod that
// ran keeps its outcome.
// A pod from a file that was terminated by a node shutdown runs again after the
// reboot: no controller recreates it.
func restored(p *corev1.Pod, rec checkpoint.Record, listed RuntimePod, boot string) (plan.Memory, plan.Verdict) {
	m := rec.Memory
	shutDown := m.Termination != nil && m.Termination.Reason == shutdownReason && !m.Termination.RemovePod
	if shutDown && podspec.IsStatic(p) && rec.BootID != boot {
		return plan.MemoryAfterReboot(m), plan.Verdict{}
	}
	hasRun := len(listed.Sandboxes)+len(listed.Containers)+len(m.Exits)+len(m.Restarts)+len(m.IPs) > 0
	switch {
	case rec.Verdict.State == plan.Wait:
		return m, plan.Verdict{}
	case rec.Verdict.State == plan.Rejected && podspec.IsStatic(p) && !hasRun && m.Termination == nil:
		return plan.Memory{StartTime: m.StartTime}, plan.Verdict{}
	}
	return m, rec.Verdict
}

// compareStart orders existing pods before new ones, and each group by start order.
func (a *Agent) compareStart(x, y *corev1.Pod) int {
	rank := func(p *corev1.Pod) int {
		if _, known := a.Records[p.UID]; known || a.adopted.has(p.UID) {
			return 0
		}
		return 1
	}
	return cmp.Or(rank(x)-rank(y), a.allocator.Compare(x, y))
}

// has reports whether the pod was listed.
func (d *adopted) has(uid types.UID) bool {
	_, ok := d.pods[uid]
	return ok
}

// take removes and returns the listed state of a pod, and reports whether it is current.
func (d *adopted) take(uid types.UID) (listed RuntimePod, current bool) {
	listed, ok := d.pods[uid]
	current = !ok || !d.stale[uid] && time.Since(d.listed) < adoptedValidity
	delete(d.pods, uid)
	delete(d.stale, uid)
	return listed, current
}

// markStale records a change of a pod that has no worker yet.
func (d *adopted) markStale(uid types.UID) {
	if d.has(uid) {
		d.stale[uid] = true
	}
}
