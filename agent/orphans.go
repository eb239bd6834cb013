package agent

import (
	"context"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/agent/pod"
	"berth/podspec"
)

// hostListTimeout is the timeout of listing the pods on the host.
const hostListTimeout = 30 * time.Second

// terminateOrphans terminates the pods of the previous run that no source has: those in
// the runtime, in the store and on the host. Pods of other programs are not among them: the
// runtime lists the agent's own sandboxes, and Host its own directories and cgroups. It runs when
// all sources are ready, and again when a source drops a pod that it has not sent.
func (a *Agent) terminateOrphans(ctx context.Context) {
	for uid, rec := range a.Records {
		if !a.isOrphan(uid) {
			continue
		}
		p := rec.Pod
		if p == nil {
			p = a.adopted.pods[uid].Pod
		}
		if p == nil {
			p = podFromUID(uid)
		}
		a.terminateOrphan(p, "Deleted")
	}
	for uid, listed := range a.adopted.pods {
		if listed.Pod != nil && a.isOrphan(uid) {
			a.terminateOrphan(listed.Pod, "Orphaned")
		}
	}
	maps.DeleteFunc(a.adopted.pods, func(uid types.UID, _ RuntimePod) bool { return !a.desired.isPending(uid) })
	a.cleanHost(ctx)
}

// cleanHost removes the resources of unknown pods on the host, from the previous run or
// because the runtime completed an interrupted call late and recreated a cgroup.
func (a *Agent) cleanHost(ctx context.Context) {
	a.wg.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, hostListTimeout)
		defer cancel()
		uids, err := a.Host.Pods(ctx)
		if err != nil {
			a.Log.Warn("host pod list failed", "err", err)
			return
		}
		a.call(ctx, func() {
			for _, uid := range uids {
				if _, removed := a.audits.deleted[uid]; !removed && a.isOrphan(uid) {
					a.terminateOrphan(podFromUID(uid), "Orphaned")
				}
			}
		})
	})
}

// proveOwner records that the runtime has sandboxes or containers of these pods with this agent's
// labels, so that their directories and cgroups also belong to it.
func (a *Agent) proveOwner(uids ...types.UID) {
	if err := a.Owner.Prove(uids...); err != nil {
		a.Log.Warn("pod directories not marked", "err", err)
	}
}

// noOwner is the PodOwner of an agent that shares its host with no other program.
type noOwner struct{}

func (noOwner) Prove(...types.UID) error { return nil }
func (noOwner) Deleted(...types.UID)     {}

// isOrphan reports whether a pod has no worker and no source.
func (a *Agent) isOrphan(uid types.UID) bool {
	_, known := a.workers[uid]
	return !known && a.desired.pods[uid] == nil && !a.desired.isPending(uid)
}

// terminateOrphan terminates a pod that no source has. p may be incomplete.
func (a *Agent) terminateOrphan(p *corev1.Pod, reason string) {
	a.Log.Info("stopping orphaned pod", "pod", p.Namespace+"/"+p.Name, "podUID", string(p.UID), "reason", reason)
	end := &plan.Termination{Reason: reason, Grace: podspec.GracePeriod(p), RequestedAt: time.Now(), RemovePod: true}
	a.startWorker(pod.Desired{Pod: p, Termination: end})
}

// podFromUID returns a pod with only the UID set.
func podFromUID(uid types.UID) *corev1.Pod {
	p := &corev1.Pod{}
	p.UID, p.Name, p.Namespace = uid, string(uid), "unknown"
	return p
}
