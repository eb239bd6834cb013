package cli

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"berth/nodeapi"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// workloadDetails is what "describe" shows of a kind.
type workloadDetails struct {
	meta       metav1.ObjectMeta
	selector   *metav1.LabelSelector
	fields     []field
	template   *corev1.PodTemplateSpec
	conditions []corev1.PodCondition // of any kind of workload
}

// workloadText describes a workload in the form of kubectl.
func workloadText(d nodeapi.WorkloadDescription, now time.Time) (string, error) {
	details, err := detailsOf(d.Workload, now)
	if err != nil {
		return "", fmt.Errorf("invalid response of the agent: %w", err)
	}
	var b strings.Builder
	fields := []field{
		{key: "Name", value: details.meta.Name},
		{key: "Namespace", value: details.meta.Namespace},
		{key: "Kind", value: d.Kind},
	}
	if len(details.meta.OwnerReferences) > 0 {
		owner := details.meta.OwnerReferences[0]
		fields = append(fields, field{key: "Controlled By", value: owner.Kind + "/" + owner.Name})
	} else {
		fields = append(fields, field{key: "File", value: orNone(d.File)})
	}
	fields = append(fields,
		field{key: "CreationTimestamp", value: moment(details.meta.CreationTimestamp.Time)},
		linesField("Labels", pairs(details.meta.Labels)),
		linesField("Annotations", pairs(details.meta.Annotations)),
		field{key: "Selector", value: selectorText(details.selector)})
	if at := details.meta.DeletionTimestamp; at != nil {
		fields = append(fields, field{key: "Status", value: "Terminating (lasts " + ago(now, at.Time) + ")"})
	}
	fields = append(fields, details.fields...)
	for _, command := range slices.Sorted(maps.Keys(d.Overrides)) {
		fields = append(fields, field{key: "Override", value: fmt.Sprintf("%s until %s changes (berth %s)",
			d.Overrides[command], d.File, command)})
	}
	writeFields(&b, "", fields)
	if t := details.template; t != nil {
		var containers []field
		for _, list := range [][]corev1.Container{t.Spec.InitContainers, t.Spec.Containers} {
			for _, c := range list {
				containers = append(containers, field{key: c.Name, value: c.Image})
			}
		}
		writeFields(&b, "", []field{{key: "Pod Template", under: []field{
			linesField("Labels", pairs(t.Labels)), {key: "Containers", under: containers},
		}}})
	}
	if err := writeConditions(&b, details.conditions); err != nil {
		return "", err
	}
	if err := writeRelated(&b, d, now); err != nil {
		return "", err
	}
	writeWarnings(&b, d.Warnings)
	if err := writeEvents(&b, d.Events, now); err != nil {
		return "", err
	}
	return b.String(), nil
}

// writeRelated prints the revisions, the objects and the pods of a workload.
func writeRelated(b *strings.Builder, d nodeapi.WorkloadDescription, now time.Time) error {
	section := func(title string, rows [][]string) error {
		if len(rows) < 2 {
			return nil
		}
		b.WriteString(title + ":\n")
		t := table{w: b, indent: "  "}
		return t.print(rows...)
	}
	revisions := [][]string{{"Revision", "Change-Cause", "Images"}}
	for _, r := range d.Revisions {
		revisions = append(revisions, []string{
			fmt.Sprint(r.Revision), orNone(r.ChangeCause), templateImages(r.Template),
		})
	}
	if err := section("Revisions", revisions); err != nil {
		return err
	}
	for _, k := range workloadKinds {
		rows := [][]string{workloadHeader(k.kind, false)}
		for _, w := range d.Children {
			if w.Kind != k.kind {
				continue
			}
			row, err := workloadRow(w, now, false)
			if err != nil {
				return fmt.Errorf("invalid response of the agent: %w", err)
			}
			rows = append(rows, row)
		}
		if err := section(k.kind+"s", rows); err != nil {
			return err
		}
	}
	p := podPrinter{now: func() time.Time { return now }}
	if err := section("Pods", append([][]string{p.header()}, p.rows(d.Pods)...)); err != nil {
		return err
	}
	return nil
}

func templateImages(t *corev1.PodTemplateSpec) string {
	var images []string
	if t != nil {
		for i := range t.Spec.Containers {
			images = append(images, t.Spec.Containers[i].Image)
		}
	}
	return strings.Join(images, ",")
}

func selectorText(s *metav1.LabelSelector) string {
	if s == nil {
		return none
	}
	return orNone(metav1.FormatLabelSelector(s))
}

// condition converts a condition of any kind.
func condition[T, S ~string](t T, status S, reason, message string) corev1.PodCondition {
	return corev1.PodCondition{
		Type: corev1.PodConditionType(t), Status: corev1.ConditionStatus(status), Reason: reason, Message: message,
	}
}

