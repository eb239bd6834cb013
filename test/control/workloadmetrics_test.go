package control

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"berth/test/simnodes"
)

// metricsManifest has a workload of each kind. Index 1 of the Job "indexed" fails, by a rule of its policy.
const metricsManifest = `apiVersion: batch/v1
kind: Job
metadata: {name: indexed}
spec:
  completions: 4
  parallelism: 4
  completionMode: Indexed
  backoffLimitPerIndex: 0
  podFailurePolicy: {rules: [{action: FailIndex, onExitCodes: {operator: In, values: [1]}}]}
  template: {spec: {restartPolicy: Never, containers: [{name: c, image: example/index1fails}]}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: plain}
spec:
  ttlSecondsAfterFinished: 0
  template: {spec: {restartPolicy: Never, containers: [{name: c, image: example/ends}]}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: queued}
spec:
  managedBy: example.com/queue
  template: {spec: {restartPolicy: Never, containers: [{name: c, image: example/ends}]}}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: tick}
spec:
  schedule: "@every 1s"
  jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: example/ends}]}}}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 3
  podManagementPolicy: Parallel
  updateStrategy: {rollingUpdate: {maxUnavailable: 2}}
  selector: {matchLabels: {app: db}}
  template: {metadata: {labels: {app: db}}, spec: {containers: [{name: c, image: example/serve}]}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 4
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: example/serve}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: nowhere}
spec: {nodeSelector: {disk: none}, containers: [{name: c, image: example/serve}]}
---
apiVersion: v1
kind: Pod
metadata: {name: gated}
spec: {schedulingGates: [{name: example.com/gate}], containers: [{name: c, image: example/serve}]}
`

// autoscalerManifest scales down the Deployment of metricsManifest.
const autoscalerManifest = `apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  maxReplicas: 3
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}]
`

// TestWorkloadMetrics runs workloads on a server of its own, so that it knows the values of the metrics of its
// controllers. Their names and labels are those of kube-controller-manager.
func TestWorkloadMetrics(t *testing.T) {
	t.Parallel()
	p := Launch(t)
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	client, err := p.WaitReady(ctx)
	if err != nil {
		t.Fatal(err)
	}
	runSimulatedNode(t, client)
	if out, err := RunKubectl(t, p.Kubeconfig(), metricsManifest, "apply", "--validate=false", "-f", "-"); err != nil {
		t.Fatalf("kubectl apply: %v\n%s", err, out)
	}
	// Only the deletion of a ready pod counts for sorting_deletion_age_ratio.
	out, err := RunKubectl(t, p.Kubeconfig(), "", "rollout", "status", "deployment/web", "--timeout=4m")
	if err != nil {
		t.Fatalf("kubectl rollout status: %v\n%s", err, out)
	}
	out, err = RunKubectl(t, p.Kubeconfig(), autoscalerManifest, "apply", "--validate=false", "-f", "-")
	if err != nil {
		t.Fatalf("kubectl apply: %v\n%s", err, out)
	}
	want := []string{
		`job_controller_jobs_finished_total{completion_mode="Indexed",reason="FailedIndexes",result="failed"} 1`,
		`job_controller_job_pods_finished_total{completion_mode="Indexed",result="succeeded"} 3`,
		`job_controller_job_pods_finished_total{completion_mode="Indexed",result="failed"} 1`,
		`job_controller_job_finished_indexes_total{backoffLimit="perIndex",status="succeeded"} 3`,
		`job_controller_job_finished_indexes_total{backoffLimit="perIndex",status="failed"} 1`,
		`job_controller_pod_failures_handled_by_failure_policy_total{action="FailIndex"} 1`,
		`job_controller_jobs_by_external_controller_total{controller_name="example.com/queue"} 1`,
		`job_controller_jobs_finished_total{completion_mode="NonIndexed",reason="CompletionsReached",` +
			`result="succeeded"}`,
		`job_controller_job_pods_creation_total{reason="new",status="succeeded"}`,
		`job_controller_terminated_pods_tracking_finalizer_total{event="add"}`,
		`job_controller_terminated_pods_tracking_finalizer_total{event="delete"}`,
		`job_controller_job_syncs_total{action="pods_created",completion_mode="Indexed",result="success"}`,
		`job_controller_job_sync_duration_seconds_count{action="pods_created",completion_mode="Indexed",` +
			`result="success"}`,
		`ttl_after_finished_controller_job_deletion_duration_seconds_count 1`,
		`cronjob_controller_job_creation_skew_duration_seconds_count`,
		`statefulset_controller_statefulset_max_unavailable{pod_management_policy="Parallel",statefulset_name="db",` +
			`statefulset_namespace="default"} 2`,
		`statefulset_controller_statefulset_unavailable_replicas{pod_management_policy="Parallel",` +
			`statefulset_name="db",statefulset_namespace="default"} 0`,
		// The autoscaler removes the pod above its maximum, and has no usage of the others.
		`replicaset_controller_sorting_deletion_age_ratio_count 1`,
		`horizontal_pod_autoscaler_controller_num_horizontal_pod_autoscalers 1`,
		`horizontal_pod_autoscaler_controller_reconciliations_total{action="scale_down",error="none"} 1`,
		`horizontal_pod_autoscaler_controller_desired_replicas{hpa_name="web",namespace="default"} 3`,
		`scheduler_schedule_attempts_total{profile="default-scheduler",result="scheduled"}`,
		`scheduler_schedule_attempts_total{profile="default-scheduler",result="unschedulable"}`,
		`scheduler_scheduling_attempt_duration_seconds_count{profile="default-scheduler",result="scheduled"}`,
		`scheduler_scheduling_algorithm_duration_seconds_count`,
		`scheduler_pod_scheduling_attempts_count`,
		`scheduler_pod_scheduling_sli_duration_seconds_count{attempts="1"}`,
		`scheduler_preemption_attempts_total`,
		`scheduler_pending_pods{queue="unschedulable"} 1`,
		`scheduler_pending_pods{queue="gated"} 1`,
		`scheduler_unschedulable_pods{plugin="NodeAffinity",profile="default-scheduler"} 1`,
		`scheduler_cache_size{type="nodes"} 1`,
	}
	waitForMetrics(ctx, t, client, want)
	// The values of a StatefulSet end with it.
	if out, err := RunKubectl(t, p.Kubeconfig(), "", "delete", "statefulset", "db"); err != nil {
		t.Fatalf("kubectl delete: %v\n%s", err, out)
	}
	for {
		text, err := metricsOf(ctx, client)
		if err == nil && !strings.Contains(text, `statefulset_name="db"`) {
			return
		}
		if pause(ctx) != nil {
			t.Fatalf("the metrics of a deleted StatefulSet remain: %v", err)
		}
	}
}

