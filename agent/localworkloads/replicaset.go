package localworkloads

import (
	"cmp"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"berth/workloads"
	"berth/workloads/replicaset"
)

// decideReplicaSet returns the decision about a ReplicaSet. Unlike on a server, where the scheduler keeps pods pending
// that no node accepts, a failed pod is replaced after a delay, and all but the newest failed pod are deleted.
func (e *Reconciler) decideReplicaSet(set *appsv1.ReplicaSet, now time.Time, failed *workloads.WriteError) outcome {
	pods := controlledBy[*corev1.Pod](e.store, set)
	d := replicaset.Decide(replicaset.Input{Now: now, Set: set, Pods: pods, WriteError: failed})
	if at := e.notBefore(set.UID); now.Before(at) && slices.ContainsFunc(d.Writes, isCreate) {
		d.Writes, d.Wake = slices.DeleteFunc(d.Writes, isCreate), workloads.Earlier(d.Wake, at)
		d.Status.Conditions = set.Status.Conditions
	}
	if failed == nil {
		d.Writes = append(d.Writes, surplusFailed(set, pods)...)
	}
	return outcomeOf(set, d)
}

func isCreate(w workloads.Write) bool { return w.Verb == workloads.Create }

// surplusFailed deletes terminated pods. The newest stays, so that users can see why it failed, unless the ReplicaSet
// has no replicas.
func surplusFailed(set *appsv1.ReplicaSet, pods []*corev1.Pod) (writes []workloads.Write) {
	ended := slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool {
		return p.DeletionTimestamp != nil || workloads.Active(p)
	})
	slices.SortFunc(ended, func(a, b *corev1.Pod) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	kept := 1
	if set.Spec.Replicas != nil {
		kept = min(kept, int(*set.Spec.Replicas))
	}
	for _, pod := range ended[min(len(ended), kept):] {
		writes = append(writes, workloads.Write{Verb: workloads.Delete, Object: pod})
	}
	return writes
}
