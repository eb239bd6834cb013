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

// target returns the condition SuccessCriteriaMet or FailureTarget if the Job has to end: the one that it has, or a
// new one.
func (s *state) target() *batchv1.JobCondition {
	for _, t := range []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobFailureTarget} {
		if c := condition(s.status.Conditions, t); c != nil && c.Status == corev1.ConditionTrue {
			return c
		}
	}
	for _, p := range s.owned {
		if failed(s.Job, p) {
			match := matchFailurePolicy(s.Job.Spec.PodFailurePolicy, p)
			if match.action == batchv1.PodFailurePolicyActionFailJob {
				return s.failure(batchv1.JobReasonPodFailurePolicy, match.message)
			}
		}
	}
	if limit := s.Job.Spec.BackoffLimit; limit != nil && (s.failures > int(*limit) || s.restartsExceed(int(*limit))) {
		return s.failure(batchv1.JobReasonBackoffLimitExceeded, "Job has reached the specified backoff limit")
	}
	if s.pastDeadline() {
		return s.failure(batchv1.JobReasonDeadlineExceeded, "Job was active longer than specified deadline")
	}
	if !s.isIndexed {
		return nil
	}
	if s.perIndex {
		dead := s.failedIndexes.total()
		if limit := s.Job.Spec.MaxFailedIndexes; limit != nil && dead > int(*limit) {
			return s.failure(batchv1.JobReasonMaxFailedIndexesExceeded,
				"Job has exceeded the specified maximal number of failed indexes")
		}
		if dead > 0 && dead+s.completed.total() >= s.completions {
			return s.failure(batchv1.JobReasonFailedIndexes, "Job has failed indexes")
		}
	}
	if message, met := successMet(s.Job.Spec.SuccessPolicy, s.completed, s.completions); met {
		return s.newCondition(batchv1.JobSuccessCriteriaMet, batchv1.JobReasonSuccessPolicy, message)
	}
	return nil
}

func (s *state) failure(reason, message string) *batchv1.JobCondition {
	return s.newCondition(batchv1.JobFailureTarget, reason, message)
}

// restartsExceed reports whether containers that the node restarts have used up the back-off limit.
func (s *state) restartsExceed(limit int) bool {
	if s.Job.Spec.Template.Spec.RestartPolicy != corev1.RestartPolicyOnFailure {
		return false
	}
	sum := 0
	for _, p := range s.owned {
		if p.Status.Phase != corev1.PodRunning && p.Status.Phase != corev1.PodPending {
			continue
		}
		for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
			for i := range list {
				sum += int(list[i].RestartCount)
			}
		}
	}
	return sum >= max(1, limit)
}

// pastDeadline reports whether activeDeadlineSeconds is over. If it is not, the Job is decided again when it is.
func (s *state) pastDeadline() bool {
	limit := s.Job.Spec.ActiveDeadlineSeconds
	if limit == nil || s.suspended || s.status.StartTime == nil {
		return false
	}
	end := s.status.StartTime.Add(time.Duration(*limit) * time.Second)
	if s.Now.Before(end) {
		s.wake(end)
		return false
	}
	return true
}

// completion returns the condition SuccessCriteriaMet if all work is done.
func (s *state) completion() *batchv1.JobCondition {
	done := s.succeeded >= s.completions
	if s.Job.Spec.Completions == nil {
		done = s.succeeded > 0
	}
	if !done || s.activeCount > 0 {
		return nil
	}
	return s.newCondition(batchv1.JobSuccessCriteriaMet, batchv1.JobReasonCompletionsReached,
		"Reached expected number of succeeded pods")
}

// deleteActive deletes the pods of a Job that ends. Those of a failed Job count as failed.
func (s *state) deleteActive(target *batchv1.JobCondition) {
	if target.Type == batchv1.JobSuccessCriteriaMet {
		s.remove(s.active)
		return
	}
	s.deletePods(s.active)
}

