package cronjob

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/workloads"
)

// kind is the type of CronJobs in owner references.
func kind() metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "CronJob"}
}

// jobName returns the name of the Job of a time: the same for each attempt to create it.
func jobName(c *batchv1.CronJob, at time.Time) string {
	return fmt.Sprintf("%s-%d", c.Name, at.Unix()/60)
}

// newJob returns the Job of a time.
func (s *state) newJob(at time.Time) *batchv1.Job {
	t := s.CronJob.Spec.JobTemplate.DeepCopy()
	annotations := maps.Clone(t.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	zone := time.UTC
	if s.CronJob.Spec.TimeZone != nil {
		zone = s.Location
	}
	annotations[batchv1.CronJobScheduledTimestampAnnotation] = at.In(zone).Format(time.RFC3339)
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.CronJob.Namespace, Name: jobName(s.CronJob, at), Labels: t.Labels, Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{workloads.ControllerRef(s.CronJob, kind())},
		},
		Spec: t.Spec,
	}
}

func (s *state) create(at time.Time) {
	job := s.newJob(at)
	s.out.Writes = append(s.out.Writes, workloads.Write{
		Verb: workloads.Create, Object: job,
		Success: workloads.Event{
			Type: corev1.EventTypeNormal, Reason: "SuccessfulCreate", Message: "Created job %s",
		},
		Failure: workloads.Event{
			Type: corev1.EventTypeWarning, Reason: "FailedCreate", Message: "Error creating job: %s",
		},
	})
	s.status.Active = append(s.status.Active, reference(job))
	s.status.LastScheduleTime = &metav1.Time{Time: at}
}

// deleteActive deletes the Jobs in status.active.
func (s *state) deleteActive() {
	for _, ref := range s.status.Active {
		for _, job := range s.jobs {
			if job.Name == ref.Name {
				s.deleteJob(job)
			}
		}
	}
	s.status.Active = nil
}

func (s *state) deleteJob(job *batchv1.Job) {
	if job.DeletionTimestamp != nil {
		return
	}
	s.out.Writes = append(s.out.Writes, workloads.Write{
		Verb: workloads.Delete, Object: job, Propagation: metav1.DeletePropagationBackground,
		Success: workloads.Event{
			Type: corev1.EventTypeNormal, Reason: "SuccessfulDelete", Message: "Deleted job %s",
		},
		Failure: workloads.Event{
			Type: corev1.EventTypeWarning, Reason: "FailedDelete", Message: "Deleted job: %s",
		},
	})
}

// deleteOld deletes the oldest finished Jobs beyond the history limits. A Job stays until the persisted status knows
// that its time is over: otherwise a kill before the status is written would make it run again.
func (s *state) deleteOld() {
	byOutcome := map[batchv1.JobConditionType][]*batchv1.Job{}
	persisted := s.CronJob.Status.LastScheduleTime
	for _, job := range s.jobs {
		at := s.scheduledTime(job)
		if job.DeletionTimestamp == nil && (at.IsZero() || persisted != nil && !at.After(persisted.Time)) {
			byOutcome[finished(job)] = append(byOutcome[finished(job)], job)
		}
	}
	s.deleteOldest(byOutcome[batchv1.JobComplete], s.CronJob.Spec.SuccessfulJobsHistoryLimit)
	s.deleteOldest(byOutcome[batchv1.JobFailed], s.CronJob.Spec.FailedJobsHistoryLimit)
}

func (s *state) deleteOldest(jobs []*batchv1.Job, limit *int32) {
	if limit == nil || len(jobs) <= int(*limit) {
		return
	}
	slices.SortFunc(jobs, func(a, b *batchv1.Job) int {
		x, y := a.Status.StartTime, b.Status.StartTime
		switch {
		case x == nil && y == nil:
			return cmp.Compare(a.Name, b.Name)
		case x == nil:
			return 1
		case y == nil:
			return -1
		}
		return cmp.Or(x.Compare(y.Time), cmp.Compare(a.Name, b.Name))
	})
	for _, job := range jobs[:len(jobs)-int(*limit)] {
		s.deleteJob(job)
	}
}