// waitForMetrics waits until the server serves all lines. A line without a value may have any but 0.
func waitForMetrics(ctx context.Context, t *testing.T, client kubernetes.Interface, want []string) {
	t.Helper()
	for {
		text, err := metricsOf(ctx, client)
		lines := strings.Split(text, "\n")
		var missing []string
		for _, w := range want {
			if !slices.ContainsFunc(lines, func(line string) bool {
				rest, is := strings.CutPrefix(line, w)
				return is && (rest == "" || strings.HasPrefix(rest, " ") && rest != " 0")
			}) {
				missing = append(missing, w)
			}
		}
		if err == nil && len(missing) == 0 {
			return
		}
		if pause(ctx) != nil {
			var got []string
			for _, line := range lines {
				if strings.Contains(line, "_controller_") && !strings.Contains(line, "_bucket") {
					got = append(got, line)
				}
			}
			t.Fatalf("missing metrics:\n%s\ngot:\n%s\n%v", strings.Join(missing, "\n"), strings.Join(got, "\n"), err)
		}
	}
}

func metricsOf(ctx context.Context, client kubernetes.Interface) (string, error) {
	text, err := client.CoreV1().RESTClient().Get().AbsPath("/metrics").Do(ctx).Raw()
	return string(text), err
}

// runSimulatedNode runs a node on which pods end as their image says, until the test ends.
func runSimulatedNode(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	factory := informers.NewSharedInformerFactory(client, 0)
	nodes, err := simnodes.New(client, factory.Core().V1().Pods(), simnodes.Options{Names: []string{"node"},
		Report: func(pod *corev1.Pod) {
			index := pod.Annotations["batch.kubernetes.io/job-completion-index"]
			switch image := pod.Spec.Containers[0].Image; {
			case image == "example/index1fails" && index == "1":
				simnodes.Fail(pod)
			case image == "example/serve":
				simnodes.Serve(pod)
			default:
				simnodes.Succeed(pod)
			}
		}})
	if err != nil {
		t.Fatal(err)
	}
	if err := nodes.Register(t.Context()); err != nil {
		t.Fatal(fmt.Errorf("register: %w", err))
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); nodes.Run(ctx) }()
	factory.Start(ctx.Done())
	t.Cleanup(func() {
		cancel()
		<-done
		factory.Shutdown()
	})
}
