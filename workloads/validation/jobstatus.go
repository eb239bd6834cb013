package validation

import (
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"berth/internal/rules"
)

// jobStatusUpdate is an update of the status of a Job. Another controller may write it (spec.managedBy), but clients
// rely on its transitions: a Job that has ended does not run again, and its counters do not decrease.
//
// Most rules apply only if one of their fields has changed. A change of the specification can break a rule for a
// moment, for example if completions become fewer, and what an older version stored must not block other changes.
type jobStatusUpdate struct {
	*validator
	job             *batchv1.Job
	status, before  *batchv1.JobStatus
	now, was        jobConditions
	indexed         bool
	finishedChanged bool
}

// jobConditions are the conditions of a Job that are True.
type jobConditions struct{ complete, failed, successCriteriaMet, failureTarget bool }

func (c jobConditions) finished() bool { return c.complete || c.failed }

func jobConditionsOf(s *batchv1.JobStatus) jobConditions {
	return jobConditions{
		complete:           hasJobCondition(s, batchv1.JobComplete, corev1.ConditionTrue),
		failed:             hasJobCondition(s, batchv1.JobFailed, corev1.ConditionTrue),
		successCriteriaMet: hasJobCondition(s, batchv1.JobSuccessCriteriaMet, corev1.ConditionTrue),
		failureTarget:      hasJobCondition(s, batchv1.JobFailureTarget, corev1.ConditionTrue),
	}
}

func hasJobCondition(s *batchv1.JobStatus, t batchv1.JobConditionType, status corev1.ConditionStatus) bool {
	for i := range s.Conditions {
		if s.Conditions[i].Type == t && s.Conditions[i].Status == status {
			return true
		}
	}
	return false
}

func (k *validator) jobStatus(j, old *batchv1.Job) {
	u := &jobStatusUpdate{validator: k, job: j, status: &j.Status, before: &old.Status,
		now: jobConditionsOf(&j.Status), was: jobConditionsOf(&old.Status),
		indexed: ptr.Deref(j.Spec.CompletionMode, "") == batchv1.IndexedCompletion}
	u.finishedChanged = u.now.finished() != u.was.finished()
	u.counts()
	u.uncounted()
	u.conditions()
	u.conditionChanges()
	u.completionTime()
	u.startTime()
	u.finished()
	u.indexes()
}

func (u *jobStatusUpdate) counts() {
	s, at := u.status, rules.Status()
	u.Counts(map[string]int32{"active": s.Active, "succeeded": s.Succeeded, "failed": s.Failed})
	rules.NotNegative(u, at.Child("ready"), s.Ready)
	rules.NotNegative(u, at.Child("terminating"), s.Terminating)
	if s.Failed < u.before.Failed {
		u.Invalid(at.Child("failed"), s.Failed, "cannot decrease the failed counter")
	}
	// An Indexed Job with as many completions as parallel pods can be scaled down.
	scalable := u.indexed && ptr.Equal(u.job.Spec.Completions, u.job.Spec.Parallelism)
	if s.Succeeded < u.before.Succeeded && !scalable {
		u.Invalid(at.Child("succeeded"), s.Succeeded, "cannot decrease the succeeded counter")
	}
	changed := !ptr.Equal(s.Ready, u.before.Ready) || s.Active != u.before.Active
	if changed && s.Ready != nil && *s.Ready > s.Active {
		u.Invalid(at.Child("ready"), *s.Ready, "cannot set more ready pods than active")
	}
}

func (u *jobStatusUpdate) uncounted() {
	pods := u.status.UncountedTerminatedPods
	if pods == nil {
		return
	}
	at, seen := rules.Status().Child("uncountedTerminatedPods"), map[types.UID]bool{}
	check := func(at *field.Path, uids []types.UID) {
		for i, uid := range uids {
			switch {
			case uid == "":
				u.Invalid(at.Index(i), uid, "must not be empty")
			case seen[uid]:
				u.Add(field.Duplicate(at.Index(i), uid))
			}
			seen[uid] = true
		}
	}
	check(at.Child("succeeded"), pods.Succeeded)
	check(at.Child("failed"), pods.Failed)
}

// invalidConditions adds an error about the conditions, without their value.
func (u *jobStatusUpdate) invalidConditions(detail string) {
	u.Add(field.Invalid(rules.Status().Child("conditions"), field.OmitValueType{}, detail))
}

// conditions validates which conditions are True together.
//
//nolint:gocyclo // one case after another, each on its own
func (u *jobStatusUpdate) conditions() {
	now, was := u.now, u.was
	completeChanged, failedChanged := now.complete != was.complete, now.failed != was.failed
	if (completeChanged || failedChanged) && now.complete && now.failed {
		u.invalidConditions("cannot set Complete=True and Failed=true conditions")
	}
	if (completeChanged || now.failureTarget != was.failureTarget) && now.complete && now.failureTarget {
		u.invalidConditions("cannot set Complete=True and FailureTarget=true conditions")
	}
	if (failedChanged || u.failedIndexesChanged()) && now.failed && !now.failureTarget {
		u.invalidConditions("cannot set Failed=True condition without the FailureTarget=true condition")
	}
	if (completeChanged || now.successCriteriaMet != was.successCriteriaMet) &&
		now.complete && !now.successCriteriaMet {
		u.invalidConditions("cannot set Complete=True condition without the SuccessCriteriaMet=true condition")
	}
	if now.successCriteriaMet && now.failed {
		u.invalidConditions("cannot set SuccessCriteriaMet=True and Failed=true conditions")
	}
	if now.successCriteriaMet && now.failureTarget {
		u.invalidConditions("cannot set SuccessCriteriaMet=True and FailureTarget=true conditions")
	}
	if u.job.Spec.SuccessPolicy != nil && !now.successCriteriaMet && now.complete {
		u.invalidConditions("cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True")
	}
}

