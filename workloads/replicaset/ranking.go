package replicaset

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/workloads"
)

// Ranking is the order in which surplus pods are deleted.
type Ranking struct {
	now     time.Time
	related map[string]int // number of active related pods, by node
}

// NewRanking returns the ranking of pods at a time. Pods are deleted first from the nodes with the most active related
// pods.
func NewRanking(related []*corev1.Pod, now time.Time) Ranking {
	r := Ranking{now: now, related: map[string]int{}}
	for _, pod := range related {
		if workloads.Active(pod) {
			r.related[pod.Spec.NodeName]++
		}
	}
	return r
}

// Sorted returns the pods in the order in which they are deleted.
func (r Ranking) Sorted(pods []*corev1.Pod) []*corev1.Pod {
	out := slices.Clone(pods)
	slices.SortStableFunc(out, r.Compare)
	return out
}

// Compare returns a negative number if a is deleted before b: the first of these criteria in which they differ decides.
//
//  1. without a node
//  2. phase Pending, then Unknown, then Running
//  3. not ready
//  4. lower controller.kubernetes.io/pod-deletion-cost
//  5. on a node with more related pods
//  6. ready for a shorter time
//  7. more restarts of a container, then of a sidecar container
//  8. created later
//
// Times are compared by their binary logarithm, so that of pods of a similar age not always the youngest is deleted.
// In the same class, the UID decides.
func (r Ranking) Compare(a, b *corev1.Pod) int {
	readyA, readyB := workloads.ReadySince(a), workloads.ReadySince(b)
	first := cmp.Or(
		falseFirst(a.Spec.NodeName != "", b.Spec.NodeName != ""),
		cmp.Compare(workloads.PhaseRank(a), workloads.PhaseRank(b)),
		falseFirst(readyA != nil, readyB != nil),
		cmp.Compare(deletionCost(a), deletionCost(b)),
		cmp.Compare(r.related[b.Spec.NodeName], r.related[a.Spec.NodeName]),
	)
	if first == 0 && readyA != nil && readyB != nil {
		first = r.compareAges(a, b, *readyA, *readyB)
	}
	if first != 0 {
		return first
	}
	return cmp.Or(
		slices.Compare(workloads.Restarts(b), workloads.Restarts(a)),
		r.compareAges(a, b, a.CreationTimestamp, b.CreationTimestamp),
	)
}

// compareAges compares the logarithms of the time since two times, and the UIDs if they are equal although the times
// differ. An unset time comes first.
func (r Ranking) compareAges(a, b *corev1.Pod, sinceA, sinceB metav1.Time) int {
	switch {
	case sinceA.Equal(&sinceB):
		return 0
	case sinceA.IsZero():
		return -1
	case sinceB.IsZero():
		return 1
	}
	return cmp.Or(cmp.Compare(ageClass(r.now.Sub(sinceA.Time)), ageClass(r.now.Sub(sinceB.Time))),
		cmp.Compare(a.UID, b.UID))
}

func ageClass(age time.Duration) int64 {
	if age <= 0 {
		return -1
	}
	return int64(math.Log2(float64(age)))
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

// deletionCost returns the value of the annotation pod-deletion-cost. A number with a plus sign or a leading zero is as
// invalid as any other text, and counts as 0.
func deletionCost(pod *corev1.Pod) int64 {
	text := pod.Annotations[corev1.PodDeletionCost]
	if text == "" || text != "0" && text[0] != '-' && (text[0] < '1' || text[0] > '9') {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return 0
	}
	return n
}
