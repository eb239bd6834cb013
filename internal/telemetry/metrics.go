package telemetry

import (
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

// Build is what kubernetes_build_info and berth_build_info say.
type Build struct {
	Version, Commit, Date string // of berth
	Kubernetes            string // the release whose behaviour is followed, such as v1.37.2
}

// Metrics are the agent's collectors and their registry. Its methods are safe
// for concurrent use and never block.
type Metrics struct {
	registry *prometheus.Registry

	runningPods, wantedPods                   prometheus.Gauge
	runningContainers                         *prometheus.GaugeVec
	startedPods, startedPodErrors             prometheus.Counter
	startedContainers, startedContainerErrors *prometheus.CounterVec
	restarts                                  prometheus.Counter
	podStart, podStartSLI, podStartTotal      prometheus.Histogram
	statusSync                                prometheus.Histogram
	sandboxDuration                           *prometheus.HistogramVec
	sandboxErrors                             *prometheus.CounterVec
	cgroupDuration                            *prometheus.HistogramVec
	workerDuration                            *prometheus.HistogramVec
	runtimeOps, runtimeErrors                 *prometheus.CounterVec
	runtimeDuration                           *prometheus.HistogramVec
	imagePull                                 *prometheus.HistogramVec
	imageChecks                               *prometheus.CounterVec
	imagesCollected                           *prometheus.CounterVec
	hookFallbacks                             prometheus.Counter
	pluginsRegistered                         *prometheus.CounterVec
	devicesAllocated                          *prometheus.HistogramVec

	stage          *prometheus.HistogramVec
	pass           prometheus.Histogram
	overhead       prometheus.Histogram
	audits         prometheus.Counter
	divergences    prometheus.Counter
	actions        *prometheus.CounterVec
	leaseRenewals  *prometheus.CounterVec
	leaseDuration  prometheus.Histogram
	eventsMissed   prometheus.Counter
	evictions      *prometheus.CounterVec
	swept          *prometheus.CounterVec
	pressure       *prometheus.GaugeVec
	signals        *prometheus.GaugeVec
	admissionFails *prometheus.CounterVec
	devices        *prometheus.GaugeVec
	logsRotated    prometheus.Counter
	logDropped     prometheus.Counter
	garbage        *prometheus.CounterVec
	garbageBytes   prometheus.Counter

	probes        *prometheus.CounterVec
	probeDuration *prometheus.HistogramVec
	probeLate     prometheus.Histogram
	probesMissed  prometheus.Counter
}

// Upstream's buckets where the metric is upstream's.
var (
	podStartBuckets = []float64{0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}
	callBuckets     = prometheus.ExponentialBuckets(.005, 2.5, 14)
	syncBuckets     = prometheus.ExponentialBuckets(.01, 2.5, 12)
	stageBuckets    = []float64{.0001, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
)

// NewMetrics makes the collectors of a node. Its registry holds them, the
// process collector, and the few Go figures that cost nothing to read.
func NewMetrics(node string, b Build) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	m.upstream()
	m.own()
	m.registry.MustRegister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.constant("kubelet_node_name", "The node's name. The count is always 1.", prometheus.Labels{"node": node})
	m.constant("kubernetes_build_info", "The Kubernetes release whose behaviour is followed, and the build.", prometheus.Labels{
		"git_version": b.Kubernetes, "git_commit": b.Commit, "build_date": b.Date,
		"go_version": runtime.Version(), "compiler": runtime.Compiler, "platform": runtime.GOOS + "/" + runtime.GOARCH})
	m.constant("berth_build_info", "The release of berth.", prometheus.Labels{"version": b.Version, "git_commit": b.Commit})
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "go_goroutines", Help: "Number of goroutines."}, func() float64 { return float64(runtime.NumGoroutine()) }))
	return m
}

// Handler serves /metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second})
}

// ProbesHandler serves /metrics/probes: those of the probes alone.
func (m *Metrics) ProbesHandler() http.Handler { return m.some(ofProbes) }

// NodeHandler serves /metrics of the node's API, where the probes' have a page of
// their own: who collects both counts none twice.
func (m *Metrics) NodeHandler() http.Handler {
	return m.some(func(f *dto.MetricFamily) bool { return !ofProbes(f) })
}

