package main

import (
	"errors"
	"io"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/agent/metrics"
	"berth/agent/plan"
	"berth/agent/pod"
	"berth/cri/crilog"
	"berth/internal/telemetry"
)

// TestCompletionRejectsUnknownShell ensures that no help text ends up in a completion file.
func TestCompletionRejectsUnknownShell(t *testing.T) {
	for shell, known := range map[string]bool{"bash": true, "fish": true, "": true, "tcsh": false} {
		cmd := root()
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		cmd.SetArgs(slices.DeleteFunc([]string{"completion", shell}, func(s string) bool { return s == "" }))
		if err := cmd.Execute(); (err == nil) != known {
			t.Errorf("completion %s: %v", shell, err)
		}
	}
}

func TestAgentMetricsAreExported(t *testing.T) {
	m := telemetry.NewMetrics("n1", telemetry.Build{})
	agentMetrics := metrics.New(m, func(*corev1.Pod) string { return "kata" })
	now := time.Now()
	finish := func(a plan.Action, err error) {
		agentMetrics.Pods.ActionFinished(
			&corev1.Pod{},
			plan.Outcome{
				Action:     a,
				StartedAt:  now,
				FinishedAt: now.Add(time.Second),
				Err:        err,
				Image:      &plan.Image{Size: 5 << 20},
			},
		)
	}
	canceled := &plan.Error{Kind: plan.Canceled, Err: errors.New("canceled")}
	missing := &plan.Error{Kind: plan.Invalid, Reason: "CreateContainerConfigError", Err: errors.New("no ConfigMap c")}
	finish(plan.RunSandbox{}, errors.New("no network"))
	finish(plan.RunSandbox{}, nil)
	finish(plan.PullImage{Container: "a"}, canceled)
	finish(plan.PullImage{Container: "a"}, errors.New("denied"))
	finish(plan.PullImage{Container: "a"}, nil)
	finish(plan.StartContainer{Name: "i", Kind: plan.Init}, nil)
	finish(plan.StartContainer{Name: "s", Kind: plan.Sidecar}, nil)
	finish(plan.StartContainer{Name: "a"}, missing)
	finish(plan.StartContainer{Name: "a", Attempt: 1}, missing)
	finish(plan.StartContainer{Name: "a", Attempt: 1}, nil)
	finish(plan.StartContainer{Name: "e", Kind: plan.Ephemeral}, canceled)
	finish(plan.StopContainer{ID: "1"}, nil)
	finish(plan.RemoveContainer{ID: "1", Garbage: true}, nil)
	finish(plan.RemoveContainer{ID: "1", Garbage: true}, errors.New("busy"))
	finish(plan.RemoveContainer{ID: "2"}, nil) // its pod is deleted
	finish(plan.RemoveSandbox{ID: "3", Garbage: true}, nil)
	finish(plan.RemoveSandbox{ID: "4"}, nil)
	(&berth{metrics: m}).logsCollected(crilog.Collected{Links: 3, Logs: 2}, nil)
	finish(plan.EnsureCgroup{}, nil)
	finish(plan.ResizeCgroup{}, nil)
	finish(plan.RemoveCgroup{}, errors.New("busy"))
	p := &corev1.Pod{}
	p.CreationTimestamp.Time = now.Add(-time.Hour)
	inits := corev1.PodStatus{
		InitContainerStatuses: []corev1.ContainerStatus{
			{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				StartedAt: metav1.NewTime(now), FinishedAt: metav1.NewTime(now.Add(time.Second)),
			}}},
		},
	}
	agentMetrics.Pods.PodStarted(
		pod.Start{
			Pod:      p,
			Status:   inits,
			At:       now,
			Total:    3 * time.Second,
			Overhead: 250 * time.Millisecond,
			Pulling:  500 * time.Millisecond,
		},
	)
	agentMetrics.Pods.PodRejected("OutOfcpu")
	agentMetrics.AuditFinished()
	agentMetrics.AuditFinished()
	agentMetrics.EventStreamLost()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{
		"kubelet_started_pods_total 2",
		"kubelet_started_pods_errors_total 1",
		`kubelet_started_containers_total{container_type="container"} 3`,
		`kubelet_started_containers_total{container_type="init_container"} 2`,
		`kubelet_started_containers_errors_total{code="CreateContainerConfigError",container_type="container"} 2`,
		"berth_container_restarts_total 1",
		`berth_garbage_collected_total{kind="container"} 1`,
		`berth_garbage_collected_total{kind="sandbox"} 1`,
		`berth_garbage_collected_total{kind="log_link"} 3`,
		`berth_garbage_collected_total{kind="container_logs"} 2`,
		`kubelet_image_pull_duration_seconds_count{image_size_in_bytes="0-10MB"} 1`,
		`berth_actions_total{result="canceled",verb="pull"} 1`,
		`berth_actions_total{result="error",verb="pull"} 1`,
		`berth_actions_total{result="ok",verb="stop"} 1`,
		"kubelet_pod_start_duration_seconds_sum 3",
		"kubelet_pod_start_total_duration_seconds_sum 3",
		"kubelet_pod_start_sli_duration_seconds_sum 1.5",
		`kubelet_run_podsandbox_duration_seconds_count{runtime_handler="kata"} 2`,
		`kubelet_run_podsandbox_errors_total{runtime_handler="kata"} 1`,
		`kubelet_cgroup_manager_duration_seconds_count{operation_type="create"} 1`,
		`kubelet_cgroup_manager_duration_seconds_count{operation_type="update"} 1`,
		`kubelet_cgroup_manager_duration_seconds_count{operation_type="destroy"} 1`,
		"berth_pod_start_overhead_seconds_sum 0.25",
		`kubelet_admission_rejections_total{reason="OutOfcpu"} 1`,
		"berth_audits_total 2",
		"berth_audit_divergences_total 0",
		"berth_runtime_events_missed_total 1",
	} {
		if !strings.Contains(w.Body.String(), "\n"+want+"\n") {
			t.Errorf("missing metric %s", want)
		}
	}
	if strings.Contains(w.Body.String(), "ephemeral_container") {
		t.Error("canceled start was counted")
	}
}
