package differential

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	everyMinute = "* * * * *"
	yearly      = "0 0 1 1 *"
	// Edits of a CronJob begin in this part of a minute, so that no run starts before both sides are at rest.
	earliestSecond, latestSecond = 5 * time.Second, 25 * time.Second
)

// cronJob runs every minute or every year. Jobs that are created by hand from it make its history too.
func cronJob(r *rand.Rand) workload {
	object := &batchv1.CronJob{ObjectMeta: objectMeta(r), Spec: batchv1.CronJobSpec{
		Schedule: pick(r, everyMinute, everyMinute, yearly), TimeZone: new("Etc/UTC"), Suspend: new(r.IntN(4) == 0),
		ConcurrencyPolicy: pick(r, batchv1.AllowConcurrent, batchv1.ForbidConcurrent,
			batchv1.ReplaceConcurrent),
		// With a limit of 0, it depends on the time of a sync whether the event SawCompletedJob or MissingJob appears.
		SuccessfulJobsHistoryLimit: new(int32(1 + r.IntN(2))), FailedJobsHistoryLimit: new(int32(1 + r.IntN(2))),
		JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{BackoffLimit: new(int32(0)),
			Template: jobTemplate(pick(r, imageSucceed, imageSucceed, imageFail, imageServe))}}}}
	manual := 0
	return workload{early(cronJobs.create(object, object.Spec)), func(r *rand.Rand) edit {
		suspend, limit, schedule := r.IntN(2) == 0, int32(1+r.IntN(2)), pick(r, everyMinute, yearly)
		switch r.IntN(12) {
		case 0, 1, 2:
			return nextMinute()
		case 3, 4:
			return early(cronJobs.change(fmt.Sprint("set suspend ", suspend), func(c *batchv1.CronJob) {
				c.Spec.Suspend = &suspend
			}))
		case 5, 6:
			return early(cronJobs.change(fmt.Sprint("keep jobs ", limit), func(c *batchv1.CronJob) {
				c.Spec.SuccessfulJobsHistoryLimit, c.Spec.FailedJobsHistoryLimit = &limit, &limit
			}))
		case 7:
			return early(cronJobs.change("set schedule "+schedule, func(c *batchv1.CronJob) {
				c.Spec.Schedule = schedule
			}))
		case 8:
			return early(cronJobs.remove(r))
		default:
			manual++
			return early(createManualJob(fmt.Sprint("manual-", manual)))
		}
	}, jobTimerRest}
}

// createManualJob creates a Job from the CronJob, as "kubectl create job --from" does.
func createManualJob(name string) edit {
	return edit{"create job " + name, func(ctx context.Context, p *plane, namespace string) error {
		c, err := p.client.BatchV1().CronJobs(namespace).Get(ctx, "w", metav1.GetOptions{})
		if err != nil {
			return gone(err)
		}
		j := &batchv1.Job{Spec: c.Spec.JobTemplate.Spec, ObjectMeta: metav1.ObjectMeta{Name: name,
			Annotations: map[string]string{"cronjob.kubernetes.io/instantiate": "manual"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "CronJob", Name: c.Name, UID: c.UID,
				Controller: new(true)}}}}
		_, err = p.client.BatchV1().Jobs(namespace).Create(ctx, j, metav1.CreateOptions{})
		return err
	}}
}

// early makes an edit begin in the part of a minute in which no run starts.
func early(e edit) edit {
	apply := e.apply
	e.apply = func(ctx context.Context, p *plane, namespace string) error {
		now := time.Now()
		if past := now.Sub(now.Truncate(time.Minute)); past < earliestSecond || past > latestSecond {
			wait := earliestSecond - past
			if past > latestSecond {
				wait += time.Minute
			}
			if err := sleep(ctx, wait); err != nil {
				return err
			}
			p.touch(namespace)
		}
		return apply(ctx, p, namespace)
	}
	return e
}

// nextMinute waits until the run of the next minute has started. The first control plane waits for both.
func nextMinute() edit {
	var end time.Time
	return edit{"wait for the next minute", func(ctx context.Context, _ *plane, _ string) error {
		if end.IsZero() {
			end = time.Now().Truncate(time.Minute).Add(time.Minute + earliestSecond)
		}
		return sleep(ctx, time.Until(end))
	}}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