// detailsOf decodes the object of a workload.
func detailsOf(w nodeapi.Workload, now time.Time) (d workloadDetails, err error) {
	switch w.Kind {
	case "Deployment":
		var o appsv1.Deployment
		err = json.Unmarshal(w.Object, &o)
		d = deploymentDetails(&o)
	case "ReplicaSet":
		var o appsv1.ReplicaSet
		err = json.Unmarshal(w.Object, &o)
		d = workloadDetails{meta: o.ObjectMeta, selector: o.Spec.Selector, template: &o.Spec.Template, fields: []field{{
			key: "Replicas", value: fmt.Sprintf("%d current / %d desired", o.Status.Replicas, orOne(o.Spec.Replicas)),
		}}}
		for _, c := range o.Status.Conditions {
			d.conditions = append(d.conditions, condition(c.Type, c.Status, c.Reason, c.Message))
		}
	case "StatefulSet":
		var o appsv1.StatefulSet
		err = json.Unmarshal(w.Object, &o)
		d = statefulSetDetails(&o)
	case "DaemonSet":
		var o appsv1.DaemonSet
		err = json.Unmarshal(w.Object, &o)
		d = daemonSetDetails(&o)
	case "Job":
		var o batchv1.Job
		err = json.Unmarshal(w.Object, &o)
		d = jobDetails(&o, now)
	default:
		var o batchv1.CronJob
		err = json.Unmarshal(w.Object, &o)
		d = cronJobDetails(&o, now)
	}
	return d, err
}

func orOne(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}

func percentOrNumber(v *intstr.IntOrString) string {
	if v == nil {
		return "0"
	}
	return v.String()
}

func deploymentDetails(o *appsv1.Deployment) workloadDetails {
	s := o.Status
	d := workloadDetails{meta: o.ObjectMeta, selector: o.Spec.Selector, template: &o.Spec.Template, fields: []field{
		{key: "Replicas", value: fmt.Sprintf("%d desired | %d updated | %d total | %d available | %d unavailable",
			orOne(o.Spec.Replicas), s.UpdatedReplicas, s.Replicas, s.AvailableReplicas, s.UnavailableReplicas)},
		{key: "StrategyType", value: string(o.Spec.Strategy.Type)},
		{key: "MinReadySeconds", value: fmt.Sprint(o.Spec.MinReadySeconds)},
	}}
	if u := o.Spec.Strategy.RollingUpdate; u != nil {
		d.fields = append(d.fields, field{key: "RollingUpdateStrategy", value: fmt.Sprintf(
			"%s max unavailable, %s max surge", percentOrNumber(u.MaxUnavailable), percentOrNumber(u.MaxSurge))})
	}
	if o.Spec.Paused {
		d.fields = append(d.fields, field{key: "Paused", value: "true"})
	}
	for _, c := range s.Conditions {
		d.conditions = append(d.conditions, condition(c.Type, c.Status, c.Reason, c.Message))
	}
	return d
}

func statefulSetDetails(o *appsv1.StatefulSet) workloadDetails {
	s := o.Status
	d := workloadDetails{meta: o.ObjectMeta, selector: o.Spec.Selector, template: &o.Spec.Template, fields: []field{
		{key: "Replicas", value: fmt.Sprintf("%d desired | %d updated | %d total | %d ready | %d available",
			orOne(o.Spec.Replicas), s.UpdatedReplicas, s.Replicas, s.ReadyReplicas, s.AvailableReplicas)},
		{key: "Pod Management", value: string(o.Spec.PodManagementPolicy)},
		{key: "Update Strategy", value: string(o.Spec.UpdateStrategy.Type)},
		{key: "Current Revision", value: orNone(s.CurrentRevision)},
		{key: "Update Revision", value: orNone(s.UpdateRevision)},
	}}
	if u := o.Spec.UpdateStrategy.RollingUpdate; u != nil && u.Partition != nil {
		d.fields = append(d.fields, field{key: "Partition", value: fmt.Sprint(*u.Partition)})
	}
	for _, c := range s.Conditions {
		d.conditions = append(d.conditions, condition(c.Type, c.Status, c.Reason, c.Message))
	}
	return d
}

