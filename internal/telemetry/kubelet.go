package telemetry

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/status"
)

// kubeletMetrics are the upstream metrics of relists, event streams, storage operations, requests to
// the API server, and certificates.
type kubeletMetrics struct {
	relistDuration, relistInterval  prometheus.Histogram
	lastRelist                      prometheus.Gauge
	eventStreams, eventStreamErrors prometheus.Counter
	eventDelay                      prometheus.Histogram
	storage                         *prometheus.HistogramVec
	storageErrors                   *prometheus.CounterVec
	csiCalls                        *prometheus.HistogramVec
	providerDuration                *prometheus.HistogramVec
	providerErrors                  *prometheus.CounterVec
	requests                        *prometheus.CounterVec
	requestDuration                 *prometheus.HistogramVec
	clientRenewErrors               prometheus.Counter
	serverRenewErrors               prometheus.Counter
	serverRotation                  prometheus.Histogram
}

// upstreamKubelet registers the metrics of kubeletMetrics.
func (m *Metrics) upstreamKubelet() {
	m.upstreamRelists()
	m.storage = m.histograms(
		"storage_operation_duration_seconds",
		"Duration in seconds of storage operations.",
		[]float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600},
		"volume_plugin",
		"operation_name",
		"status",
		"migrated",
	)
	m.storageErrors = m.counters(
		"storage_operation_errors_total",
		"Cumulative number of failed storage operations.",
		"volume_plugin",
		"operation_name",
	)
	m.csiCalls = m.histograms(
		"csi_operations_seconds",
		"Duration in seconds of calls of CSI drivers by gRPC status code.",
		[]float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600},
		"driver_name",
		"method_name",
		"grpc_status_code",
		"migrated",
	)
	m.providerDuration = m.histograms(
		"kubelet_credential_provider_plugin_duration",
		"Duration in seconds of calls of credential provider plugins.",
		prometheus.DefBuckets,
		"plugin_name",
	)
	m.providerErrors = m.counters(
		"kubelet_credential_provider_plugin_errors",
		"Cumulative number of failed calls of credential provider plugins.",
		"plugin_name",
	)
	m.requests = m.counters(
		"rest_client_requests_total",
		"Cumulative number of requests to the API server by status code, method and host.",
		"code",
		"method",
		"host",
	)
	m.requestDuration = m.histograms(
		"rest_client_request_duration_seconds",
		"Duration in seconds of requests to the API server by method and host, excluding watches.",
		[]float64{.005, .025, .1, .25, .5, 1, 2, 4, 8, 15, 30, 60},
		"verb",
		"host",
	)
	m.clientRenewErrors = m.counter(
		"kubelet_certificate_manager_client_expiration_renew_errors",
		"Cumulative number of failed requests for the client certificate.",
	)
	m.serverRenewErrors = m.counter(
		"kubelet_server_expiration_renew_errors",
		"Cumulative number of failed requests for the serving certificate.",
	)
	m.serverRotation = m.histogram(
		"kubelet_certificate_manager_server_rotation_seconds",
		"Age in seconds of the previous serving certificate when it was replaced.",
		[]float64{
			60, 3600, 4 * 3600, 86400, 7 * 86400, 30 * 86400, 90 * 86400, 180 * 86400, 360 * 86400, 1440 * 86400,
		},
	)
}

