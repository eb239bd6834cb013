package controllers

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/workloads"
)

// deletionOrder sorts the pods so that those to delete first come first, by upstream's criteria.
// related is the number of related pods per node.
func deletionOrder(pods []*corev1.Pod, related map[string]int, now time.Time) []*corev1.Pod {
	out := slices.Clone(pods)
	slices.SortFunc(out, func(a, b *corev1.Pod) int {
		return cmp.Or(
			falseFirst(a.Spec.NodeName != "", b.Spec.NodeName != ""),
			cmp.Compare(phaseRank(a), phaseRank(b)),
			falseFirst(workloads.ReadySince(a) != nil, workloads.ReadySince(b) != nil),
			cmp.Compare(deletionCost(a), deletionCost(b)),
			cmp.Compare(related[b.Spec.NodeName], related[a.Spec.NodeName]),
			cmp.Compare(ageRank(workloads.ReadySince(a), now), ageRank(workloads.ReadySince(b), now)),
			slices.Compare(mostRestarts(b), mostRestarts(a)),
			cmp.Compare(ageRank(&a.CreationTimestamp, now), ageRank(&b.CreationTimestamp, now)),
			cmp.Compare(a.UID, b.UID),
		)
	})
	return out
}

func falseFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func phaseRank(pod *corev1.Pod) int {
	switch pod.Status.Phase {
	case corev1.PodPending:
		return 0
	case corev1.PodUnknown:
		return 1
	}
	return 2
}

// deletionCost returns the value of the pod-deletion-cost annotation, or 0 if it is not a number.
func deletionCost(pod *corev1.Pod) int64 {
	n, err := strconv.ParseInt(pod.Annotations[corev1.PodDeletionCost], 10, 32)
	if err != nil {
		return 0
	}
	return n
}

// ageRank groups ages on a logarithmic scale, as upstream does, so that pods of similar age are
// chosen independently of their exact age.
func ageRank(since *metav1.Time, now time.Time) int {
	if since == nil || since.IsZero() {
		return -2
	}
	age := now.Sub(since.Time)
	if age <= 0 {
		return -1
	}
	return int(math.Log2(float64(age)))
}

// mostRestarts returns the highest restart count of the containers and of the init containers.
func mostRestarts(pod *corev1.Pod) []int32 {
	most := func(all []corev1.ContainerStatus) (n int32) {
		for i := range all {
			n = max(n, all[i].RestartCount)
		}
		return n
	}
	return []int32{most(pod.Status.ContainerStatuses), most(pod.Status.InitContainerStatuses)}
}

// relatedPodCounts counts per node the pods of the set and, if it has an owner such as a
// Deployment, the pods of the owner's other sets.
func (r *replicaController) relatedPodCounts(set *appsv1.ReplicaSet, own []*corev1.Pod) map[string]int {
	out := map[string]int{}
	for _, pod := range own {
		out[pod.Spec.NodeName]++
	}
	owner := metav1.GetControllerOfNoCopy(set)
	if owner == nil {
		return out
	}
	sets, err := r.list(set.Namespace)
	if err != nil {
		return out // the lister reads from memory and does not fail
	}
	for _, other := range sets {
		if ref := metav1.GetControllerOfNoCopy(other); other.UID == set.UID || ref == nil || ref.UID != owner.UID {
			continue
		}
		for _, pod := range r.podsByIndex(controllerIndex, string(other.UID)) {
			if pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodSucceeded &&
				pod.Status.Phase != corev1.PodFailed {
				out[pod.Spec.NodeName]++
			}
		}
	}
	return out
}
