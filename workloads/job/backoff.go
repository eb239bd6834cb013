package job

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// Backoff is how many pods of a Job have failed since the last success. The controller keeps it in memory, because a
// failed pod may be gone before its replacement may be created.
type Backoff struct {
	Failures    int
	LastFailure time.Time
}

// NextBackoff returns the back-off that the controller has to keep after it has written the status of a decision about
// the same input. Without a former one, the pods that exist decide.
func NextBackoff(in Input) Backoff {
	s := newState(in)
	for _, p := range in.Pods {
		if metav1.IsControlledBy(p, in.Job) {
			s.owned = append(s.owned, p)
		}
	}
	s.rememberUncounted()
	for _, p := range s.owned {
		s.observeEnd(p)
	}
	return s.backoff()
}

// backoff returns the back-off after the observed pods have ended.
func (s *state) backoff() Backoff {
	if s.Backoff == nil {
		return s.backoffOfPods()
	}
	n, last := consecutiveFailures(s.newSucceeded, s.newFailed)
	// A succeeded pod of an Indexed Job is new until it loses the finalizer.
	if len(s.newSucceeded) > 0 && !lastFinish(s.newSucceeded).Before(s.Backoff.LastFailure) {
		return Backoff{n, last}
	}
	if s.Backoff.LastFailure.After(last) {
		last = s.Backoff.LastFailure
	}
	return Backoff{s.Backoff.Failures + n, last}
}

// backoffOfPods derives the back-off from the pods that exist.
func (s *state) backoffOfPods() Backoff {
	var succeeded, failing []*corev1.Pod
	for _, p := range s.owned {
		switch {
		case !s.valid(p) || p.DeletionTimestamp != nil && !tracked(p):
		case p.Status.Phase == corev1.PodSucceeded:
			succeeded = append(succeeded, p)
		case failed(s.Job, p):
			failing = append(failing, p)
		}
	}
	n, last := consecutiveFailures(succeeded, failing)
	return Backoff{n, last}
}

// consecutiveFailures returns how many pods have failed since the last success, and when the last one did.
func consecutiveFailures(succeeded, failed []*corev1.Pod) (n int, last time.Time) {
	success := lastFinish(succeeded)
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

// lastFinish returns when the last pod finished. Zero: there is none.
func lastFinish(pods []*corev1.Pod) (last time.Time) {
	for _, p := range pods {
		if at := finishTime(p); at.After(last) {
			last = at
		}
	}
	return last
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

// containersFinished returns when the last container finished, or zero if one has not. Sidecars finish after the
// containers.
func containersFinished(pod *corev1.Pod) (at time.Time) {
	sidecars := map[string]bool{}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		sidecars[c.Name] = ptr.Deref(c.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways
	}
	statuses := pod.Status.ContainerStatuses
	for _, st := range pod.Status.InitContainerStatuses {
		if sidecars[st.Name] {
			statuses = append(slices.Clip(statuses), st)
		}
	}
	for i := range statuses {
		end := statuses[i].State.Terminated
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