func daemonSetDetails(o *appsv1.DaemonSet) workloadDetails {
	s := o.Status
	number := func(key string, n int32) field { return field{key: key, value: fmt.Sprint(n)} }
	d := workloadDetails{meta: o.ObjectMeta, selector: o.Spec.Selector, template: &o.Spec.Template, fields: []field{
		number("Desired Number of Nodes Scheduled", s.DesiredNumberScheduled),
		number("Current Number of Nodes Scheduled", s.CurrentNumberScheduled),
		number("Number of Nodes Scheduled with Up-to-date Pods", s.UpdatedNumberScheduled),
		number("Number of Nodes Scheduled with Available Pods", s.NumberAvailable),
		number("Number of Nodes Misscheduled", s.NumberMisscheduled),
		{key: "Update Strategy", value: string(o.Spec.UpdateStrategy.Type)},
	}}
	if u := o.Spec.UpdateStrategy.RollingUpdate; u != nil {
		d.fields = append(d.fields, field{key: "RollingUpdateStrategy", value: fmt.Sprintf(
			"%s max unavailable, %s max surge", percentOrNumber(u.MaxUnavailable), percentOrNumber(u.MaxSurge))})
	}
	for _, c := range s.Conditions {
		d.conditions = append(d.conditions, condition(c.Type, c.Status, c.Reason, c.Message))
	}
	return d
}

func jobDetails(o *batchv1.Job, now time.Time) workloadDetails {
	s := o.Status
	completions := "<unset>"
	if o.Spec.Completions != nil {
		completions = fmt.Sprint(*o.Spec.Completions)
	}
	d := workloadDetails{meta: o.ObjectMeta, selector: o.Spec.Selector, template: &o.Spec.Template, fields: []field{
		{key: "Parallelism", value: fmt.Sprint(orOne(o.Spec.Parallelism))},
		{key: "Completions", value: completions},
	}}
	if o.Spec.CompletionMode != nil {
		d.fields = append(d.fields, field{key: "Completion Mode", value: string(*o.Spec.CompletionMode)})
	}
	if o.Spec.Suspend != nil {
		d.fields = append(d.fields, field{key: "Suspend", value: fmt.Sprint(*o.Spec.Suspend)})
	}
	if o.Spec.BackoffLimit != nil {
		d.fields = append(d.fields, field{key: "Backoff Limit", value: fmt.Sprint(*o.Spec.BackoffLimit)})
	}
	if s.StartTime != nil {
		d.fields = append(d.fields, field{key: "Start Time", value: moment(s.StartTime.Time)})
	}
	if s.CompletionTime != nil {
		d.fields = append(d.fields, field{key: "Completed At", value: moment(s.CompletionTime.Time)})
	}
	if s.StartTime != nil {
		end := now
		if s.CompletionTime != nil {
			end = s.CompletionTime.Time
		}
		d.fields = append(d.fields, field{key: "Duration", value: human(end.Sub(s.StartTime.Time))})
	}
	d.fields = append(d.fields, field{key: "Pods Statuses", value: fmt.Sprintf(
		"%d Active / %d Succeeded / %d Failed", s.Active, s.Succeeded, s.Failed)})
	if s.CompletedIndexes != "" {
		d.fields = append(d.fields, field{key: "Completed Indexes", value: s.CompletedIndexes})
	}
	for _, c := range s.Conditions {
		d.conditions = append(d.conditions, condition(c.Type, c.Status, c.Reason, c.Message))
	}
	return d
}

func cronJobDetails(o *batchv1.CronJob, now time.Time) workloadDetails {
	spec, s := &o.Spec, o.Status
	deadline, last, zone := "<unset>", none, ""
	if spec.StartingDeadlineSeconds != nil {
		deadline = fmt.Sprintf("%ds", *spec.StartingDeadlineSeconds)
	}
	if s.LastScheduleTime != nil {
		last = moment(s.LastScheduleTime.Time) + " (" + ago(now, s.LastScheduleTime.Time) + " ago)"
	}
	if spec.TimeZone != nil {
		zone = *spec.TimeZone
	}
	d := workloadDetails{meta: o.ObjectMeta, template: &spec.JobTemplate.Spec.Template, fields: []field{
		{key: "Schedule", value: spec.Schedule},
		{key: "Time Zone", value: orNone(zone)},
		{key: "Concurrency Policy", value: string(spec.ConcurrencyPolicy)},
		{key: "Suspend", value: fmt.Sprint(spec.Suspend != nil && *spec.Suspend)},
		{key: "Successful Job History Limit", value: fmt.Sprint(orOne(spec.SuccessfulJobsHistoryLimit))},
		{key: "Failed Job History Limit", value: fmt.Sprint(orOne(spec.FailedJobsHistoryLimit))},
		{key: "Starting Deadline Seconds", value: deadline},
		{key: "Last Schedule Time", value: last},
	}}
	var active []string
	for _, ref := range s.Active {
		active = append(active, ref.Name)
	}
	d.fields = append(d.fields, linesField("Active Jobs", active))
	return d
}
