package job

import (
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"berth/workloads"
)

// maxPodWrites is how many pods one decision creates or deletes.
const maxPodWrites = 500

// manage creates missing pods or deletes surplus ones, never both in one decision.
func (s *state) manage() {
	if s.suspended {
		s.remove(s.active)
		return
	}
	desired := s.desired()
	if surplus := s.surplus(max(0, len(s.active)-desired)); len(surplus) > 0 {
		surplus = surplus[:min(len(surplus), maxPodWrites)]
		s.remove(surplus)
		s.restoreFinalizers(surplus)
		return
	}
	s.restoreFinalizers(nil)
	missing := desired - len(s.active)
	if replacesOnlyFailed(s.Job) {
		missing -= s.terminatingCount
	}
	if missing > 0 {
		s.create(min(missing, maxPodWrites))
	}
}

// desired returns how many pods should be active.
func (s *state) desired() int {
	parallelism := int(ptr.Deref(s.Job.Spec.Parallelism, 1))
	if s.Job.Spec.Completions == nil {
		// The first success means that the work is done: running pods go on, and none is added.
		if s.succeeded > 0 {
			return len(s.active)
		}
		return parallelism
	}
	return max(0, min(parallelism, s.completions-s.succeeded))
}

// surplus returns the active pods to delete, at least the given number: pods without a valid index, all but one of
// each index, and then those that have made less progress.
func (s *state) surplus(atLeast int) (out []*corev1.Pod) {
	rest := s.active
	if s.isIndexed {
		rest = nil
		seen := map[int]bool{}
		for _, p := range slices.Backward(forDeletion(s.active)) { // the best pod of an index stays
			index := completionIndex(p)
			if !s.valid(p) || seen[index] {
				out = append(out, p)
				continue
			}
			seen[index] = true
			rest = append(rest, p)
		}
	}
	if more := atLeast - len(out); more > 0 {
		out = append(out, forDeletion(rest)[:more]...)
	}
	return out
}

// remove deletes pods that are not to be counted. They lose the finalizer first, unless they have changed: a pod
// that has finished meanwhile is counted.
func (s *state) remove(pods []*corev1.Pod) {
	for _, p := range pods {
		if tracked(p) {
			w := untrack(p)
			w.IfUnchanged = true
			s.out.Writes = append(s.out.Writes, w)
		}
	}
	s.deletePods(pods)
}

func (s *state) deletePods(pods []*corev1.Pod) {
	for _, p := range pods {
		s.podWrites = append(s.podWrites, workloads.Write{
			Verb: workloads.Delete, Object: p,
			Success: workloads.Event{
				Type: corev1.EventTypeNormal, Reason: "SuccessfulDelete", Message: "Deleted pod: %s",
			},
			Failure: workloads.Event{
				Type: corev1.EventTypeWarning, Reason: "FailedDelete", Message: "Error deleting: %s",
			},
		})
		s.activeCount--
		s.terminatingCount++
		if ready(p) {
			s.readyCount--
		}
	}
}

// restoreFinalizers gives active pods the finalizer again that an interrupted deletion has removed.
func (s *state) restoreFinalizers(except []*corev1.Pod) {
	skip := map[*corev1.Pod]bool{}
	for _, p := range except {
		skip[p] = true
	}
	for _, p := range s.active {
		if !tracked(p) && !skip[p] {
			s.out.Writes = append(s.out.Writes,
				workloads.Write{Verb: workloads.Patch, Base: p, Object: withFinalizer(p)})
		}
	}
}

// create creates n pods, unless the back-off is not over.
func (s *state) create(n int) {
	at := []int{noIndex}
	if s.isIndexed {
		at = s.pendingIndexes(n)
	} else {
		for len(at) < n {
			at = append(at, noIndex)
		}
	}
	if !s.perIndex {
		b := s.backoff()
		if end := backoffEnd(b.Failures, b.LastFailure); s.Now.Before(end) {
			s.wake(end)
			return
		}
	}
	var soonest time.Time
	created := 0
	for _, i := range at {
		replaced := s.delayed[i]
		if replaced != nil {
			_, before := indexFailures(replaced)
			if end := backoffEnd(before+1, finishTime(replaced)); s.Now.Before(end) {
				soonest = workloads.Earlier(soonest, end)
				continue
			}
		}
		created++
		s.podWrites = append(s.podWrites, workloads.Write{
			Verb: workloads.Create, Object: newPod(s.Job, i, replaced),
			Success: workloads.Event{
				Type: corev1.EventTypeNormal, Reason: "SuccessfulCreate", Message: "Created pod: %s",
			},
			Failure: workloads.Event{
				Type: corev1.EventTypeWarning, Reason: "FailedCreate", Message: "Error creating: %s",
			},
		})
	}
	s.activeCount += created
	s.wake(soonest)
}

// pendingIndexes returns the n lowest indexes that need a pod.
func (s *state) pendingIndexes(n int) []int {
	var busy []int
	for _, p := range s.owned {
		if workloads.Active(p) || terminating(p) && replacesOnlyFailed(s.Job) {
			busy = append(busy, completionIndex(p))
		}
	}
	return s.completed.union(s.failedIndexes).union(indexesOf(busy...)).missing(s.completions, n)
}

func (s *state) wake(at time.Time) { s.out.Wake = workloads.Earlier(s.out.Wake, at) }

// startTime sets when the Job started. A suspended Job has no start time.
func (s *state) startTime() {
	if !s.suspended && s.status.StartTime == nil {
		s.status.StartTime = &metav1.Time{Time: s.Now}
	}
}

// suspension sets the condition Suspended. A resumed Job starts again, so that its deadline does too.
func (s *state) suspension() {
	if s.suspended {
		s.status.StartTime = nil
		if s.setCondition("Suspended", corev1.ConditionTrue, "JobSuspended", "Job suspended") {
			s.event(corev1.EventTypeNormal, "Suspended", "Job suspended")
		}
		return
	}
	c := condition(s.status.Conditions, batchv1.JobSuspended)
	resumed := c != nil && c.Status == corev1.ConditionTrue
	if s.setCondition("Suspended", corev1.ConditionFalse, "JobResumed", "Job resumed") && resumed {
		s.event(corev1.EventTypeNormal, "Resumed", "Job resumed")
		s.status.StartTime = &metav1.Time{Time: s.Now}
	}
}
