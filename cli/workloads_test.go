package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"berth/nodeapi"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// workloadManifest makes the fake agent plan workloads.
const workloadManifest = "workloads"

func encodedObject(o any) json.RawMessage {
	raw, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	return raw
}

func webTemplate() corev1.PodTemplateSpec {
	t := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}}
	t.Spec.Containers = []corev1.Container{{Name: "app", Image: "nginx:1.14.2"}}
	return t
}

// describedWorkloads are one workload of each kind.
func describedWorkloads() map[string]nodeapi.WorkloadDescription {
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	third := intstr.FromString("25%")
	deployment := appsv1.Deployment{ObjectMeta: object("default", "web", time.Hour)}
	deployment.Labels = map[string]string{"app": "web"}
	deployment.Annotations = map[string]string{"deployment.kubernetes.io/revision": "2"}
	deployment.Spec = appsv1.DeploymentSpec{Replicas: ptr.To[int32](3), Selector: selector, Template: webTemplate(),
		Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &third, MaxUnavailable: &third}}}
	deployment.Status = appsv1.DeploymentStatus{Replicas: 3, UpdatedReplicas: 2, AvailableReplicas: 2,
		UnavailableReplicas: 1, Conditions: []appsv1.DeploymentCondition{
			{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue, Reason: "MinimumReplicasAvailable",
				Message: "Deployment has minimum availability."}}}
	set := appsv1.ReplicaSet{ObjectMeta: object("default", "web-7d4b", time.Hour)}
	set.Spec.Replicas, set.Status = ptr.To[int32](2), appsv1.ReplicaSetStatus{Replicas: 2, ReadyReplicas: 1}
	template := webTemplate()
	event := corev1.Event{Type: "Normal", Reason: "ScalingReplicaSet", Count: 1, LastTimestamp: before(time.Minute),
		Message: "Scaled up replica set web-7d4b from 0 to 2"}

	stateful := appsv1.StatefulSet{ObjectMeta: object("default", "db", time.Hour)}
	stateful.Spec = appsv1.StatefulSetSpec{Replicas: ptr.To[int32](2), Selector: selector, Template: webTemplate(),
		PodManagementPolicy: appsv1.OrderedReadyPodManagement, UpdateStrategy: appsv1.StatefulSetUpdateStrategy{
			Type:          appsv1.RollingUpdateStatefulSetStrategyType,
			RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: ptr.To[int32](1)}}}
	stateful.Status = appsv1.StatefulSetStatus{Replicas: 2, ReadyReplicas: 1, UpdatedReplicas: 1, AvailableReplicas: 1,
		CurrentRevision: "db-1", UpdateRevision: "db-2"}

	daemon := appsv1.DaemonSet{ObjectMeta: object("default", "agent", time.Hour)}
	daemon.Spec = appsv1.DaemonSetSpec{Selector: selector, Template: webTemplate(),
		UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}}
	daemon.Status = appsv1.DaemonSetStatus{DesiredNumberScheduled: 1, CurrentNumberScheduled: 1, NumberAvailable: 1}

	job := batchv1.Job{ObjectMeta: object("default", "tick-29631", 10*time.Minute)}
	job.OwnerReferences = []metav1.OwnerReference{{Kind: "CronJob", Name: "tick"}}
	job.Spec = batchv1.JobSpec{Selector: selector, Template: webTemplate(), Completions: ptr.To[int32](3),
		Parallelism: ptr.To[int32](2), BackoffLimit: ptr.To[int32](6), Suspend: new(false),
		CompletionMode: ptr.To(batchv1.IndexedCompletion)}
	job.Status = batchv1.JobStatus{Active: 1, Succeeded: 2, CompletedIndexes: "0,1",
		StartTime: new(before(10 * time.Minute))}

	cron := batchv1.CronJob{ObjectMeta: object("default", "tick", time.Hour)}
	cron.Spec = batchv1.CronJobSpec{Schedule: "*/10 * * * *", TimeZone: new("Europe/Berlin"),
		ConcurrencyPolicy: batchv1.ForbidConcurrent, StartingDeadlineSeconds: ptr.To[int64](60),
		SuccessfulJobsHistoryLimit: ptr.To[int32](3), FailedJobsHistoryLimit: ptr.To[int32](1)}
	cron.Spec.JobTemplate.Spec.Template = webTemplate()
	cron.Status = batchv1.CronJobStatus{LastScheduleTime: new(before(10 * time.Minute)),
		Active: []corev1.ObjectReference{{Name: "tick-29631"}}}

	jobView := nodeapi.Workload{Kind: "Job", Namespace: "default", Name: "tick-29631", Object: encodedObject(job)}
	of := func(kind, name string, o any) nodeapi.Workload {
		return nodeapi.Workload{Kind: kind, Namespace: "default", Name: name, Object: encodedObject(o),
			File: "/etc/berth/pods/" + name + ".yaml"}
	}
	web := of("Deployment", "web", deployment)
	web.Overrides = map[string]string{"scale": "3 replicas"}
	web.Revisions = []nodeapi.WorkloadRevision{{Revision: 1, Template: &template},
		{Revision: 2, ChangeCause: "new image", Template: &template}}
	web.Events = []corev1.Event{event}
	web.Warnings = []nodeapi.Warning{{Object: "Deployment web", Message: "the API server does not know it"}}
	return map[string]nodeapi.WorkloadDescription{
		"Deployment/web": {Workload: web, Pods: []corev1.Pod{webPod(), crashPod()}, Children: []nodeapi.Workload{
			{Kind: "ReplicaSet", Namespace: "default", Name: "web-7d4b", Object: encodedObject(set)},
		}},
		"ReplicaSet/web-7d4b": {Workload: nodeapi.Workload{Kind: "ReplicaSet", Name: "web-7d4b",
			Object: encodedObject(set)}},
		"StatefulSet/db":  {Workload: of("StatefulSet", "db", stateful)},
		"DaemonSet/agent": {Workload: of("DaemonSet", "agent", daemon)},
		"Job/tick-29631":  {Workload: jobView, Pods: []corev1.Pod{donePod()}},
		"CronJob/tick":    {Workload: of("CronJob", "tick", cron), Children: []nodeapi.Workload{jobView}},
	}
}