func ofProbes(f *dto.MetricFamily) bool { return strings.HasPrefix(f.GetName(), "prober_") }

func (m *Metrics) some(which func(*dto.MetricFamily) bool) http.Handler {
	chosen := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		all, err := m.registry.Gather()
		return slices.DeleteFunc(all, func(f *dto.MetricFamily) bool { return !which(f) }), err
	})
	return promhttp.HandlerFor(chosen, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second})
}

// Registry is for collectors of other packages, registered by the commands.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

func (m *Metrics) constant(name, help string, labels prometheus.Labels) {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels})
	g.Set(1)
	m.registry.MustRegister(g)
}

func (m *Metrics) gauge(name, help string) prometheus.Gauge {
	return register(m, prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help}))
}

func (m *Metrics) counter(name, help string) prometheus.Counter {
	return register(m, prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help}))
}

func (m *Metrics) counters(name, help string, labels ...string) *prometheus.CounterVec {
	return register(m, prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels))
}

func (m *Metrics) histogram(name, help string, buckets []float64) prometheus.Histogram {
	return register(m, prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}))
}

func (m *Metrics) histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return register(m, prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels))
}

func register[C prometheus.Collector](m *Metrics, c C) C {
	m.registry.MustRegister(c)
	return c
}

