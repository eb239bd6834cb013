package cronjob

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"berth/workloads"
)

// Input is what a decision about a CronJob depends on.
type Input struct {
	Now     time.Time
	CronJob *batchv1.CronJob
	Jobs    []*batchv1.Job // the Jobs that the CronJob controls
	// Location is the time zone of spec.timeZone, or that of the controller if the field is not set. LocationError is
	// why spec.timeZone cannot be loaded.
	Location      *time.Location
	LocationError error
	// ScheduleChanged is when the caller observed that ScheduleDiffers from the version before. Times of the schedule
	// until then have not been missed. Zero: not known.
	ScheduleChanged time.Time
	WriteError      *workloads.WriteError // the failure of a write of the last decision
}

// ScheduleDiffers reports whether two versions of a CronJob run at different times.
func ScheduleDiffers(a, b *batchv1.CronJob) bool {
	return a.Spec.Schedule != b.Spec.Schedule || !ptr.Equal(a.Spec.TimeZone, b.Spec.TimeZone)
}

// Decide returns what the CronJob needs next.
func Decide(in Input) workloads.Decision[batchv1.CronJobStatus] {
	s := &state{Input: in, status: *in.CronJob.Status.DeepCopy()}
	for _, j := range in.Jobs {
		if metav1.IsControlledBy(j, in.CronJob) {
			s.jobs = append(s.jobs, j)
		}
	}
	slices.SortFunc(s.jobs, func(a, b *batchv1.Job) int { return cmp.Compare(a.Name, b.Name) })
	s.updateActive()
	switch {
	case in.WriteError != nil:
		s.skipForeign()
	case in.CronJob.DeletionTimestamp == nil:
		s.deleteOld() // first: a quota may reject the new Job as long as the old ones exist
		s.start()
	}
	if !equality.Semantic.DeepEqual(s.status, in.CronJob.Status) {
		s.out.Status = &s.status
	}
	return s.out
}

// state is a decision in progress.
type state struct {
	Input
	out    workloads.Decision[batchv1.CronJobStatus]
	status batchv1.CronJobStatus
	jobs   []*batchv1.Job // by name
}

