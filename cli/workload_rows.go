package cli

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth/nodeapi"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// workloadHeaders has the columns of each kind as kubectl prints them.
var workloadHeaders = map[string][]string{
	"Deployment":  {"NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"},
	"ReplicaSet":  {"NAME", "DESIRED", "CURRENT", "READY", "AGE"},
	"StatefulSet": {"NAME", "READY", "AGE"},
	"DaemonSet": {
		"NAME", "DESIRED", "CURRENT", "READY", "UP-TO-DATE", "AVAILABLE", "NODE SELECTOR", "AGE",
	},
	"Job":     {"NAME", "STATUS", "COMPLETIONS", "DURATION", "AGE"},
	"CronJob": {"NAME", "SCHEDULE", "TIMEZONE", "SUSPEND", "ACTIVE", "LAST SCHEDULE", "AGE"},
}

// workloadHeader returns the columns of a kind. Wide adds those of "-o wide".
func workloadHeader(kind string, wide bool) []string {
	header := slices.Clone(workloadHeaders[kind])
	if wide {
		header = append(header, "CONTAINERS", "IMAGES")
		if kind != "StatefulSet" {
			header = append(header, "SELECTOR")
		}
	}
	return header
}

// workloadRow returns the cells of a workload below those of workloadHeader.
func workloadRow(w nodeapi.Workload, now time.Time, wide bool) (row []string, err error) {
	var template *corev1.PodTemplateSpec
	var selector *metav1.LabelSelector
	switch w.Kind {
	case "Deployment":
		var d appsv1.Deployment
		err = json.Unmarshal(w.Object, &d)
		row, template, selector = deploymentCells(&d, now), &d.Spec.Template, d.Spec.Selector
	case "ReplicaSet":
		var s appsv1.ReplicaSet
		err = json.Unmarshal(w.Object, &s)
		row, template, selector = replicaSetCells(&s, now), &s.Spec.Template, s.Spec.Selector
	case "StatefulSet":
		var s appsv1.StatefulSet
		err = json.Unmarshal(w.Object, &s)
		row, template = statefulSetCells(&s, now), &s.Spec.Template
	case "DaemonSet":
		var s appsv1.DaemonSet
		err = json.Unmarshal(w.Object, &s)
		row, template, selector = daemonSetCells(&s, now), &s.Spec.Template, s.Spec.Selector
	case "Job":
		var j batchv1.Job
		err = json.Unmarshal(w.Object, &j)
		row, template, selector = jobCells(&j, now), &j.Spec.Template, j.Spec.Selector
	default:
		var c batchv1.CronJob
		err = json.Unmarshal(w.Object, &c)
		spec := c.Spec.JobTemplate.Spec
		row, template, selector = cronJobCells(&c, now), &spec.Template, spec.Selector
	}
	if err != nil || !wide {
		return row, err
	}
	row = append(row, templateContainers(template), templateImages(template))
	if w.Kind != "StatefulSet" {
		row = append(row, selectorText(selector))
	}
	return row, nil
}

func deploymentCells(d *appsv1.Deployment, now time.Time) []string {
	s := d.Status
	return []string{d.Name, fmt.Sprintf("%d/%d", s.ReadyReplicas, orOne(d.Spec.Replicas)),
		fmt.Sprint(s.UpdatedReplicas), fmt.Sprint(s.AvailableReplicas), ago(now, d.CreationTimestamp.Time)}
}

func replicaSetCells(s *appsv1.ReplicaSet, now time.Time) []string {
	return []string{s.Name, fmt.Sprint(orOne(s.Spec.Replicas)), fmt.Sprint(s.Status.Replicas),
		fmt.Sprint(s.Status.ReadyReplicas), ago(now, s.CreationTimestamp.Time)}
}

func statefulSetCells(s *appsv1.StatefulSet, now time.Time) []string {
	return []string{s.Name, fmt.Sprintf("%d/%d", s.Status.ReadyReplicas, orOne(s.Spec.Replicas)),
		ago(now, s.CreationTimestamp.Time)}
}

func daemonSetCells(d *appsv1.DaemonSet, now time.Time) []string {
	s := d.Status
	return []string{d.Name, fmt.Sprint(s.DesiredNumberScheduled), fmt.Sprint(s.CurrentNumberScheduled),
		fmt.Sprint(s.NumberReady), fmt.Sprint(s.UpdatedNumberScheduled), fmt.Sprint(s.NumberAvailable),
		orNone(strings.Join(pairs(d.Spec.Template.Spec.NodeSelector), ",")), ago(now, d.CreationTimestamp.Time)}
}

func jobCells(j *batchv1.Job, now time.Time) []string {
	return []string{j.Name, jobStatus(j), jobCompletions(j), jobDuration(j, now), ago(now, j.CreationTimestamp.Time)}
}

func cronJobCells(c *batchv1.CronJob, now time.Time) []string {
	zone, suspended, last := none, "<unset>", none
	if c.Spec.TimeZone != nil {
		zone = *c.Spec.TimeZone
	}
	switch suspend := c.Spec.Suspend; {
	case suspend == nil:
	case *suspend:
		suspended = "True"
	default:
		suspended = "False"
	}
	if at := c.Status.LastScheduleTime; at != nil {
		last = ago(now, at.Time)
	}
	return []string{c.Name, c.Spec.Schedule, zone, suspended, fmt.Sprint(len(c.Status.Active)), last,
		ago(now, c.CreationTimestamp.Time)}
}

// jobCondition returns a condition of a Job that is true, or nil.
func jobCondition(j *batchv1.Job, kind batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range j.Status.Conditions {
		if c := &j.Status.Conditions[i]; c.Type == kind && c.Status == corev1.ConditionTrue {
			return c
		}
	}
	return nil
}

func jobStatus(j *batchv1.Job) string {
	switch {
	case jobCondition(j, batchv1.JobComplete) != nil:
		return "Complete"
	case jobCondition(j, batchv1.JobFailed) != nil:
		return "Failed"
	case j.DeletionTimestamp != nil:
		return "Terminating"
	case jobCondition(j, batchv1.JobSuspended) != nil:
		return "Suspended"
	case jobCondition(j, batchv1.JobFailureTarget) != nil:
		return "FailureTarget"
	case jobCondition(j, batchv1.JobSuccessCriteriaMet) != nil:
		return "SuccessCriteriaMet"
	}
	return "Running"
}

// jobCompletions returns the succeeded and desired completions. A Job without a number of completions needs one, from
// any of its parallel pods.
func jobCompletions(j *batchv1.Job) string {
	switch parallelism := j.Spec.Parallelism; {
	case j.Spec.Completions != nil:
		return fmt.Sprintf("%d/%d", j.Status.Succeeded, *j.Spec.Completions)
	case parallelism != nil && *parallelism > 1:
		return fmt.Sprintf("%d/1 of %d", j.Status.Succeeded, *parallelism)
	}
	return fmt.Sprintf("%d/1", j.Status.Succeeded)
}

// jobDuration returns how long a Job runs or ran.
func jobDuration(j *batchv1.Job, now time.Time) string {
	if j.Status.StartTime == nil {
		return ""
	}
	end := now
	if at := j.Status.CompletionTime; at != nil {
		end = at.Time
	}
	if failed := jobCondition(j, batchv1.JobFailed); failed != nil {
		end = failed.LastTransitionTime.Time
	}
	return ago(end, j.Status.StartTime.Time)
}

func templateContainers(t *corev1.PodTemplateSpec) string {
	names := make([]string, len(t.Spec.Containers))
	for i := range names {
		names[i] = t.Spec.Containers[i].Name
	}
	return strings.Join(names, ",")
}
