package telemetry

import (
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// fill records a value of every metric.
func fill(m *Metrics) {
	m.CountHookHTTPFallback()
	bad := errors.New("bad")
	m.CountPodStart(bad)
	m.ObservePodStart(time.Second, time.Millisecond)
	m.ObservePodStartSLI(3*time.Second, 2700*time.Millisecond)
	m.ObserveRunPodSandbox("", time.Second, bad)
	m.ObserveCgroupOperation("create", time.Millisecond)
	m.CountContainerStart("container", "CreateContainerError", true)
	m.CountContainerStart("init_container", "", true)
	m.ObserveRuntimeOperation("run_podsandbox", time.Second, bad)
	m.ObserveImagePull(5<<20, time.Second)
	m.ObserveStage("prepare", time.Millisecond)
	m.ObserveSync("sync", time.Millisecond)
	m.CountAction("start", "error")
	m.CountAudit()
	m.CountLeakCleanup("shim")
	m.SetDevices("example.com/gpu", 4, 3, 2)
	m.CountDivergence()
	m.CountAdmissionRejection("OutOfcpu")
	m.CountRuntimeEventGap()
	m.ObserveStatusSync(30 * time.Millisecond)
	m.ObserveLeaseRenewal(time.Millisecond, nil)
	m.ObserveLeaseRenewal(time.Second, bad)
	m.ObserveProbe(
		ProbeLabels{Kind: "Readiness", Container: "c", Pod: "web", Namespace: "default", UID: "u1"},
		"failed",
		time.Millisecond,
	)
	m.ObserveProbeDelay(time.Millisecond, 2)
}

func scrape(t *testing.T, m *Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func TestUpstreamMetricNames(t *testing.T) { // T2
	m := NewMetrics("n1", Build{Version: "v0.1.0", Commit: "abc", Kubernetes: "v1.37.2"})
	m.RegisterState(func() State {
		return State{
			Pods: 3, StaticPods: 1, RunningPods: 2, Containers: map[string]int{"running": 2},
			InvalidManifests: 1, StoreDegraded: true,
		}
	})
	fill(m)
	got := scrape(t, m)
	for _, want := range []string{
		`kubelet_running_pods 2`,
		`kubelet_desired_pods{static="true"} 1`,
		`kubelet_desired_pods{static=""} 2`,
		`kubelet_running_containers{container_state="running"} 2`,
		`kubelet_running_containers{container_state="exited"} 0`,
		`kubelet_started_pods_total 1`,
		`kubelet_pod_status_sync_duration_seconds_count 1`,
		`berth_lease_renewals_total{result="ok"} 1`,
		`berth_lease_renewals_total{result="error"} 1`,
		`berth_lease_renewal_duration_seconds_count 1`,
		`kubelet_started_pods_errors_total 1`,
		`kubelet_lifecycle_handler_http_fallbacks_total 1`,
		`kubelet_started_containers_total{container_type="container"} 1`,
		`kubelet_started_containers_errors_total{code="CreateContainerError",container_type="container"} 1`,
		`kubelet_pod_start_duration_seconds_count 1`,
		`kubelet_pod_start_total_duration_seconds_sum 3`,
		`kubelet_pod_start_sli_duration_seconds_bucket{le="0.5"} 1`,
		`kubelet_run_podsandbox_duration_seconds_count{runtime_handler=""} 1`,
		`kubelet_run_podsandbox_errors_total{runtime_handler=""} 1`,
		`kubelet_cgroup_manager_duration_seconds_count{operation_type="create"} 1`,
		`kubelet_pod_worker_duration_seconds_count{operation_type="sync"} 1`,
		`kubelet_runtime_operations_total{operation_type="run_podsandbox"} 1`,
		`kubelet_runtime_operations_errors_total{operation_type="run_podsandbox"} 1`,
		`kubelet_runtime_operations_duration_seconds_count{operation_type="run_podsandbox"} 1`,
		`kubelet_image_pull_duration_seconds_count{image_size_in_bytes="0-10MB"} 1`,
		`kubelet_admission_rejections_total{reason="OutOfcpu"} 1`,
		`kubelet_node_name{node="n1"} 1`,
		`git_version="v1.37.2"`,
		`berth_build_info{git_commit="abc",version="v0.1.0"} 1`,
		`berth_container_restarts_total 1`,
		`berth_stage_duration_seconds_count{stage="prepare"} 1`,
		`berth_pod_sync_duration_seconds_count 1`,
		`berth_pod_start_overhead_seconds_count 1`,
		`berth_audits_total 1`,
		`berth_audit_divergences_total 1`,
		`berth_actions_total{result="error",verb="start"} 1`,
		`berth_invalid_manifest_files 1`,
		`berth_store_degraded 1`,
		`berth_runtime_events_missed_total 1`,
		`berth_leaks_removed_total{kind="shim"} 1`,
		`berth_leftovers_swept_total{kind="shim"} 1`,
		`berth_devices{resource_name="example.com/gpu",state="allocated"} 2`,
		`berth_devices{resource_name="example.com/gpu",state="given"} 2`,
		`process_resident_memory_bytes`,
		`go_goroutines`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("missing metric %s", want)
		}
	}
}

func TestProbeMetricsAreServedSeparately(t *testing.T) {
	m := NewMetrics("n1", Build{})
	fill(m)
	for name, page := range map[string]struct {
		serve http.Handler
		has   [2]bool // of the probes, of the rest
	}{
		"all": {m.Handler(), [2]bool{true, true}}, "probes": {m.ProbesHandler(), [2]bool{true, false}},
		"node": {m.NodeHandler(), [2]bool{false, true}},
	} {
		w := httptest.NewRecorder()
		page.serve.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		text := "\n" + w.Body.String()
		if got := [2]bool{strings.Contains(text, "\nprober_probe_total{"),
			strings.Contains(text, "\nkubelet_started_pods_total ")}; got != page.has {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestRecordingDoesNotAllocate(t *testing.T) { // T3
	m := NewMetrics("n1", Build{})
	fill(m)
	if n := testing.AllocsPerRun(100, func() {
		m.ObserveRuntimeOperation("run_podsandbox", time.Second, nil)
		m.ObserveStage("prepare", time.Millisecond)
		m.ObserveSync("sync", time.Millisecond)
		m.CountAction("start", "ok")
	}); n > 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

func TestImageSizeLabels(t *testing.T) {
	for size, want := range map[uint64]string{0: "N/A", 1: "0-10MB", 10<<20 + 1: "10MB-100MB", 1 << 30: "500MB-1GB",
		200 << 30: "GT100GB"} {
		if got := sizeRange(size); got != want {
			t.Errorf("%d bytes: got %s, want %s", size, got, want)
		}
	}
}

func TestTracesAreDisabledByDefault(t *testing.T) { // T1
	before := runtime.NumGoroutine()
	for _, env := range []map[string]string{
		{},
		{"OTEL_SERVICE_NAME": "x", "OTEL_TRACES_SAMPLER": "always_on"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
	} {
		tr, err := NewTraces(t.Context(), TraceOptions{Getenv: func(k string) string { return env[k] }})
		if err != nil || tr.On() {
			t.Errorf("%v: on %v, error %v", env, tr.On(), err)
		}
		_, span := tr.Tracer("a").Start(t.Context(), "b")
		if span.IsRecording() {
			t.Error("span was recorded")
		}
		span.End()
		if err := tr.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("got %d goroutines, %d before", n, before)
	}
}

func TestUnknownExporterDisablesTraces(t *testing.T) {
	for _, env := range []map[string]string{
		{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "zipkin"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
	} {
		tr, err := NewTraces(t.Context(), TraceOptions{Getenv: func(k string) string { return env[k] }})
		if err == nil || tr == nil || tr.On() {
			t.Fatalf("%v: %+v, error %v", slices.Sorted(maps.Keys(env)), tr, err)
		}
		_, span := tr.Tracer("a").Start(t.Context(), "b")
		span.End()
		if err := tr.Shutdown(t.Context()); err != nil || span.IsRecording() {
			t.Errorf("recording %v, error %v", span.IsRecording(), err)
		}
	}
}

func TestDeleteProbes(t *testing.T) {
	m := NewMetrics("n", Build{})
	fill(m)
	text := scrape(t, m)
	for _, want := range []string{
		`prober_probe_total{container="c",namespace="default",pod="web",pod_uid="u1",` +
			`probe_type="Readiness",result="failed"} 1`,
		`prober_probe_duration_seconds_count{container="c",namespace="default",pod="web",probe_type="Readiness"} 1`,
		"berth_probe_missed_periods_total 2", "berth_probe_lateness_seconds_count 1",
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("%s is missing", want)
		}
	}
	m.DeleteProbes("default", "web", "u1")
	if text := scrape(t, m); strings.Contains(text, `pod="web"`) {
		t.Error("metrics of the deleted pod remain")
	}
}
