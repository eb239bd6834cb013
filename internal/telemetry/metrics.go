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

// Build is the content of kubernetes_build_info and berth_build_info.
type Build struct {
	Version, Commit, Date string // of berth
	Kubernetes            string // the compatible Kubernetes release, such as v1.37.2
}

// Metrics contains the agent's collectors and their registry. Its methods are safe for concurrent
// use and never block.
type Metrics struct {
	kubeletMetrics

	registry *prometheus.Registry

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
	podSync        prometheus.Histogram
	overhead       prometheus.Histogram
	audits         prometheus.Counter
	divergences    prometheus.Counter
	actions        *prometheus.CounterVec
	leaseRenewals  *prometheus.CounterVec
	leaseDuration  prometheus.Histogram
	eventGaps      prometheus.Counter
	evictions      *prometheus.CounterVec
	leaksRemoved   *prometheus.CounterVec
	leftoversSwept *prometheus.CounterVec // deprecated name of leaksRemoved
	pressure       *prometheus.GaugeVec
	signals        *prometheus.GaugeVec
	admissionFails *prometheus.CounterVec
	devices        *prometheus.GaugeVec
	logsRotated    prometheus.Counter
	garbage        *prometheus.CounterVec
	garbageBytes   prometheus.Counter

	probes        *prometheus.CounterVec
	probeDuration *prometheus.HistogramVec
	probeDelay    prometheus.Histogram
	probesMissed  prometheus.Counter
}

// Metrics of upstream have upstream's buckets.
var (
	podStartBuckets = []float64{
		0.5,
		1,
		2,
		3,
		4,
		5,
		6,
		8,
		10,
		20,
		30,
		45,
		60,
		120,
		180,
		240,
		300,
		360,
		480,
		600,
		900,
		1200,
		1800,
		2700,
		3600,
	}
	callBuckets  = prometheus.ExponentialBuckets(.005, 2.5, 14)
	syncBuckets  = prometheus.ExponentialBuckets(.01, 2.5, 12)
	stageBuckets = []float64{.0001, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
)

// NewMetrics returns the collectors of a node. The registry also contains the process and the Go
// collector.
func NewMetrics(node string, b Build) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	m.upstreamPods()
	m.upstreamRuntime()
	m.upstreamNode()
	m.upstreamKubelet()
	m.ownPods()
	m.ownNode()
	m.registry.MustRegister(
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewGoCollector(),
	)
	m.constant("kubelet_node_name", "The name of the node. Always 1.", prometheus.Labels{"node": node})
	m.constant(
		"kubernetes_build_info",
		"The compatible Kubernetes release, and the build. Always 1.",
		prometheus.Labels{
			"git_version": b.Kubernetes, "git_commit": b.Commit, "build_date": b.Date,
			"go_version": runtime.Version(), "compiler": runtime.Compiler, "platform": runtime.GOOS + "/" +
				runtime.GOARCH},
	)
	m.constant(
		"berth_build_info",
		"The release of berth. Always 1.",
		prometheus.Labels{"version": b.Version, "git_commit": b.Commit},
	)
	return m
}

// Handler serves all metrics, at /metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second})
}

// ProbesHandler serves the probe metrics, at /metrics/probes.
func (m *Metrics) ProbesHandler() http.Handler { return m.some(isProbeMetric) }

// NodeHandler serves all metrics except those of probes, at /metrics of the kubelet API. Probes
// have their own path there, and are not scraped twice.
func (m *Metrics) NodeHandler() http.Handler {
	return m.some(func(f *dto.MetricFamily) bool { return !isProbeMetric(f) })
}

func isProbeMetric(f *dto.MetricFamily) bool { return strings.HasPrefix(f.GetName(), "prober_") }

func (m *Metrics) some(which func(*dto.MetricFamily) bool) http.Handler {
	chosen := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		all, err := m.registry.Gather()
		return slices.DeleteFunc(all, func(f *dto.MetricFamily) bool { return !which(f) }), err
	})
	return promhttp.HandlerFor(chosen, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second})
}

// Registry is the registry for collectors of other packages.
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
	return register(
		m,
		prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels),
	)
}

func register[C prometheus.Collector](m *Metrics, c C) C {
	m.registry.MustRegister(c)
	return c
}

