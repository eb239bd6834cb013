package cronjob

import (
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/workloads"
)

// testNow is a Thursday. The schedule of testCronJob had its last time half a minute ago.
var testNow = time.Date(2026, 1, 1, 12, 0, 30, 0, time.UTC)

// testCronJob returns a CronJob that runs every ten minutes and has run ten minutes before its last time.
func testCronJob(edits ...func(*batchv1.CronJob)) *batchv1.CronJob {
	c := &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "c", UID: "cron-uid",
			CreationTimestamp: metav1.NewTime(testNow.Add(-24 * time.Hour)),
		},
		Spec: batchv1.CronJobSpec{
			Schedule: "*/10 * * * *", ConcurrencyPolicy: batchv1.AllowConcurrent, Suspend: new(false),
			SuccessfulJobsHistoryLimit: new(int32(3)), FailedJobsHistoryLimit: new(int32(1)),
			JobTemplate: batchv1.JobTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{
					Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"},
				},
				Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
					RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "x"}},
				}}},
			},
		},
		Status: batchv1.CronJobStatus{LastScheduleTime: &metav1.Time{Time: clock("11:50")}},
	}
	for _, edit := range edits {
		edit(c)
	}
	return c
}

// clock returns a time of the day of testNow.
func clock(text string) time.Time {
	at, err := time.Parse("15:04", text)
	if err != nil {
		panic(err)
	}
	return time.Date(2026, 1, 1, at.Hour(), at.Minute(), 0, 0, time.UTC)
}

// testJob returns the Job of testCronJob for a time of the day.
func testJob(at string, edits ...func(*batchv1.Job)) *batchv1.Job {
	s := &state{Input: Input{CronJob: testCronJob(), Location: time.UTC}}
	job := s.newJob(clock(at))
	job.UID = types.UID("uid-" + at)
	job.Status.StartTime = &metav1.Time{Time: clock(at)}
	for _, edit := range edits {
		edit(job)
	}
	return job
}

func ended(t batchv1.JobConditionType) func(*batchv1.Job) {
	return func(job *batchv1.Job) {
		job.Status.Conditions = []batchv1.JobCondition{{Type: t, Status: corev1.ConditionTrue}}
		if t == batchv1.JobComplete {
			job.Status.CompletionTime = &metav1.Time{Time: job.Status.StartTime.Add(time.Minute)}
		}
	}
}

// running puts Jobs into status.active.
func running(jobs ...*batchv1.Job) func(*batchv1.CronJob) {
	return func(c *batchv1.CronJob) {
		for _, j := range jobs {
			ref := reference(j)
			ref.UID = j.UID
			c.Status.Active = append(c.Status.Active, ref)
		}
	}
}

// describe writes a decision in one line. Jobs are named by the time of the day.
func describe(d workloads.Decision[batchv1.CronJobStatus]) string {
	name := func(name string) string {
		for at := clock("00:00"); at.Day() == testNow.Day(); at = at.Add(time.Minute) {
			name = strings.ReplaceAll(name, jobName(testCronJob(), at), at.Format("15:04"))
		}
		return name
	}
	var out []string
	for _, w := range d.Writes {
		verb := "create "
		if w.Verb == workloads.Delete {
			verb = "delete "
		}
		out = append(out, verb+w.Object.GetName())
	}
	if s := d.Status; s != nil {
		var active []string
		for _, ref := range s.Active {
			if ref.UID == "" {
				ref.Name += "(new)"
			}
			active = append(active, ref.Name)
		}
		out = append(out, "active ["+strings.Join(active, " ")+"]")
		if s.LastScheduleTime != nil {
			out = append(out, "last "+s.LastScheduleTime.UTC().Format("15:04"))
		}
		if s.LastSuccessfulTime != nil {
			out = append(out, "success "+s.LastSuccessfulTime.UTC().Format("15:04"))
		}
	}
	for _, e := range d.Events {
		out = append(out, "event "+e.Reason)
	}
	if !d.Wake.IsZero() {
		out = append(out, "wake "+d.Wake.UTC().Format("15:04"))
	}
	return name(strings.Join(out, ", "))
}