func workloadExplanation() nodeapi.WorkloadExplanation {
	return nodeapi.WorkloadExplanation{
		Kind: "Deployment", Namespace: "default", Name: "web",
		Summary: "Deployment default/web: 2 of 3 pods are ready",
		WaitingFor: []nodeapi.WaitReason{
			{Reason: "BackOff", Message: "a failed pod is replaced", Failures: 2, Until: now.Add(15 * time.Second)},
			{Reason: "CrashLoopBackOff", Target: `pod web-7d4b-x container "app"`, Message: "back-off 10s",
				Since: now.Add(-time.Minute), Until: now.Add(5 * time.Second)},
		},
		Next: []nodeapi.Step{{Action: "CreatePod", Target: "web-7d4b-y"},
			{Action: "DeletePod", Target: "web-5f-z", After: "pod web-7d4b-y is ready"}},
		Pods: []nodeapi.PodExplanation{{Namespace: "default", Name: "web-7d4b-x"}},
	}
}

func workloadPlans() nodeapi.PlanResult {
	step := func(action, pod, after, rejection string) nodeapi.WorkloadStep {
		return nodeapi.WorkloadStep{Action: action, Pod: pod, After: after, Rejection: rejection}
	}
	return nodeapi.PlanResult{Workloads: []nodeapi.WorkloadPlan{
		{
			Kind: "Deployment", Namespace: "default", Name: "web", Change: nodeapi.Update,
			Fields:         []string{"spec.replicas", "spec.template.spec.containers[0].image"},
			EndedOverrides: map[string]string{"scale": "5 replicas"},
			Limits:         []nodeapi.Detail{{Name: "replicas", Value: "1"}, {Name: "pods at most", Value: "2"}},
			Steps: []nodeapi.WorkloadStep{step("CreatePod", "web-2-a", "", "OutOfcpu: wants 2, free 1"),
				step("DeletePod", "web-1-b", "pod web-2-a is ready", "")},
			NewPod: &nodeapi.PodPlan{Stages: []nodeapi.StagePlan{{Stage: "build-run",
				Actions: []nodeapi.PlannedAction{{Action: "PullImage", Target: "app", Detail: "nginx:1.15"}}}}},
		},
		{Kind: "CronJob", Namespace: "default", Name: "tick", Change: nodeapi.Create,
			NextSchedule: now.Add(6 * time.Minute)},
		{Kind: "Job", Namespace: "default", Name: "once", Change: nodeapi.Unchanged, Incomplete: true,
			Reasons: []nodeapi.Reason{{Code: "Finished", Detail: "the Job has finished"}}},
		{Kind: "StatefulSet", Namespace: "default", Name: "db", Change: nodeapi.Replace},
	}}
}

