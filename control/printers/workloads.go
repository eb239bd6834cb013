package printers

import (
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"
)

func apps(kind string) schema.GroupKind  { return schema.GroupKind{Group: "apps", Kind: kind} }
func batch(kind string) schema.GroupKind { return schema.GroupKind{Group: "batch", Kind: kind} }

// The columns that tell what a template runs.
var (
	containersHead = wide(text("Containers", "The names of the containers."))
	imagesHead     = wide(text("Images", "The images of the containers."))
	selectorHead   = wide(text("Selector", "Which pods belong to it."))
)

var replicaHeads = []metav1.TableColumnDefinition{nameHead, number("Desired", "How many pods there should be."),
	number("Current", "How many pods there are."), number("Ready", "How many of them are ready."), ageHead,
	containersHead, imagesHead, selectorHead}

var workloadKinds = map[schema.GroupKind]Columns{
	apps("Deployment"): of(deploymentRow, nameHead, text("Ready", "How many pods are ready, of those that should be."),
		number("Up-to-date", "How many pods are of the newest template."), number("Available", "How many pods have been ready long enough."),
		ageHead, containersHead, imagesHead, selectorHead),
	apps("ReplicaSet"): of(func(r *appsv1.ReplicaSet, now time.Time) []any {
		names, images := containers(&r.Spec.Template.Spec)
		return []any{r.Name, number32(r.Spec.Replicas), int64(r.Status.Replicas), int64(r.Status.ReadyReplicas),
			since(r.CreationTimestamp, now), names, images, selector(r.Spec.Selector)}
	}, replicaHeads...),
	apps("DaemonSet"): of(daemonSetRow, nameHead, number("Desired", "On how many nodes a pod should run."),
		number("Current", "On how many of them one runs."), number("Ready", "On how many it is ready."),
		number("Up-to-date", "On how many it is of the newest template."), number("Available", "On how many it has been ready long enough."),
		text("Node Selector", "Which nodes are meant."), ageHead, containersHead, imagesHead, selectorHead),
	apps("StatefulSet"): of(func(s *appsv1.StatefulSet, now time.Time) []any {
		names, images := containers(&s.Spec.Template.Spec)
		return []any{s.Name, fmt.Sprintf("%d/%d", s.Status.ReadyReplicas, number32(s.Spec.Replicas)), since(s.CreationTimestamp, now), names, images}
	}, nameHead, text("Ready", "How many pods are ready, of those that should be."), ageHead, containersHead, imagesHead),
	apps("ControllerRevision"): of(revisionRow, nameHead, text("Controller", "Whose revision it is."),
		number("Revision", "Which one it is."), ageHead),
	batch("Job"): of(jobRow, nameHead, text("Status", "How far the job is."), text("Completions", "How many pods have succeeded, of those that should."),
		text("Duration", "How long the job has taken."), ageHead, containersHead, imagesHead, selectorHead),
	batch("CronJob"): of(cronJobRow, nameHead, text("Schedule", "When jobs are made."), text("Timezone", "Where that time is meant."),
		text("Suspend", "Whether it rests."), number("Active", "How many of its jobs run."), text("Last Schedule", "When a job was made last."),
		ageHead, containersHead, imagesHead, selectorHead),
	{Group: "autoscaling", Kind: "Scale"}: of(func(s *autoscalingv1.Scale, now time.Time) []any {
		return []any{s.Name, int64(s.Spec.Replicas), int64(s.Status.Replicas), since(s.CreationTimestamp, now)}
	}, nameHead, number("Desired", "How many pods there should be."), number("Available", "How many pods there are."), ageHead),
}

func deploymentRow(d *appsv1.Deployment, now time.Time) []any {
	names, images := containers(&d.Spec.Template.Spec)
	return []any{d.Name, fmt.Sprintf("%d/%d", d.Status.ReadyReplicas, number32(d.Spec.Replicas)), int64(d.Status.UpdatedReplicas),
		int64(d.Status.AvailableReplicas), since(d.CreationTimestamp, now), names, images, selector(d.Spec.Selector)}
}

func daemonSetRow(d *appsv1.DaemonSet, now time.Time) []any {
	names, images := containers(&d.Spec.Template.Spec)
	s := &d.Status
	return []any{d.Name, int64(s.DesiredNumberScheduled), int64(s.CurrentNumberScheduled), int64(s.NumberReady), int64(s.UpdatedNumberScheduled),
		int64(s.NumberAvailable), pairs(d.Spec.Template.Spec.NodeSelector), since(d.CreationTimestamp, now), names, images, selector(d.Spec.Selector)}
}

func revisionRow(r *appsv1.ControllerRevision, now time.Time) []any {
	owner := none
	if c := metav1.GetControllerOf(r); c != nil {
		kind := strings.ToLower(c.Kind)
		if group, _, grouped := strings.Cut(c.APIVersion, "/"); grouped {
			kind += "." + group
		}
		owner = kind + "/" + c.Name
	}
	return []any{r.Name, owner, r.Revision, since(r.CreationTimestamp, now)}
}

func jobRow(j *batchv1.Job, now time.Time) []any {
	names, images := containers(&j.Spec.Template.Spec)
	return []any{j.Name, jobStatus(j), completions(j), jobDuration(j, now), since(j.CreationTimestamp, now), names, images, selector(j.Spec.Selector)}
}

func jobStatus(j *batchv1.Job) string {
	is := func(kind batchv1.JobConditionType) bool {
		for _, c := range j.Status.Conditions {
			if c.Type == kind {
				return c.Status == corev1.ConditionTrue
			}
		}
		return false
	}
	switch {
	case is(batchv1.JobComplete):
		return "Complete"
	case is(batchv1.JobFailed):
		return "Failed"
	case j.DeletionTimestamp != nil:
		return "Terminating"
	case is(batchv1.JobSuspended):
		return "Suspended"
	case is(batchv1.JobFailureTarget):
		return "FailureTarget"
	case is(batchv1.JobSuccessCriteriaMet):
		return "SuccessCriteriaMet"
	}
	return "Running"
}

func completions(j *batchv1.Job) string {
	if j.Spec.Completions != nil {
		return fmt.Sprintf("%d/%d", j.Status.Succeeded, *j.Spec.Completions)
	}
	if n := number32(j.Spec.Parallelism); n > 1 {
		return fmt.Sprintf("%d/1 of %d", j.Status.Succeeded, n)
	}
	return fmt.Sprintf("%d/1", j.Status.Succeeded)
}

func jobDuration(j *batchv1.Job, now time.Time) string {
	if j.Status.StartTime == nil {
		return ""
	}
	end := now
	if j.Status.CompletionTime != nil {
		end = j.Status.CompletionTime.Time
	}
	for _, c := range j.Status.Conditions {
		if c.Type == batchv1.JobFailed && c.Status == corev1.ConditionTrue {
			end = c.LastTransitionTime.Time
		}
	}
	return duration.HumanDuration(end.Sub(j.Status.StartTime.Time))
}

func cronJobRow(c *batchv1.CronJob, now time.Time) []any {
	names, images := containers(&c.Spec.JobTemplate.Spec.Template.Spec)
	last := none
	if c.Status.LastScheduleTime != nil {
		last = since(*c.Status.LastScheduleTime, now)
	}
	return []any{c.Name, c.Spec.Schedule, value(c.Spec.TimeZone, none), flag(c.Spec.Suspend), int64(len(c.Status.Active)), last,
		since(c.CreationTimestamp, now), names, images, selector(c.Spec.JobTemplate.Spec.Selector)}
}
