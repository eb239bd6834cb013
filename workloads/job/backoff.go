package job

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"berth/workloads"
)

const (
	minBackoff = 10 * time.Second
	maxBackoff = 10 * time.Minute
)

// backoffEnd returns when the pod that replaces the last of n consecutive failures may be created.
func backoffEnd(n int, lastFailure time.Time) time.Time {
	if n == 0 {
		return time.Time{}
	}
	wait := minBackoff
	for ; n > 1 && wait < maxBackoff; n-- {
		wait *= 2
	}
	return lastFailure.Add(min(wait, maxBackoff))
}

// consecutiveFailures returns how many pods have failed since the last success, and when the last one did. Times are
// those of the pods, so that a restart of the controller changes nothing.
func consecutiveFailures(succeeded, failed []*corev1.Pod) (n int, last time.Time) {
	var success time.Time
	for _, p := range succeeded {
		if at := finishTime(p); at.After(success) {
			success = at
		}
	}
	for _, p := range failed {
		at := finishTime(p)
		if len(succeeded) > 0 && !at.After(success) {
			continue
		}
		n++
		if at.After(last) {
			last = at
		}
	}
	return n, last
}

// finishTime returns when a pod finished: when its last container did, else when it stopped being ready, else when it
// was deleted, else when it was created.
func finishTime(pod *corev1.Pod) time.Time {
	if at := containersFinished(pod); !at.IsZero() {
		return at
	}
	for i := range pod.Status.Conditions {
		c := &pod.Status.Conditions[i]
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse && !c.LastTransitionTime.IsZero() {
			return c.LastTransitionTime.Time
		}
	}
	if pod.DeletionTimestamp != nil {
		grace := time.Duration(ptr.Deref(pod.DeletionGracePeriodSeconds, 0)) * time.Second
		return pod.DeletionTimestamp.Add(-grace)
	}
	return pod.CreationTimestamp.Time
}

// containersFinished returns when the last container finished, or zero if one has not.
func containersFinished(pod *corev1.Pod) (at time.Time) {
	for i := range pod.Status.ContainerStatuses {
		end := pod.Status.ContainerStatuses[i].State.Terminated
		if end == nil || end.FinishedAt.IsZero() {
			return time.Time{}
		}
		if end.FinishedAt.After(at) {
			at = end.FinishedAt.Time
		}
	}
	return at
}

// forDeletion sorts pods so that those to delete first come first: pods that have made less progress and are younger.
func forDeletion(pods []*corev1.Pod) []*corev1.Pod {
	out := slices.Clone(pods)
	slices.SortStableFunc(out, func(a, b *corev1.Pod) int {
		return cmp.Or(
			trueLast(a.Spec.NodeName != "", b.Spec.NodeName != ""),
			cmp.Compare(workloads.PhaseRank(a), workloads.PhaseRank(b)),
			trueLast(ready(a), ready(b)),
			readySince(b).Compare(readySince(a)),
			slices.Compare(workloads.Restarts(b), workloads.Restarts(a)),
			b.CreationTimestamp.Compare(a.CreationTimestamp.Time),
			cmp.Compare(a.Name, b.Name),
		)
	})
	return out
}