// upstreamPods registers the metrics of pods and containers with upstream names.
func (m *Metrics) upstreamPods() {
	m.startedPods = m.counter("kubelet_started_pods_total", "Cumulative number of pod sandboxes started.")
	m.startedPodErrors = m.counter(
		"kubelet_started_pods_errors_total",
		"Cumulative number of errors when starting pod sandboxes.",
	)
	m.startedContainers = m.counters(
		"kubelet_started_containers_total",
		"Cumulative number of containers started.",
		"container_type",
	)
	m.startedContainerErrors = m.counters(
		"kubelet_started_containers_errors_total",
		"Cumulative number of errors when starting containers.",
		"container_type",
		"code",
	)
	m.podStart = m.histogram(
		"kubelet_pod_start_duration_seconds",
		"Duration in seconds from the agent seeing a pod for the first time to the pod running.",
		podStartBuckets,
	)
	m.podStartSLI = m.histogram(
		"kubelet_pod_start_sli_duration_seconds",
		"Duration in seconds from the creation of a pod to all its containers started, excluding image pulls and init "+
			"containers.",
		podStartBuckets,
	)
	m.podStartTotal = m.histogram(
		"kubelet_pod_start_total_duration_seconds",
		"Duration in seconds from the creation of a pod to all its containers started.",
		podStartBuckets,
	)
	m.statusSync = m.histogram(
		"kubelet_pod_status_sync_duration_seconds",
		"Duration in seconds from a change of a pod's status to its update on the API server.",
		syncBuckets,
	)
}

// upstreamRuntime registers the metrics of pod sandboxes, cgroups, pod workers, runtime operations and
// image pulls with upstream names.
func (m *Metrics) upstreamRuntime() {
	m.sandboxDuration = m.histograms(
		"kubelet_run_podsandbox_duration_seconds",
		"Duration in seconds of RunPodSandbox operations by runtime handler.",
		callBuckets,
		"runtime_handler",
	)
	m.sandboxErrors = m.counters(
		"kubelet_run_podsandbox_errors_total",
		"Cumulative number of RunPodSandbox errors by runtime handler.",
		"runtime_handler",
	)
	m.cgroupDuration = m.histograms(
		"kubelet_cgroup_manager_duration_seconds",
		"Duration in seconds of cgroup operations by type: create, update or destroy.",
		callBuckets,
		"operation_type",
	)
	m.workerDuration = m.histograms(
		"kubelet_pod_worker_duration_seconds",
		"Duration in seconds to sync a single pod by operation: create, update or sync.",
		callBuckets,
		"operation_type",
	)
	m.runtimeOps = m.counters(
		"kubelet_runtime_operations_total",
		"Cumulative number of runtime operations by type.",
		"operation_type",
	)
	m.runtimeErrors = m.counters(
		"kubelet_runtime_operations_errors_total",
		"Cumulative number of runtime operation errors by type.",
		"operation_type",
	)
	m.runtimeDuration = m.histograms(
		"kubelet_runtime_operations_duration_seconds",
		"Duration in seconds of runtime operations by type.",
		callBuckets,
		"operation_type",
	)
	m.imagePull = m.histograms(
		"kubelet_image_pull_duration_seconds",
		"Duration in seconds of image pulls by image size.",
		[]float64{1, 5, 10, 20, 30, 60, 180, 300, 600, 900, 1200, 1800, 2700, 3600},
		"image_size_in_bytes",
	)
}

// upstreamNode registers the metrics of lifecycle hooks, images, probes, device plugins and admission
// with upstream names.
func (m *Metrics) upstreamNode() {
	m.hookFallbacks = m.counter(
		"kubelet_lifecycle_handler_http_fallbacks_total",
		"Cumulative number of lifecycle hooks with scheme HTTPS that succeeded over HTTP.",
	)
	m.imagesCollected = m.counters(
		"kubelet_image_garbage_collected_total",
		"Cumulative number of images garbage collected by reason: age or space.",
		"reason",
	)
	m.imageChecks = m.counters(
		"kubelet_imagemanager_image_mustpull_checks_total",
		"Cumulative number of checks whether a pod may use an image that is present on the node, by result.",
		"result",
	)
	m.probes = m.counters(
		"prober_probe_total",
		"Cumulative number of probes by result: successful, failed or unknown.",
		"probe_type",
		"result",
		"container",
		"pod",
		"namespace",
		"pod_uid",
	)
	m.probeDuration = m.histograms(
		"prober_probe_duration_seconds",
		"Duration in seconds of probes.",
		prometheus.DefBuckets,
		"probe_type",
		"container",
		"pod",
		"namespace",
	)
	m.pluginsRegistered = m.counters(
		"kubelet_device_plugin_registration_total",
		"Cumulative number of device plugin registrations by resource name.",
		"resource_name",
	)
	m.devicesAllocated = m.histograms(
		"kubelet_device_plugin_alloc_duration_seconds",
		"Duration in seconds of device plugin Allocate calls by resource name.",
		prometheus.DefBuckets,
		"resource_name",
	)
	m.admissionFails = m.counters(
		"kubelet_admission_rejections_total",
		"Cumulative number of pods rejected at admission by reason.",
		"reason",
	)
}