// upstreamRelists registers the metrics of complete runtime lists and of the runtime event stream.
func (m *Metrics) upstreamRelists() {
	m.relistDuration = m.histogram(
		"kubelet_pleg_relist_duration_seconds",
		"Duration in seconds of listing all pods of the runtime.",
		prometheus.DefBuckets,
	)
	m.relistInterval = m.histogram(
		"kubelet_pleg_relist_interval_seconds",
		"Interval in seconds between lists of all pods of the runtime.",
		prometheus.DefBuckets,
	)
	m.lastRelist = m.gauge(
		"kubelet_pleg_last_seen_seconds",
		"Time of the last list of all pods of the runtime since Unix epoch in seconds.",
	)
	m.eventStreams = m.counter(
		"kubelet_evented_pleg_connection_success_count",
		"Cumulative number of event streams obtained from the runtime.",
	)
	m.eventStreamErrors = m.counter(
		"kubelet_evented_pleg_connection_error_count",
		"Cumulative number of event streams of the runtime that could not be established or failed.",
	)
	m.eventDelay = m.histogram(
		"kubelet_evented_pleg_connection_latency_seconds",
		"Delay in seconds from an event in the runtime to its receipt.",
		prometheus.DefBuckets,
	)
}

// ObserveRelist records a list of all pods of the runtime. interval is the time since the previous
// one; 0: none.
func (m *Metrics) ObserveRelist(started time.Time, interval, took time.Duration) {
	m.relistDuration.Observe(took.Seconds())
	if interval > 0 {
		m.relistInterval.Observe(interval.Seconds())
	}
	m.lastRelist.Set(float64(started.UnixNano()) / 1e9)
}

// CountEventStream counts an attempt to open the event stream of the runtime, or its failure.
func (m *Metrics) CountEventStream(err error) {
	if err != nil {
		m.eventStreamErrors.Inc()
		return
	}
	m.eventStreams.Inc()
}

// ObserveEventDelay records the time from an event in the runtime to its receipt.
func (m *Metrics) ObserveEventDelay(d time.Duration) { m.eventDelay.Observe(max(0, d).Seconds()) }

// ObserveStorageOperation records the setup or teardown of a volume. plugin is the name of the volume
// plugin, operation is volume_mount or volume_unmount.
func (m *Metrics) ObserveStorageOperation(plugin, operation string, d time.Duration, err error) {
	status := "success"
	if err != nil {
		status = "fail-unknown"
		m.storageErrors.WithLabelValues(plugin, operation).Inc()
	}
	m.storage.WithLabelValues(plugin, operation, status, "false").Observe(d.Seconds())
}

// ObserveCSICall records a call of a CSI driver. method is the full name of the gRPC method.
func (m *Metrics) ObserveCSICall(driver, method string, d time.Duration, err error) {
	code := "unknown-non-grpc"
	if s, ok := status.FromError(err); ok {
		code = s.Code().String()
	}
	m.csiCalls.WithLabelValues(driver, method, code, "false").Observe(d.Seconds())
}

// ObserveCredentialProvider records a call of a credential provider plugin.
func (m *Metrics) ObserveCredentialProvider(plugin string, d time.Duration, err error) {
	m.providerDuration.WithLabelValues(plugin).Observe(d.Seconds())
	if err != nil {
		m.providerErrors.WithLabelValues(plugin).Inc()
	}
}

// Request is a request to the API server that has its response header, or that has failed.
type Request struct {
	Method, Host string
	Code         int  // 0: no response
	Watch        bool // the duration is not recorded
	Duration     time.Duration
}

// ObserveRequest records a request to the API server.
func (m *Metrics) ObserveRequest(r Request) {
	code := "<error>"
	if r.Code != 0 {
		code = strconv.Itoa(r.Code)
	}
	m.requests.WithLabelValues(code, r.Method, r.Host).Inc()
	if !r.Watch {
		m.requestDuration.WithLabelValues(r.Method, r.Host).Observe(r.Duration.Seconds())
	}
}

// CountClientCertificateError counts a failed request for the client certificate.
func (m *Metrics) CountClientCertificateError() { m.clientRenewErrors.Inc() }

// CountServingCertificateError counts a failed request for the serving certificate.
func (m *Metrics) CountServingCertificateError() { m.serverRenewErrors.Inc() }

// ObserveServingCertificateRotation records that a serving certificate was replaced.
func (m *Metrics) ObserveServingCertificateRotation(age time.Duration) {
	m.serverRotation.Observe(age.Seconds())
}