// upstream makes the metrics that carry upstream's names.
func (m *Metrics) upstream() {
	m.runningPods = m.gauge("kubelet_running_pods", "Number of pods that have a running pod sandbox.")
	m.wantedPods = m.gauge("kubelet_desired_pods", "Number of pods that are wanted on this node.")
	m.runningContainers = register(m, prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kubelet_running_containers", Help: "Number of containers by state."}, []string{"container_state"}))
	m.startedPods = m.counter("kubelet_started_pods_total", "Pods started, by sandbox.")
	m.startedPodErrors = m.counter("kubelet_started_pods_errors_total", "Errors of starting pods, by sandbox.")
	m.startedContainers = m.counters("kubelet_started_containers_total", "Containers started.", "container_type")
	m.startedContainerErrors = m.counters("kubelet_started_containers_errors_total", "Errors of starting containers.", "container_type", "code")
	m.podStart = m.histogram("kubelet_pod_start_duration_seconds", "From the pod first seen to it running.", podStartBuckets)
	m.podStartSLI = m.histogram("kubelet_pod_start_sli_duration_seconds",
		"From the creation of the pod to all its containers started, without the time of pulls and init containers.", podStartBuckets)
	m.podStartTotal = m.histogram("kubelet_pod_start_total_duration_seconds", "From the creation of the pod to all its containers started.", podStartBuckets)
	m.statusSync = m.histogram("kubelet_pod_status_sync_duration_seconds", "From a change of a pod's status to the server's answer.", syncBuckets)
	m.sandboxDuration = m.histograms("kubelet_run_podsandbox_duration_seconds", "Length of making a sandbox, by runtime handler.", callBuckets, "runtime_handler")
	m.sandboxErrors = m.counters("kubelet_run_podsandbox_errors_total", "Sandboxes that could not be made, by runtime handler.", "runtime_handler")
	m.cgroupDuration = m.histograms("kubelet_cgroup_manager_duration_seconds", "Length of work on pods' cgroups: create, update or destroy.", callBuckets, "operation_type")
	m.workerDuration = m.histograms("kubelet_pod_worker_duration_seconds", "Length of one pass for a pod, by operation.", callBuckets, "operation_type")
	m.runtimeOps = m.counters("kubelet_runtime_operations_total", "Runtime operations by type.", "operation_type")
	m.runtimeErrors = m.counters("kubelet_runtime_operations_errors_total", "Runtime operation errors by type.", "operation_type")
	m.runtimeDuration = m.histograms("kubelet_runtime_operations_duration_seconds", "Length of runtime operations by type.", callBuckets, "operation_type")
	m.imagePull = m.histograms("kubelet_image_pull_duration_seconds", "Length of image pulls by size of the image.",
		[]float64{1, 5, 10, 20, 30, 60, 180, 300, 600, 900, 1200, 1800, 2700, 3600}, "image_size_in_bytes")
	m.hookFallbacks = m.counter("kubelet_lifecycle_handler_http_fallbacks_total", "HTTPS hooks that succeeded over HTTP.")
	m.imagesCollected = m.counters("kubelet_image_garbage_collected_total", "Images removed because nobody needs them, by reason: age or space.", "reason")
	m.imageChecks = m.counters("kubelet_imagemanager_image_mustpull_checks_total", "Checks whether a pod may use an image that is on the node, by result.", "result")
	m.probes = m.counters("prober_probe_total", "Probes made, by result: successful, failed or unknown.",
		"probe_type", "result", "container", "pod", "namespace", "pod_uid")
	m.probeDuration = m.histograms("prober_probe_duration_seconds", "Length of probes.", prometheus.DefBuckets,
		"probe_type", "container", "pod", "namespace")
	m.pluginsRegistered = m.counters("kubelet_device_plugin_registration_total", "Registrations of device plugins, by resource.", "resource_name")
	m.devicesAllocated = m.histograms("kubelet_device_plugin_alloc_duration_seconds", "Length of device plugins' calls of Allocate, by resource.", prometheus.DefBuckets, "resource_name")
	m.admissionFails = m.counters("kubelet_admission_rejections_total", "Pods rejected, by reason.", "reason")
}

// own makes the metrics that only berth has.
func (m *Metrics) own() {
	m.restarts = m.counter("berth_container_restarts_total", "Containers started again after an exit.")
	m.stage = m.histograms("berth_stage_duration_seconds", "Length of actions and looks, by the stage they belong to.", stageBuckets, "stage")
	m.pass = m.histogram("berth_pass_duration_seconds", "Length of a pass.", stageBuckets)
	m.overhead = m.histogram("berth_pod_start_overhead_seconds", "From the pod first seen to it running, less the time of pulls and of calls that change the runtime.", stageBuckets)
	m.probeLate = m.histogram("berth_probe_lateness_seconds", "How much later than due a probe began.", stageBuckets)
	m.probesMissed = m.counter("berth_probe_missed_periods_total", "Periods in which a probe should have begun and could not, for want of room on the node; should stay 0.")
	m.audits = m.counter("berth_audits_total", "Full comparisons of the agent's view with the runtime.")
	m.divergences = m.counter("berth_audit_divergences_total", "Pods of which an audit found what nothing had told; should stay 0.")
	m.actions = m.counters("berth_actions_total", "Actions ended, by verb and result: ok, error or canceled.", "verb", "result")
	m.evictions = m.counters("kubelet_evictions", "Pods evicted, by the signal that told of too much use.", "eviction_signal")
	m.pressure = register(m, prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "berth_node_pressure", Help: "1 while the node is under a pressure, by its condition."}, []string{"condition"}))
	m.signals = register(m, prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "berth_eviction_signal_available", Help: "What is left of what pods are evicted for, by signal: bytes, inodes or processes."}, []string{"signal"}))
	m.swept = m.counters("berth_leftovers_swept_total", "Things removed that the runtime had made and forgotten, by kind: shim, socket, lease, attachment, address, network, rules, chain or netns.", "kind")
	m.devices = register(m, prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "berth_devices", Help: "Devices of device plugins, by resource and state: listed, healthy or given."}, []string{"resource_name", "state"}))
	m.logsRotated = m.counter("berth_container_logs_rotated_total", "Logs of containers moved aside because of their size.")
	m.logDropped = m.counter("berth_container_log_dropped_bytes_total", "Bytes of rotated logs that were dropped because of containerLogMaxBytesPerMinute.")
	m.garbage = m.counters("berth_garbage_collected_total", "What was taken away because nobody needs it: container, sandbox, pod_logs, container_logs or log_link.", "kind")
	m.garbageBytes = m.counter("berth_log_garbage_bytes_total", "Bytes of logs that were taken away because nobody needs them.")
	m.leaseRenewals = m.counters("berth_lease_renewals_total", "Renewals of the node's lease, by result: ok or error.", "result")
	m.leaseDuration = m.histogram("berth_lease_renewal_duration_seconds", "Length of renewals of the node's lease that succeeded.", callBuckets)
	m.eventsMissed = m.counter("berth_runtime_events_missed_total", "Times the stream of runtime events was interrupted.")
}