// conditionChanges validates that the conditions that end a Job stay.
func (u *jobStatusUpdate) conditionChanges() {
	for _, t := range []batchv1.JobConditionType{batchv1.JobFailed, batchv1.JobComplete, batchv1.JobFailureTarget} {
		if hasJobCondition(u.before, t, corev1.ConditionTrue) && !hasJobCondition(u.status, t, corev1.ConditionTrue) {
			u.invalidConditions(fmt.Sprintf("cannot disable the terminal %s=True condition", t))
		}
	}
	if u.was.successCriteriaMet && !u.now.successCriteriaMet {
		u.invalidConditions("cannot disable the SuccessCriteriaMet=True condition")
	}
	if u.was.complete && !u.was.successCriteriaMet && u.now.successCriteriaMet {
		u.invalidConditions("cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions")
	}
}

func (u *jobStatusUpdate) completionTime() {
	s, before, end := u.status, u.before, rules.Status().Child("completionTime")
	startChanged, endChanged := !s.StartTime.Equal(before.StartTime), !s.CompletionTime.Equal(before.CompletionTime)
	if endChanged || u.now.complete != u.was.complete {
		switch {
		case s.CompletionTime != nil && !u.now.complete:
			u.Invalid(end, s.CompletionTime, "cannot set completionTime when there is no Complete=True condition")
		case s.CompletionTime == nil && u.now.complete:
			u.Required(end, "completionTime is required for Complete jobs")
		}
	}
	if (startChanged || endChanged) && s.StartTime != nil && s.CompletionTime != nil &&
		s.CompletionTime.Before(s.StartTime) {
		u.Invalid(end, s.CompletionTime, "must be equal to or after `startTime`")
	}
	if endChanged && s.CompletionTime != nil && before.CompletionTime != nil {
		u.Invalid(end, s.CompletionTime, "field is immutable")
	}
}

func (u *jobStatusUpdate) startTime() {
	s, before, start := u.status, u.before, rules.Status().Child("startTime")
	startChanged := !s.StartTime.Equal(before.StartTime)
	// The status of a resumed Job is written when the Job is no longer suspended.
	resumed := hasJobCondition(before, batchv1.JobSuspended, corev1.ConditionTrue) &&
		hasJobCondition(s, batchv1.JobSuspended, corev1.ConditionFalse)
	suspended := ptr.Deref(u.job.Spec.Suspend, false)
	if startChanged && before.StartTime != nil && !resumed && !suspended {
		u.Invalid(start, s.StartTime, "field is immutable for unsuspended job once set")
	}
	// A suspended Job without work is complete before it has started.
	noWork := suspended && ptr.Equal(u.job.Spec.Completions, new(int32(0)))
	if (startChanged || u.finishedChanged) && s.StartTime == nil && u.now.finished() && !noWork {
		u.Required(start, "startTime is required for finished job")
	}
}

// finished validates that nothing of a finished Job is left.
func (u *jobStatusUpdate) finished() {
	if !u.now.finished() {
		return
	}
	s, before, at := u.status, u.before, rules.Status()
	if (u.finishedChanged || s.Active != before.Active) && s.Active > 0 {
		u.Invalid(at.Child("active"), s.Active, "active>0 is invalid for finished job")
	}
	if pods := s.UncountedTerminatedPods; pods != nil && len(pods.Succeeded)+len(pods.Failed) > 0 &&
		(u.finishedChanged || !equality.Semantic.DeepEqual(pods, before.UncountedTerminatedPods)) {
		u.Invalid(at.Child("uncountedTerminatedPods"), pods, "must be empty for finished job")
	}
	if (u.finishedChanged || !ptr.Equal(s.Terminating, before.Terminating)) && ptr.Deref(s.Terminating, 0) > 0 {
		u.Invalid(at.Child("terminating"), *s.Terminating, "terminating>0 is invalid for finished job")
	}
}

func (u *jobStatusUpdate) failedIndexesChanged() bool {
	return !ptr.Equal(u.status.FailedIndexes, u.before.FailedIndexes)
}

func (u *jobStatusUpdate) indexes() {
	s, completions := u.status, u.job.Spec.Completions
	completed, failed := rules.Status().Child("completedIndexes"), rules.Status().Child("failedIndexes")
	completedChanged, failedChanged := s.CompletedIndexes != u.before.CompletedIndexes, u.failedIndexesChanged()
	if completedChanged && s.CompletedIndexes != "" && !u.indexed {
		u.Invalid(completed, s.CompletedIndexes,
			"cannot set non-empty completedIndexes when non-indexed completion mode")
	}
	if failedChanged && s.FailedIndexes != nil && u.job.Spec.BackoffLimitPerIndex == nil {
		u.Invalid(failed, *s.FailedIndexes, "cannot set non-null failedIndexes when backoffLimitPerIndex is null")
	}
	if completions == nil {
		return
	}
	if completedChanged {
		if _, err := countIndexes(s.CompletedIndexes, *completions); err != nil {
			u.Invalid(completed, s.CompletedIndexes, "error parsing completedIndexes: %v", err)
		}
	}
	if s.FailedIndexes == nil {
		return
	}
	if failedChanged && u.job.Spec.BackoffLimitPerIndex != nil {
		if _, err := countIndexes(*s.FailedIndexes, *completions); err != nil {
			u.Invalid(failed, *s.FailedIndexes, "error parsing failedIndexes: %v", err)
		}
	}
	if completedChanged || failedChanged {
		if index, both := commonIndex(s.CompletedIndexes, *s.FailedIndexes, *completions); both {
			u.Invalid(failed, *s.FailedIndexes, "failedIndexes and completedIndexes overlap at index: %d", index)
		}
	}
}