// withWorkloads adds workloads to the fake agent.
func withWorkloads(h nodeapi.Handlers) nodeapi.Handlers {
	described := describedWorkloads()
	missing := func(kind, name string) error {
		return apierrors.NewNotFound(schema.GroupResource{Resource: kind}, name)
	}
	h.DescribeWorkload = func(_ context.Context, kind, namespace, name string) (nodeapi.WorkloadDescription, error) {
		d, found := described[kind+"/"+name]
		if !found || namespace != "default" {
			return d, missing(kind, name)
		}
		return d, nil
	}
	h.WhyWorkload = func(_ context.Context, kind, _, name string) (nodeapi.WorkloadExplanation, error) {
		if kind+"/"+name != "Deployment/web" {
			return nodeapi.WorkloadExplanation{}, missing(kind, name)
		}
		return workloadExplanation(), nil
	}
	plan := h.Plan
	h.Plan = func(ctx context.Context, manifest []byte) (nodeapi.PlanResult, error) {
		if string(manifest) == workloadManifest {
			return workloadPlans(), nil
		}
		return plan(ctx, manifest)
	}
	return h
}

func TestCompletionOfWorkloads(t *testing.T) {
	t.Parallel()
	h := withWorkloads(fakeAgent())
	h.Workloads = func(context.Context, nodeapi.WorkloadsRequest) ([]nodeapi.Workload, error) {
		return []nodeapi.Workload{{Kind: "Deployment", Name: "web"}, {Kind: "CronJob", Name: "tick"}}, nil
	}
	path := socket(t, h)
	for typed, want := range map[string]string{
		"":            "crash cronjob/tick deployment/web done web",
		"dep":         "deployment/web",
		"deploy/":     "deploy/web",
		"deployment/": "deployment/web",
		"job/":        "",
		"w":           "web",
	} {
		stdout, _, _ := run(t, path, invocation{args: []string{"__complete", "why", typed}})
		lines := strings.Split(strings.TrimSpace(stdout), "\n")
		if got := strings.Join(lines[:len(lines)-1], " "); got != want {
			t.Errorf("%q is completed to %q, want %q", typed, got, want)
		}
	}
}

func TestWorkloadOutputs(t *testing.T) {
	t.Parallel()
	path := socket(t, withWorkloads(fakeAgent()))
	for _, tt := range []struct {
		name string
		args []string
	}{
		{"describe-deployment", []string{"describe", "deployment/web"}},
		{"describe-replicaset", []string{"describe", "rs", "web-7d4b"}},
		{"describe-statefulset", []string{"describe", "sts/db"}},
		{"describe-daemonset", []string{"describe", "daemonset", "agent"}},
		{"describe-job", []string{"describe", "job/tick-29631"}},
		{"describe-cronjob", []string{"describe", "cronjob/tick"}},
		{"describe-cronjob-yaml", []string{"describe", "cj/tick", "-o", "yaml"}},
		{"describe-no-workload", []string{"describe", "deployment/web", "-n", "other"}},
		{"why-deployment", []string{"why", "deploy/web"}},
		{"why-deployment-json", []string{"why", "deploy", "web", "-o", "json"}},
		{"why-no-workload", []string{"why", "job/web"}},
		{"why-no-type", []string{"why", "pods", "web"}},
		{"plan-workloads", []string{"plan", "-f", "-"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			stdout, stderr, code := run(t, path, invocation{args: tt.args, stdin: strings.NewReader(workloadManifest)})
			got := fmt.Sprintf("$ berth %s\n%s", strings.Join(tt.args, " "), stdout)
			if stderr != "" {
				got += "--- stderr\n" + stderr
			}
			golden(t, tt.name+".golden", got+fmt.Sprintf("--- exit %d\n", code))
		})
	}
}