// ownPods registers the metrics of pods, probes and audits that only berth has.
func (m *Metrics) ownPods() {
	m.restarts = m.counter("berth_container_restarts_total", "Cumulative number of container restarts.")
	m.stage = m.histograms(
		"berth_stage_duration_seconds",
		"Duration in seconds of actions and observations by stage.",
		stageBuckets,
		"stage",
	)
	m.podSync = m.histogram("berth_pod_sync_duration_seconds", "Duration in seconds of a sync of a pod.", stageBuckets)
	m.overhead = m.histogram(
		"berth_pod_start_overhead_seconds",
		"Duration in seconds from the agent seeing a pod for the first time to the pod running, excluding image pulls "+
			"and mutating runtime calls.",
		stageBuckets,
	)
	m.probeDelay = m.histogram("berth_probe_lateness_seconds", "Delay in seconds of the start of probes.", stageBuckets)
	m.probesMissed = m.counter(
		"berth_probe_missed_periods_total",
		"Cumulative number of periods in which a probe could not start because the node was overloaded. "+
			"Expected to be 0.",
	)
	m.audits = m.counter(
		"berth_audits_total",
		"Cumulative number of full comparisons of the agent's state with the runtime.",
	)
	m.divergences = m.counter(
		"berth_audit_divergences_total",
		"Cumulative number of pods for which an audit found a change that no event had reported. Expected to be 0.",
	)
	m.actions = m.counters(
		"berth_actions_total",
		"Cumulative number of finished actions by verb and result: ok, error or canceled.",
		"verb",
		"result",
	)
}

// ownNode registers the metrics of evictions, devices, garbage collection and the node lease that only
// berth has.
func (m *Metrics) ownNode() {
	m.evictions = m.counters(
		"kubelet_evictions",
		"Cumulative number of pod evictions by eviction signal.",
		"eviction_signal",
	)
	m.pressure = register(m, prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "berth_node_pressure", Help: "1 while the node has the pressure condition."}, []string{"condition"}))
	m.signals = register(m, prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "berth_eviction_signal_available", Help: "Available amount of an eviction signal in bytes, inodes or " +
			"processes."}, []string{"signal"}))
	m.leaksRemoved = m.counters(
		"berth_leaks_removed_total",
		"Cumulative number of leaked runtime resources removed by kind: shim, socket, lease, attachment, address, "+
			"network, rules, chain or netns.",
		"kind",
	)
	m.leftoversSwept = m.counters(
		"berth_leftovers_swept_total",
		"(Deprecated: use berth_leaks_removed_total) Cumulative number of leaked runtime resources removed by kind.",
		"kind",
	)
	m.devices = register(m, prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "berth_devices", Help: "Number of devices of device plugins by resource name and state: " +
			"listed, healthy or allocated. The state given is the deprecated name of allocated."},
		[]string{"resource_name", "state"}))
	m.logsRotated = m.counter("berth_container_logs_rotated_total", "Cumulative number of container log rotations.")
	m.garbage = m.counters(
		"berth_garbage_collected_total",
		"Cumulative number of garbage collected items by kind: container, sandbox, pod_logs, container_logs "+
			"or log_link.",
		"kind",
	)
	m.garbageBytes = m.counter(
		"berth_garbage_collected_log_bytes_total",
		"Cumulative number of bytes of garbage collected logs.",
	)
	m.leaseRenewals = m.counters(
		"berth_lease_renewals_total",
		"Cumulative number of node lease renewals by result: ok or error.",
		"result",
	)
	m.leaseDuration = m.histogram(
		"berth_lease_renewal_duration_seconds",
		"Duration in seconds of successful node lease renewals.",
		callBuckets,
	)
	m.eventGaps = m.counter(
		"berth_runtime_events_missed_total",
		"Cumulative number of interruptions of the runtime event stream.",
	)
}
