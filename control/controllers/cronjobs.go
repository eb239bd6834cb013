package controllers

import (
	"context"
	"sync"
	"time"
	_ "time/tzdata" // the time zones of spec.timeZone, for hosts without a database

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"berth/workloads"
	"berth/workloads/cronjob"
)

const cronJobWorkers = 5

// newCronJobController runs workloads/cronjob: it creates the Jobs of CronJobs. Schedules without a time zone are in
// the zone of this process.
func newCronJobController(c Config) ([]*controller, error) {
	crons, jobs := c.Informers.Batch().V1().CronJobs().Informer(), c.Informers.Batch().V1().Jobs().Informer()
	schedules := observedSchedules{}
	ctrl, err := newReconciler(c, workload[*batchv1.CronJob, batchv1.CronJobStatus]{
		kind:     batchv1.SchemeGroupVersion.WithKind("CronJob"),
		objects:  newObjectType[*batchv1.CronJob](crons, c.Client.BatchV1().CronJobs),
		children: []*objectType{newObjectType[*batchv1.Job](jobs, c.Client.BatchV1().Jobs)},
		decide: func(cron *batchv1.CronJob, now time.Time,
			failed *workloads.WriteError) workloads.Decision[batchv1.CronJobStatus] {
			in := cronjob.Input{
				Now: now, CronJob: cron, Jobs: childrenOf[*batchv1.Job](jobs, cron), Location: time.Local,
				WriteError: failed, ScheduleChanged: schedules.changed(cron, now),
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
	if err != nil {
		return nil, err
	}
	return []*controller{ctrl}, ctrl.addEventHandler(crons, cache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) {
		obj = lastKnown(obj)
		if cron, ok := obj.(*batchv1.CronJob); ok {
			schedules.forget(cron.UID)
		}
	}})
}

// observedSchedules remembers when the schedules of CronJobs changed while this process has run. It is safe for
// concurrent use.
type observedSchedules struct {
	mu    sync.Mutex
	byUID map[types.UID]observedSchedule
}

type observedSchedule struct {
	cron    *batchv1.CronJob // only the fields of the schedule
	changed time.Time        // zero: it is the first one that was observed
}

// changed returns when the schedule of a CronJob changed, or zero if it has not.
func (o *observedSchedules) changed(cron *batchv1.CronJob, now time.Time) time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	last, found := o.byUID[cron.UID]
	if found && !cronjob.ScheduleDiffers(last.cron, cron) {
		return last.changed
	}
	current := observedSchedule{cron: &batchv1.CronJob{
		Spec: batchv1.CronJobSpec{Schedule: cron.Spec.Schedule, TimeZone: cron.Spec.TimeZone},
	}}
	if found {
		current.changed = now
	}
	if o.byUID == nil {
		o.byUID = map[types.UID]observedSchedule{}
	}
	o.byUID[cron.UID] = current
	return current.changed
}

func (o *observedSchedules) forget(uid types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.byUID, uid)
}
