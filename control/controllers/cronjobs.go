package controllers

import (
	"context"
	"time"
	_ "time/tzdata" // the time zones of spec.timeZone, for hosts without a database

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/workloads"
	"berth/workloads/cronjob"
)

const cronJobWorkers = 5

// newCronJobController runs workloads/cronjob: it creates the Jobs of CronJobs. Schedules without a time zone are in
// the zone of this process.
func newCronJobController(c Config) ([]*controller, error) {
	jobs := c.Informers.Batch().V1().Jobs().Informer()
	ctrl, err := newReconciler(c, workload[*batchv1.CronJob, batchv1.CronJobStatus]{
		kind: batchv1.SchemeGroupVersion.WithKind("CronJob"),
		objects: newObjectType[*batchv1.CronJob](c.Informers.Batch().V1().CronJobs().Informer(),
			c.Client.BatchV1().CronJobs),
		children: []*objectType{newObjectType[*batchv1.Job](jobs, c.Client.BatchV1().Jobs)},
		decide: func(cron *batchv1.CronJob, now time.Time,
			failed *workloads.WriteError) workloads.Decision[batchv1.CronJobStatus] {
			in := cronjob.Input{
				Now: now, CronJob: cron, Jobs: childrenOf[*batchv1.Job](jobs, cron), Location: time.Local,
				WriteError: failed,
			}
			if zone := cron.Spec.TimeZone; zone != nil {
				in.Location, in.LocationError = time.LoadLocation(*zone)
			}
			return cronjob.Decide(in)
		},
		status: func(cron *batchv1.CronJob) *batchv1.CronJobStatus { return &cron.Status },
		updateStatus: func(ctx context.Context, cron *batchv1.CronJob) (*batchv1.CronJob, error) {
			//nolint:wrapcheck // wrapped by the reconciler
			return c.Client.BatchV1().CronJobs(cron.Namespace).UpdateStatus(ctx, cron, metav1.UpdateOptions{})
		},
		workers: cronJobWorkers,
		measure: func(s syncReport[*batchv1.CronJob, batchv1.CronJobStatus]) { measureCronJob(s.writes) },
	})
	return []*controller{ctrl}, err
}
