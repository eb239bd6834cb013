package controllers

import (
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics"

	"berth/control/metrics/subsystem"
	"berth/workloads"
	"berth/workloads/job"
)

const jobSubsystem subsystem.Name = "job_controller"

var (
	jobSyncLabels   = []string{"completion_mode", "result", "action"}
	jobSyncDuration = jobSubsystem.HistogramVec("job_sync_duration_seconds",
		"Duration of the syncs of Jobs.",
		metrics.STABLE, metrics.ExponentialBuckets(0.004, 2, 15), jobSyncLabels...)
	jobSyncs = newJobCounter("job_syncs_total", "Number of syncs of Jobs.", metrics.STABLE, jobSyncLabels...)

	jobsFinished = newJobCounter("jobs_finished_total", "Number of finished Jobs.", metrics.STABLE,
		"completion_mode", "result", "reason")
	jobPodsFinished = newJobCounter("job_pods_finished_total", "Number of finished pods whose tracking has ended.",
		metrics.STABLE, "completion_mode", "result")
	jobFinishedIndexes = newJobCounter("job_finished_indexes_total", "Number of finished indexes.", metrics.ALPHA,
		"status", "backoffLimit")
	jobPodsCreated = newJobCounter("job_pods_creation_total", "Number of pods that were created, or could not be.",
		metrics.ALPHA, "reason", "status")
	jobPolicyActions = newJobCounter("pod_failures_handled_by_failure_policy_total",
		"Number of failed pods that a rule of a pod failure policy matched, by the action of the rule.", metrics.BETA,
		"action")
	jobTrackedPods = newJobCounter("terminated_pods_tracking_finalizer_total",
		"Number of terminated pods that got and lost the finalizer batch.kubernetes.io/job-tracking.", metrics.BETA,
		"event")
	jobsOfOthers = newJobCounter("jobs_by_external_controller_total",
		"Number of Jobs that another controller manages.", metrics.ALPHA, "controller_name")
	jobSkips = newStaleSkips(jobSubsystem, "Job")

	jobMetrics = []metrics.Registerable{jobSyncDuration, jobSyncs, jobsFinished, jobPodsFinished, jobFinishedIndexes,
		jobPodsCreated, jobPolicyActions, jobTrackedPods, jobsOfOthers, jobSkips}
)

func newJobCounter(name, help string, level metrics.StabilityLevel, labels ...string) *metrics.CounterVec {
	return jobSubsystem.CounterVec(name, help, level, labels...)
}

// measureJob counts a sync of a Job. pods are those of the Job.
func measureJob(s syncReport[*batchv1.Job, batchv1.JobStatus], pods []*corev1.Pod) {
	if s.stale != nil {
		countStale(jobSkips, s.stale)
		return
	}
	if _, finished := job.Finished(s.object); finished || managedByOther(s.object) != "" {
		return
	}
	mode, result := completionMode(s.object), "success"
	if s.err != nil {
		result = "error"
	}
	action := jobAction(s)
	jobSyncDuration.WithLabelValues(mode, result, action).Observe(s.took.Seconds())
	jobSyncs.WithLabelValues(mode, result, action).Inc()

	p := job.ProgressOf(s.object, pods, s.status, s.writes)
	jobPodsFinished.WithLabelValues(mode, "succeeded").Add(float64(max(0, p.SucceededPods)))
	jobPodsFinished.WithLabelValues(mode, "failed").Add(float64(max(0, p.FailedPods)))
	if mode == string(batchv1.IndexedCompletion) {
		limit := "global"
		if s.object.Spec.BackoffLimitPerIndex != nil {
			limit = "perIndex"
		}
		jobFinishedIndexes.WithLabelValues("succeeded", limit).Add(float64(max(0, p.SucceededIndexes)))
		jobFinishedIndexes.WithLabelValues("failed", limit).Add(float64(p.FailedIndexes))
	}
	if p.Finished != nil {
		outcome := "succeeded"
		if p.Finished.Type == batchv1.JobFailed {
			outcome = "failed"
		}
		jobsFinished.WithLabelValues(mode, outcome, p.Finished.Reason).Inc()
	}
	for action, n := range p.PolicyActions {
		jobPolicyActions.WithLabelValues(string(action)).Add(float64(n))
	}
	countCreatedPods(s, pods)
}

// countCreatedPods counts the pods that a sync created by the reason.
func countCreatedPods(s syncReport[*batchv1.Job, batchv1.JobStatus], pods []*corev1.Pod) {
	created := 0
	for _, w := range s.writes {
		if w.Verb == workloads.Create {
			created++
		}
	}
	reason, status := "new", &s.object.Status
	if s.status != nil {
		status = s.status
	}
	failed := status.Failed > 0 || slices.ContainsFunc(pods, func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodFailed
	})
	policy := s.object.Spec.PodReplacementPolicy
	switch onlyFailed := policy != nil && *policy == batchv1.Failed; {
	case onlyFailed && failed:
		reason = "recreate_failed"
	case failed || status.Terminating != nil && *status.Terminating > 0:
		reason = "recreate_terminating_or_failed"
	}
	if created > 0 {
		jobPodsCreated.WithLabelValues(reason, "succeeded").Add(float64(created))
	}
	if s.failedCreates > 0 {
		jobPodsCreated.WithLabelValues(reason, "failed").Add(float64(s.failedCreates))
	}
}

// jobAction returns what a sync has done to pods: "reconciling" if the Job ends or is being deleted.
func jobAction(s syncReport[*batchv1.Job, batchv1.JobStatus]) string {
	ending := s.object.DeletionTimestamp != nil
	for _, status := range []*batchv1.JobStatus{&s.object.Status, s.status} {
		ending = ending || status != nil && slices.ContainsFunc(status.Conditions, func(c batchv1.JobCondition) bool {
			return c.Status == corev1.ConditionTrue && c.Type != batchv1.JobSuspended
		})
	}
	switch {
	case ending:
		return "reconciling"
	case s.has(workloads.Create) || s.failedCreates > 0:
		return "pods_created"
	case s.has(workloads.Delete):
		return "pods_deleted"
	}
	return "tracking"
}

func completionMode(j *batchv1.Job) string {
	if j.Spec.CompletionMode != nil {
		return string(*j.Spec.CompletionMode)
	}
	return string(batchv1.NonIndexedCompletion)
}

// managedByOther returns the name of the controller that manages a Job, or "" if it is this one.
func managedByOther(j *batchv1.Job) string {
	if m := j.Spec.ManagedBy; m != nil && *m != batchv1.JobControllerName {
		return *m
	}
	return ""
}

// trackedPodsHandler counts terminated pods that get and lose the tracking finalizer.
func trackedPodsHandler() cache.ResourceEventHandlerFuncs {
	count := func(before, after any) {
		was, is := terminatedAndTracked(before), terminatedAndTracked(after)
		switch {
		case is && !was:
			jobTrackedPods.WithLabelValues("add").Inc()
		case was && !is:
			jobTrackedPods.WithLabelValues("delete").Inc()
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { count(nil, obj) },
		UpdateFunc: count,
		DeleteFunc: func(obj any) {
			obj = lastKnown(obj)
			count(obj, nil)
		},
	}
}

func terminatedAndTracked(obj any) bool {
	p, ok := obj.(*corev1.Pod)
	return ok && workloads.Terminated(p) && slices.Contains(p.Finalizers, batchv1.JobTrackingFinalizer)
}