// completeStatus adds the condition of the target, and Complete or Failed when nothing of the Job is left to count.
// After a failed write, the next decision adds the latter, with its events.
func (s *state) completeStatus(target *batchv1.JobCondition) {
	if target == nil {
		return
	}
	s.setCondition(target.Type, corev1.ConditionTrue, target.Reason, target.Message)
	if s.WriteError != nil {
		return
	}
	u := s.status.UncountedTerminatedPods
	if s.activeCount+s.terminatingCount+len(u.Succeeded)+len(u.Failed) > 0 || slices.ContainsFunc(s.owned, tracked) {
		return
	}
	// The API requires a start time if there was work. A suspended Job has none.
	if s.status.StartTime == nil && !ptr.Equal(s.Job.Spec.Completions, new(int32(0))) {
		s.status.StartTime = &metav1.Time{Time: s.Now}
	}
	if target.Type == batchv1.JobFailureTarget {
		s.setCondition(batchv1.JobFailed, corev1.ConditionTrue, target.Reason, target.Message)
		s.event(corev1.EventTypeWarning, target.Reason, target.Message)
		return
	}
	s.setCondition(batchv1.JobComplete, corev1.ConditionTrue, target.Reason, target.Message)
	s.status.CompletionTime = &metav1.Time{Time: s.Now}
	if start := s.status.StartTime; s.status.CompletionTime.Before(start) {
		s.status.CompletionTime = start.DeepCopy() // the clock was set back
	}
	if s.Job.Spec.Completions != nil && int(s.status.Succeeded) > s.completions {
		s.event(corev1.EventTypeWarning, "TooManySucceededPods",
			"Too many succeeded pods running after completion count reached")
	}
	s.event(corev1.EventTypeNormal, "Completed", "Job completed")
}

func (s *state) event(eventType, reason, message string) {
	s.out.Events = append(s.out.Events, workloads.Event{Type: eventType, Reason: reason, Message: message})
}

func (s *state) newCondition(t batchv1.JobConditionType, reason, message string) *batchv1.JobCondition {
	now := metav1.Time{Time: s.Now}
	return &batchv1.JobCondition{Type: t, Status: corev1.ConditionTrue, Reason: reason, Message: message,
		LastProbeTime: now, LastTransitionTime: now}
}

// setCondition sets a condition and reports whether it changed. A missing condition is not added as False.
func (s *state) setCondition(t batchv1.JobConditionType, status corev1.ConditionStatus, reason, message string) bool {
	c := condition(s.status.Conditions, t)
	if c == nil && status == corev1.ConditionFalse ||
		c != nil && c.Status == status && c.Reason == reason && c.Message == message {
		return false
	}
	updated := s.newCondition(t, reason, message)
	updated.Status = status
	if c != nil {
		*c = *updated
	} else {
		s.status.Conditions = append(s.status.Conditions, *updated)
	}
	return true
}

// condition returns the condition of a type, or nil.
func condition(list []batchv1.JobCondition, t batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range list {
		if list[i].Type == t {
			return &list[i]
		}
	}
	return nil
}

// DecideTTL deletes a finished Job, and with it its pods, ttlSecondsAfterFinished after its end. Before that, it
// returns when the time comes. It is the decision of upstream's TTL-after-finished controller, which acts on Jobs of
// other controllers too.
func DecideTTL(now time.Time, job *batchv1.Job) workloads.Decision[batchv1.JobStatus] {
	var out workloads.Decision[batchv1.JobStatus]
	end, finished := Finished(job)
	ttl := job.Spec.TTLSecondsAfterFinished
	if !finished || ttl == nil || job.DeletionTimestamp != nil {
		return out
	}
	at := end.LastTransitionTime.Add(time.Duration(*ttl) * time.Second)
	if now.Before(at) {
		out.Wake = at
		return out
	}
	out.Writes = []workloads.Write{{
		Verb: workloads.Delete, Object: job, Propagation: metav1.DeletePropagationForeground,
	}}
	return out
}