func (s *state) event(eventType, reason, format string, args ...any) {
	s.out.Events = append(s.out.Events,
		workloads.Event{Type: eventType, Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// finished returns the type of the condition with which a Job has ended, or "".
func finished(job *batchv1.Job) batchv1.JobConditionType {
	for i := range job.Status.Conditions {
		c := &job.Status.Conditions[i]
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return c.Type
		}
	}
	return ""
}

// scheduledTime returns for which time the CronJob has created a Job, or zero if it has not.
func (s *state) scheduledTime(job *batchv1.Job) time.Time {
	at, err := time.Parse(time.RFC3339, job.Annotations[batchv1.CronJobScheduledTimestampAnnotation])
	if err != nil || job.Name != jobName(s.CronJob, at) {
		return time.Time{}
	}
	return at
}

// updateActive updates status.active, lastSuccessfulTime and lastScheduleTime from the observed Jobs.
func (s *state) updateActive() {
	known := map[*batchv1.Job]bool{}
	var active []corev1.ObjectReference
	for _, ref := range s.status.Active {
		i := slices.IndexFunc(s.jobs, func(j *batchv1.Job) bool {
			return j.Name == ref.Name && (ref.UID == "" || ref.UID == j.UID)
		})
		if i < 0 {
			s.event(corev1.EventTypeNormal, "MissingJob", "Active job went missing: %v", ref.Name)
			continue
		}
		job := s.jobs[i]
		known[job] = true
		if end := finished(job); end != "" {
			s.event(corev1.EventTypeNormal, "SawCompletedJob", "Saw completed job: %s, condition: %v", job.Name, end)
			continue
		}
		if ref.UID == "" {
			ref.UID, ref.ResourceVersion = job.UID, job.ResourceVersion
		}
		active = append(active, ref)
	}
	for _, job := range s.jobs {
		at := s.scheduledTime(job)
		if last := s.status.LastScheduleTime; !at.IsZero() && (last == nil || at.After(last.Time)) {
			s.status.LastScheduleTime = &metav1.Time{Time: at} // the controller was killed before it wrote the status
		}
		switch end := finished(job); {
		case end == batchv1.JobComplete:
			if at, last := job.Status.CompletionTime, s.status.LastSuccessfulTime; at != nil &&
				(last == nil || at.After(last.Time)) {
				s.status.LastSuccessfulTime = at
			}
		case end != "" || known[job]:
		case at.IsZero():
			s.event(corev1.EventTypeWarning, "UnexpectedJob",
				"Saw a job that the controller did not create or forgot: %s", job.Name)
		default:
			ref := reference(job)
			ref.UID, ref.ResourceVersion = job.UID, job.ResourceVersion
			active = append(active, ref)
		}
	}
	s.status.Active = active
}

// reference returns a reference to a Job, without its UID.
func reference(job *batchv1.Job) corev1.ObjectReference {
	return corev1.ObjectReference{
		APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job", Namespace: job.Namespace, Name: job.Name,
	}
}

// start creates the Job of the latest scheduled time that is not in the future.
func (s *state) start() {
	spec := &s.CronJob.Spec
	if spec.TimeZone != nil && s.LocationError != nil {
		s.event(corev1.EventTypeWarning, "UnknownTimeZone", "invalid timeZone: %q: %s", *spec.TimeZone, s.LocationError)
		return
	}
	if ptr.Deref(spec.Suspend, false) {
		return
	}
	times, err := parse(spec.Schedule, s.Location)
	if err != nil {
		s.event(corev1.EventTypeWarning, "UnparseableSchedule", "unparseable schedule: %q : %s", spec.Schedule, err)
		return
	}
	at := s.due(times)
	if at.IsZero() {
		if s.out.Wake.IsZero() { // such as February 30
			s.event(corev1.EventTypeWarning, "InvalidSchedule", "invalid schedule: %s : no time matches it",
				spec.Schedule)
		}
		return
	}
	if limit := spec.StartingDeadlineSeconds; limit != nil &&
		at.Add(time.Duration(*limit)*time.Second).Before(s.Now) {
		s.event(corev1.EventTypeWarning, "MissSchedule", "Missed scheduled time to start a job: %s",
			at.UTC().Format(time.RFC1123Z))
		return
	}
	if s.processed(at) {
		return
	}
	switch {
	case spec.ConcurrencyPolicy == batchv1.ForbidConcurrent && len(s.status.Active) > 0:
		s.event(corev1.EventTypeNormal, "JobAlreadyActive",
			"Not starting job because prior execution is running and concurrency policy is Forbid")
		return
	case spec.ConcurrencyPolicy == batchv1.ReplaceConcurrent:
		s.deleteActive()
	}
	s.create(at)
}

// due returns the latest scheduled time that is not in the future, or zero, and sets when to decide again.
func (s *state) due(times schedule) time.Time {
	earliest := s.CronJob.CreationTimestamp.Time
	if last := s.status.LastScheduleTime; last != nil {
		earliest = last.Time
	}
	if s.ScheduleChanged.After(earliest) {
		if passed, _ := times.missed(earliest, s.ScheduleChanged); !passed.IsZero() {
			earliest = passed
		}
	}
	start := earliest
	limit := s.CronJob.Spec.StartingDeadlineSeconds
	if limit != nil {
		if bound := s.Now.Add(-time.Duration(*limit) * time.Second); bound.After(start) {
			start = bound
		}
	}
	at, n := times.missed(start, s.Now)
	if n > maxMissed && limit == nil {
		s.event(corev1.EventTypeWarning, "TooManyMissedTimes",
			"too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew")
	}
	// Schedules such as "@every 1h" count from the last time.
	last := at
	if last.IsZero() {
		if last, _ = times.missed(earliest, s.Now); last.IsZero() {
			last = earliest
		}
	}
	s.out.Wake = times.next(last)
	return at
}

// processed reports whether a time of the schedule has its Job already.
func (s *state) processed(at time.Time) bool {
	name := jobName(s.CronJob, at)
	last := s.status.LastScheduleTime
	return last != nil && !last.Time.Before(at) ||
		slices.ContainsFunc(s.jobs, func(j *batchv1.Job) bool { return j.Name == name }) ||
		slices.ContainsFunc(s.status.Active, func(r corev1.ObjectReference) bool { return r.Name == name })
}

// skipForeign skips a scheduled time if a Job of another owner has the name of its Job.
func (s *state) skipForeign() {
	job, ok := s.WriteError.Write.Object.(*batchv1.Job)
	if !ok || s.WriteError.Write.Verb != workloads.Create || !apierrors.IsAlreadyExists(s.WriteError) {
		return
	}
	last := s.status.LastScheduleTime
	if at := s.scheduledTime(job); !at.IsZero() && (last == nil || at.After(last.Time)) {
		s.status.LastScheduleTime = &metav1.Time{Time: at}
	}
}
