package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/control/printers"
	"berth/nodeapi"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
)

// jobWith returns a Job with a condition, unless kind is empty.
func jobWith(kind batchv1.JobConditionType, status corev1.ConditionStatus, change func(*batchv1.Job)) *batchv1.Job {
	j := &batchv1.Job{ObjectMeta: object("default", "count", time.Hour)}
	j.Spec.Template, j.Spec.Parallelism = webTemplate(), ptr.To[int32](1)
	j.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"job": "count"}}
	j.Status.StartTime = new(before(30 * time.Minute))
	if kind != "" {
		j.Status.Conditions = []batchv1.JobCondition{
			{Type: kind, Status: status, LastTransitionTime: before(10 * time.Minute)},
		}
	}
	change(j)
	return j
}

// jobsInStates returns a Job in each state that kubectl distinguishes.
func jobsInStates() (out []runtime.Object) {
	same := func(*batchv1.Job) {}
	deleted := func(j *batchv1.Job) { j.DeletionTimestamp = new(before(time.Minute)) }
	for _, kind := range []batchv1.JobConditionType{
		"", batchv1.JobComplete, batchv1.JobFailed, batchv1.JobSuspended, batchv1.JobFailureTarget,
		batchv1.JobSuccessCriteriaMet,
	} {
		for _, status := range []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse} {
			out = append(out, jobWith(kind, status, same), jobWith(kind, status, deleted))
		}
	}
	return append(out,
		jobWith("", "", func(j *batchv1.Job) { j.Spec.Completions = ptr.To[int32](4) }),
		jobWith("", "", func(j *batchv1.Job) { j.Spec.Parallelism = ptr.To[int32](3) }),
		jobWith("", "", func(j *batchv1.Job) { j.Status.StartTime = nil }),
		jobWith(batchv1.JobComplete, corev1.ConditionTrue, func(j *batchv1.Job) {
			j.Status.CompletionTime = new(before(20 * time.Minute))
		}))
}

// TestWorkloadRowsAreThoseOfTheServer compares the columns of "berth get" with those that berth-control sends to
// kubectl, for objects with defaults.
func TestWorkloadRowsAreThoseOfTheServer(t *testing.T) {
	t.Parallel()
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	two := webTemplate()
	two.Spec.NodeSelector = map[string]string{"disk": "ssd", "arch": "arm64"}
	two.Spec.Containers = append(two.Spec.Containers, corev1.Container{Name: "proxy", Image: "envoy:1"})
	cron := func(change func(*batchv1.CronJob)) *batchv1.CronJob {
		c := &batchv1.CronJob{ObjectMeta: object("default", "tick", time.Hour)}
		c.Spec.Schedule, c.Spec.JobTemplate.Spec.Template = "@daily", webTemplate()
		c.Spec.Suspend = new(false)
		change(c)
		return c
	}
	objects := append(jobsInStates(),
		&appsv1.Deployment{ObjectMeta: object("default", "web", time.Hour),
			Spec:   appsv1.DeploymentSpec{Replicas: ptr.To[int32](3), Selector: selector, Template: two},
			Status: appsv1.DeploymentStatus{ReadyReplicas: 2, UpdatedReplicas: 1, AvailableReplicas: 4}},
		&appsv1.ReplicaSet{ObjectMeta: object("default", "web-1", time.Hour),
			Spec:   appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](3), Selector: selector, Template: webTemplate()},
			Status: appsv1.ReplicaSetStatus{Replicas: 2, ReadyReplicas: 1}},
		&appsv1.StatefulSet{ObjectMeta: object("default", "db", time.Hour),
			Spec:   appsv1.StatefulSetSpec{Replicas: ptr.To[int32](3), Selector: selector, Template: two},
			Status: appsv1.StatefulSetStatus{ReadyReplicas: 2}},
		&appsv1.DaemonSet{ObjectMeta: object("default", "agent", time.Hour),
			Spec: appsv1.DaemonSetSpec{Selector: selector, Template: two},
			Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 1, CurrentNumberScheduled: 2, NumberReady: 3,
				UpdatedNumberScheduled: 4, NumberAvailable: 5}},
		&appsv1.DaemonSet{ObjectMeta: object("default", "all", time.Hour)},
		cron(func(*batchv1.CronJob) {}),
		cron(func(c *batchv1.CronJob) { c.Spec.Suspend = nil }),
		cron(func(c *batchv1.CronJob) {
			c.Spec.Suspend, c.Spec.TimeZone = new(true), new("Europe/Berlin")
			c.Status.LastScheduleTime = new(before(time.Minute))
			c.Status.Active = []corev1.ObjectReference{{Name: "tick-1"}}
		}))
	for _, o := range objects {
		kind := schema.GroupKind{Group: "apps", Kind: strings.TrimPrefix(fmt.Sprintf("%T", o), "*v1.")}
		if strings.HasSuffix(kind.Kind, "Job") {
			kind.Group = "batch"
		}
		table, err := printers.ColumnsFor(kind).Table(o, now, true)
		if err != nil {
			t.Fatal(err)
		}
		for _, wide := range []bool{false, true} {
			var header, cells []string
			for i, c := range table.ColumnDefinitions {
				if c.Priority == 0 || wide {
					header = append(header, strings.ToUpper(c.Name))
					cells = append(cells, fmt.Sprint(table.Rows[0].Cells[i]))
				}
			}
			raw, err := json.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			row, err := workloadRow(nodeapi.Workload{Kind: kind.Kind, Object: raw}, now, wide)
			titles := workloadHeader(kind.Kind, wide)
			if err != nil || !slices.Equal(row, cells) || !slices.Equal(titles, header) {
				t.Errorf("%s, wide %v: %v\n got %q %q\nwant %q %q", kind.Kind, wide, err, titles, row, header, cells)
			}
		}
	}
}

// TestGetWorkloads checks the tables of "berth get", what it prints below them, and the wide columns.
func TestGetWorkloads(t *testing.T) {
	t.Parallel()
	h := fakeAgent()
	h.Workloads = func(context.Context, nodeapi.WorkloadsRequest) (out []nodeapi.Workload, err error) {
		described := describedWorkloads()
		for _, name := range []string{"Deployment/web", "DaemonSet/agent", "Job/tick-29631", "CronJob/tick"} {
			out = append(out, described[name].Workload)
		}
		return out, nil
	}
	path := socket(t, h)
	for name, args := range map[string][]string{
		"get-workloads":      {"get", "all"},
		"get-workloads-wide": {"get", "all", "-o", "wide"},
	} {
		stdout, stderr, code := run(t, path, invocation{args: args})
		golden(t, name+".golden", fmt.Sprintf("$ berth %s\n%s--- stderr\n%s--- exit %d\n", strings.Join(args, " "),
			stdout, stderr, code))
	}
}
