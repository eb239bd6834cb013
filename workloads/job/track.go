package job

import (
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"berth/workloads"
)

// maxUncounted is how many pods status.uncountedTerminatedPods may name.
const maxUncounted = 500

// step is what happens next to a pod that has the tracking finalizer.
type step int

const (
	keep           step = iota // not finished
	countSucceeded             // add it to status.uncountedTerminatedPods.succeeded
	countFailed                // add it to status.uncountedTerminatedPods.failed
	release                    // remove the finalizer
)

// track counts finished pods, each by one step.
func (s *state) track(target *batchv1.JobCondition) {
	s.settle()
	u := s.status.UncountedTerminatedPods
	// A target that is not persisted does not justify the removal of a finalizer.
	persisted := target == nil || condition(s.Job.Status.Conditions, target.Type) != nil
	removed, releases := s.removedFinalizers(), 0
	for _, p := range s.owned {
		if !tracked(p) || removed[p.UID] {
			continue
		}
		full := len(u.Succeeded)+len(u.Failed) >= maxUncounted
		switch next := s.step(p, target); {
		case next == release && persisted && releases < maxPodWrites:
			releases++
			s.out.Writes = append(s.out.Writes, untrack(p))
		case next == countFailed && !full:
			u.Failed = append(u.Failed, p.UID)
		case next == countSucceeded && !full && !s.isIndexed:
			u.Succeeded = append(u.Succeeded, p.UID)
		}
	}
	if !s.isIndexed {
		return
	}
	s.status.CompletedIndexes = s.completed.String()
	s.status.Succeeded = int32(s.completed.total())
	if !ptr.Equal(s.Job.Spec.Completions, s.Job.Spec.Parallelism) {
		// The API allows a lower number only while both are equal, as they are when completions become fewer.
		s.status.Succeeded = max(s.status.Succeeded, s.Job.Status.Succeeded)
	}
	s.status.FailedIndexes = nil
	if s.perIndex {
		text := s.failedIndexes.String()
		s.status.FailedIndexes = &text
	}
}

// step returns what happens next to a pod with the finalizer.
func (s *state) step(p *corev1.Pod, target *batchv1.JobCondition) step {
	ending := target != nil || s.Job.DeletionTimestamp != nil
	succeeded := p.Status.Phase == corev1.PodSucceeded
	// The active pods of a failed Job count as failed when they are deleted, which a failed write has prevented.
	ended := s.WriteError == nil && target != nil && target.Type == batchv1.JobFailureTarget
	fails := failed(s.Job, p) || ended && !succeeded
	index := completionIndex(p)
	switch {
	case s.delayed[index] == p && !ending && s.uncounted[p.UID]:
		return keep
	case s.uncounted[p.UID]:
		return release
	case succeeded && !s.valid(p),
		succeeded && s.isIndexed && (s.completedBefore.has(index) || s.failedBefore.has(index)):
		return release
	case succeeded:
		return countSucceeded
	case fails && s.valid(p) && matchFailurePolicy(s.Job.Spec.PodFailurePolicy, p).counted():
		return countFailed
	case s.delayed[index] == p && !ending:
		return keep
	case fails, ending:
		return release
	}
	return keep
}

// removedFinalizers returns the pods that lose the finalizer by writes that are already decided.
func (s *state) removedFinalizers() map[types.UID]bool {
	out := map[types.UID]bool{}
	for _, w := range s.out.Writes {
		if p, ok := w.Object.(*corev1.Pod); ok && w.Verb == workloads.Patch {
			out[p.UID] = !tracked(p)
		}
	}
	return out
}

// settle moves the pods to the counters that the status knows as uncounted and that no longer have the finalizer.
func (s *state) settle() {
	pending := map[types.UID]bool{}
	for _, p := range s.owned {
		pending[p.UID] = tracked(p)
	}
	move := func(uids []types.UID, counter *int32) (rest []types.UID) {
		for _, uid := range uids {
			if pending[uid] {
				rest = append(rest, uid)
			} else {
				*counter++
			}
		}
		return rest
	}
	u := s.status.UncountedTerminatedPods
	u.Succeeded = move(u.Succeeded, &s.status.Succeeded)
	u.Failed = move(u.Failed, &s.status.Failed)
}
