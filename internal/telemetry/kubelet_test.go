package telemetry

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestKubeletMetrics(t *testing.T) {
	t.Parallel()
	m := NewMetrics("n1", Build{})
	failed := errors.New("failed")
	m.ObserveRelist(time.Unix(1000, 0), 0, 20*time.Millisecond)
	m.ObserveRelist(time.Unix(1045, 500e6), 45*time.Second, 30*time.Millisecond)
	m.CountEventStream(nil)
	m.CountEventStream(failed)
	m.CountEventStream(nil)
	m.ObserveEventDelay(-time.Second) // the clock was set back
	m.ObserveEventDelay(3 * time.Second)
	m.ObserveStorageOperation("kubernetes.io/empty-dir", "volume_mount", 300*time.Millisecond, nil)
	m.ObserveStorageOperation("kubernetes.io/secret", "volume_mount", time.Second, failed)
	m.ObserveRequest(Request{Method: "GET", Host: "server:6443", Code: 200, Duration: time.Second})
	m.ObserveRequest(Request{Method: "GET", Host: "server:6443", Code: 200, Watch: true, Duration: time.Hour})
	m.ObserveRequest(Request{Method: "PATCH", Host: "server:6443"})
	m.CountClientCertificateError()
	m.CountServingCertificateError()
	m.CountServingCertificateError()
	m.ObserveServingCertificateRotation(2 * time.Hour)
	const emptyDir = `volume_plugin="kubernetes.io/empty-dir"`
	got := "\n" + scrape(t, m)
	for _, want := range []string{
		"kubelet_pleg_relist_duration_seconds_count 2",
		"kubelet_pleg_relist_interval_seconds_count 1",
		"kubelet_pleg_relist_interval_seconds_sum 45",
		"kubelet_pleg_last_seen_seconds 1045.5",
		"kubelet_evented_pleg_connection_success_count 2",
		"kubelet_evented_pleg_connection_error_count 1",
		"kubelet_evented_pleg_connection_latency_seconds_sum 3",
		`storage_operation_duration_seconds_sum{migrated="false",operation_name="volume_mount",status="success",` +
			emptyDir + `} 0.3`,
		`storage_operation_errors_total{operation_name="volume_mount",volume_plugin="kubernetes.io/secret"} 1`,
		`rest_client_requests_total{code="200",host="server:6443",method="GET"} 2`,
		`rest_client_requests_total{code="<error>",host="server:6443",method="PATCH"} 1`,
		`rest_client_request_duration_seconds_sum{host="server:6443",verb="GET"} 1`,
		"kubelet_certificate_manager_client_expiration_renew_errors 1",
		"kubelet_server_expiration_renew_errors 2",
		"kubelet_certificate_manager_server_rotation_seconds_sum 7200",
	} {
		if !strings.Contains(got, "\n"+want+"\n") {
			t.Errorf("missing metric %s", want)
		}
	}
	if strings.Contains(got, "\nstorage_operation_errors_total{operation_name=\"volume_mount\","+emptyDir) {
		t.Error("a successful operation was counted as an error")
	}
}

func TestStateIsReadAtEveryScrape(t *testing.T) {
	t.Parallel()
	m := NewMetrics("n1", Build{})
	now := time.Unix(1000, 0)
	s := State{Pods: 2, Volumes: map[VolumeState]int{
		{Plugin: "kubernetes.io/secret"}: 3, {Plugin: "kubernetes.io/secret", Actual: true}: 1,
	}}
	m.registry.MustRegister(stateCollector{func() State { return s }, func() time.Time { return now }})
	got := "\n" + scrape(t, m)
	for _, want := range []string{
		`kubelet_desired_pods{static=""} 2`, `kubelet_desired_pods{static="true"} 0`,
		`kubelet_running_pods 0`, `kubelet_running_containers{container_state="exited"} 0`,
		`volume_manager_total_volumes{plugin_name="kubernetes.io/secret",state="desired_state_of_world"} 3`,
		`volume_manager_total_volumes{plugin_name="kubernetes.io/secret",state="actual_state_of_world"} 1`,
		"kubelet_certificate_manager_client_ttl_seconds +Inf", "berth_store_degraded 0",
	} {
		if !strings.Contains(got, "\n"+want+"\n") {
			t.Errorf("missing metric %s in %s", want, got)
		}
	}
	s = State{
		RunningPods: 1, ClientCertificate: now.Add(time.Hour), ServingCertificate: now.Add(-time.Minute),
		StoreDegraded: true,
	}
	got = "\n" + scrape(t, m)
	for _, want := range []string{
		"kubelet_running_pods 1", "kubelet_certificate_manager_client_ttl_seconds 3600",
		"kubelet_certificate_manager_server_ttl_seconds -60", "berth_store_degraded 1",
	} {
		if !strings.Contains(got, "\n"+want+"\n") {
			t.Errorf("missing metric %s", want)
		}
	}
}
