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

// Columns that describe a pod template.
var (
	containersColumn = wideColumn(stringColumn("Containers", "Names of the containers."))
	imagesColumn     = wideColumn(stringColumn("Images", "Images of the containers."))
	selectorColumn   = wideColumn(stringColumn("Selector", "Selector of the pods."))
)

var replicaDefinitions = []metav1.TableColumnDefinition{
	nameColumn,
	integerColumn("Desired", "Number of desired pods."),
	integerColumn("Current", "Number of existing pods."),
	integerColumn("Ready", "Number of ready pods."),
	ageColumn,
	containersColumn,
	imagesColumn,
	selectorColumn,
}

var workloadKinds = map[schema.GroupKind]Columns{
	apps("Deployment"): columnsOf(
		deploymentRow,
		nameColumn,
		stringColumn("Ready", "Ready and desired pods."),
		integerColumn(
			"Up-to-date",
			"Number of pods with the current template.",
		),
		integerColumn("Available", "Number of available pods."),
		ageColumn,
		containersColumn,
		imagesColumn,
		selectorColumn,
	),
	apps("ReplicaSet"): columnsOf(func(r *appsv1.ReplicaSet, now time.Time) []any {
		names, images := containers(&r.Spec.Template.Spec)
		return []any{r.Name, int32OrZero(r.Spec.Replicas), int64(r.Status.Replicas), int64(r.Status.ReadyReplicas),
			age(r.CreationTimestamp, now), names, images, formatSelector(r.Spec.Selector)}
	}, replicaDefinitions...),
	apps("DaemonSet"): columnsOf(
		daemonSetRow,
		nameColumn,
		integerColumn("Desired", "Number of nodes that should run a pod."),
		integerColumn("Current", "Number of nodes that run a pod and should."),
		integerColumn("Ready", "Number of nodes with a ready pod."),
		integerColumn(
			"Up-to-date",
			"Number of nodes with a pod of the current template.",
		),
		integerColumn("Available", "Number of nodes with an available pod."),
		stringColumn("Node Selector", "Selector of the nodes."),
		ageColumn,
		containersColumn,
		imagesColumn,
		selectorColumn,
	),
	apps("StatefulSet"): columnsOf(func(s *appsv1.StatefulSet, now time.Time) []any {
		names, images := containers(&s.Spec.Template.Spec)
		return []any{
			s.Name,
			fmt.Sprintf("%d/%d", s.Status.ReadyReplicas, int32OrZero(s.Spec.Replicas)),
			age(s.CreationTimestamp, now),
			names,
			images,
		}
	}, nameColumn, stringColumn("Ready", "Ready and desired pods."), ageColumn,
		containersColumn, imagesColumn),
	apps("ControllerRevision"): columnsOf(revisionRow, nameColumn,
		stringColumn("Controller", "Controller of the object."),
		integerColumn("Revision", "Revision number."), ageColumn),
	batch("Job"): columnsOf(
		jobRow,
		nameColumn,
		stringColumn("Status", "Status of the job."),
		stringColumn("Completions", "Succeeded and desired completions."),
		stringColumn("Duration", "Run time of the job."),
		ageColumn,
		containersColumn,
		imagesColumn,
		selectorColumn,
	),
	batch("CronJob"): columnsOf(
		cronJobRow,
		nameColumn,
		stringColumn("Schedule", "Schedule in cron format."),
		stringColumn("Timezone", "Time zone of the schedule."),
		stringColumn(
			"Suspend",
			"Whether the schedule is suspended.",
		),
		integerColumn("Active", "Number of running jobs."),
		stringColumn("Last Schedule", "Time of the last scheduled job."),
		ageColumn,
		containersColumn,
		imagesColumn,
		selectorColumn,
	),
	{Group: "autoscaling", Kind: "HorizontalPodAutoscaler"}: columnsOf(
		autoscalerRow,
		nameColumn,
		stringColumn("Reference", "Kind and name of the target."),
		stringColumn("Targets", "Current and target values of the metrics."),
		stringColumn("MinPods", "Lowest number of pods."),
		stringColumn("MaxPods", "Highest number of pods."),
		stringColumn("Replicas", "Number of existing pods."),
		ageColumn,
	),
	{Group: "autoscaling", Kind: "Scale"}: columnsOf(func(s *autoscalingv1.Scale, now time.Time) []any {
		return []any{s.Name, int64(s.Spec.Replicas), int64(s.Status.Replicas), age(s.CreationTimestamp, now)}
	}, nameColumn, integerColumn("Desired", "Number of desired pods."),
		integerColumn("Available", "Number of existing pods."), ageColumn),
}

func deploymentRow(d *appsv1.Deployment, now time.Time) []any {
	names, images := containers(&d.Spec.Template.Spec)
	return []any{
		d.Name,
		fmt.Sprintf("%d/%d", d.Status.ReadyReplicas, int32OrZero(d.Spec.Replicas)),
		int64(d.Status.UpdatedReplicas),
		int64(d.Status.AvailableReplicas),
		age(d.CreationTimestamp, now),
		names,
		images,
		formatSelector(d.Spec.Selector),
	}
}

func daemonSetRow(d *appsv1.DaemonSet, now time.Time) []any {
	names, images := containers(&d.Spec.Template.Spec)
	s := &d.Status
	return []any{
		d.Name,
		int64(s.DesiredNumberScheduled),
		int64(s.CurrentNumberScheduled),
		int64(s.NumberReady),
		int64(s.UpdatedNumberScheduled),
		int64(s.NumberAvailable),
		formatLabels(d.Spec.Template.Spec.NodeSelector),
		age(d.CreationTimestamp, now),
		names,
		images,
		formatSelector(d.Spec.Selector),
	}
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
	return []any{r.Name, owner, r.Revision, age(r.CreationTimestamp, now)}
}

func jobRow(j *batchv1.Job, now time.Time) []any {
	names, images := containers(&j.Spec.Template.Spec)
	return []any{
		j.Name,
		jobStatus(j),
		completions(j),
		jobDuration(j, now),
		age(j.CreationTimestamp, now),
		names,
		images,
		formatSelector(j.Spec.Selector),
	}
}

func jobStatus(j *batchv1.Job) string {
	hasCondition := func(kind batchv1.JobConditionType) bool {
		for _, c := range j.Status.Conditions {
			if c.Type == kind {
				return c.Status == corev1.ConditionTrue
			}
		}
		return false
	}
	switch {
	case hasCondition(batchv1.JobComplete):
		return "Complete"
	case hasCondition(batchv1.JobFailed):
		return "Failed"
	case j.DeletionTimestamp != nil:
		return "Terminating"
	case hasCondition(batchv1.JobSuspended):
		return "Suspended"
	case hasCondition(batchv1.JobFailureTarget):
		return "FailureTarget"
	case hasCondition(batchv1.JobSuccessCriteriaMet):
		return "SuccessCriteriaMet"
	}
	return "Running"
}

func completions(j *batchv1.Job) string {
	if j.Spec.Completions != nil {
		return fmt.Sprintf("%d/%d", j.Status.Succeeded, *j.Spec.Completions)
	}
	if n := int32OrZero(j.Spec.Parallelism); n > 1 {
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
		last = age(*c.Status.LastScheduleTime, now)
	}
	return []any{
		c.Name,
		c.Spec.Schedule,
		valueOr(c.Spec.TimeZone, none),
		formatBool(c.Spec.Suspend),
		int64(len(c.Status.Active)),
		last,
		age(c.CreationTimestamp, now),
		names,
		images,
		formatSelector(c.Spec.JobTemplate.Spec.Selector),
	}
}
