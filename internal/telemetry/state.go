package telemetry

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// State is the state of the agent at the time of a scrape.
type State struct {
	Pods, StaticPods int            // desired pods; those of them that come from files
	RunningPods      int            // pods with a running sandbox
	Containers       map[string]int // containers by state: created, running, exited or unknown
	Volumes          map[VolumeState]int
	Claims           []ClaimState

	InvalidManifests int
	StoreDegraded    bool
	// ClientCertificate and ServingCertificate are the expiration times of the certificates that the
	// agent requests; zero: none.
	ClientCertificate, ServingCertificate time.Time
}

// VolumeState groups the volumes of a volume plugin. Actual volumes are set up on the host, others are
// desired.
type VolumeState struct {
	Plugin string
	Actual bool
}

// ClaimState is the usage of the volume of a PersistentVolumeClaim.
type ClaimState struct {
	Namespace, Claim               string
	Capacity, Available, Used      uint64 // bytes
	Inodes, InodesFree, InodesUsed uint64
	Abnormal                       *bool // health of the volume; nil: not known
}

// RegisterState registers the gauges of State. read is called for every scrape, concurrently.
// RegisterState must be called once.
func (m *Metrics) RegisterState(read func() State) {
	m.registry.MustRegister(stateCollector{read, time.Now})
}

// stateCollector is a prometheus.Collector that reads the state for every scrape.
type stateCollector struct {
	read func() State
	now  func() time.Time
}

func stateDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	descRunningPods = stateDesc("kubelet_running_pods", "Number of pods that have a running pod sandbox.")
	descDesiredPods = stateDesc("kubelet_desired_pods",
		"Number of pods desired on this node, static pods (static=\"true\") and others.", "static")
	descContainers = stateDesc("kubelet_running_containers", "Number of containers by state.", "container_state")
	descVolumes    = stateDesc("volume_manager_total_volumes",
		"Number of volumes by volume plugin and state: desired or set up on the host.", "plugin_name", "state")
	descInvalidManifests = stateDesc("berth_invalid_manifest_files", "Number of manifest files with errors.")
	descDegraded         = stateDesc("berth_store_degraded",
		"1 while the local store cannot be written and is kept in memory.")
	descClientTTL = stateDesc("kubelet_certificate_manager_client_ttl_seconds",
		"Seconds until the client certificate expires, negative if it has expired, +Inf if there is none.")
	descServerTTL = stateDesc("kubelet_certificate_manager_server_ttl_seconds",
		"Seconds until the serving certificate expires, negative if it has expired, +Inf if there is none.")
)

// claimMetrics are the metrics of the volume of a claim.
var claimMetrics = []struct {
	desc  *prometheus.Desc
	value func(*ClaimState) uint64
}{
	{claimDesc("capacity_bytes", "Capacity in bytes of the volume."),
		func(c *ClaimState) uint64 { return c.Capacity }},
	{claimDesc("available_bytes", "Number of available bytes in the volume."),
		func(c *ClaimState) uint64 { return c.Available }},
	{claimDesc("used_bytes", "Number of used bytes in the volume."), func(c *ClaimState) uint64 { return c.Used }},
	{claimDesc("inodes", "Maximum number of inodes in the volume."), func(c *ClaimState) uint64 { return c.Inodes }},
	{claimDesc("inodes_free", "Number of free inodes in the volume."),
		func(c *ClaimState) uint64 { return c.InodesFree }},
	{claimDesc("inodes_used", "Number of used inodes in the volume."),
		func(c *ClaimState) uint64 { return c.InodesUsed }},
}

var descAbnormal = claimDesc("health_status_abnormal",
	"Whether the volume is abnormal (1) or healthy (0), if its CSI driver reports that.")

func claimDesc(name, help string) *prometheus.Desc {
	return stateDesc("kubelet_volume_stats_"+name, help, "namespace", "persistentvolumeclaim")
}

func (c stateCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range claimMetrics {
		ch <- c.desc
	}
	ch <- descAbnormal
	for _, d := range []*prometheus.Desc{
		descRunningPods, descDesiredPods, descContainers, descVolumes, descInvalidManifests, descDegraded,
		descClientTTL, descServerTTL,
	} {
		ch <- d
	}
}

func (c stateCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.read()
	set := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	set(descRunningPods, float64(s.RunningPods))
	set(descDesiredPods, float64(s.StaticPods), "true")
	set(descDesiredPods, float64(s.Pods-s.StaticPods), "")
	for _, state := range []string{"created", "running", "exited", "unknown"} {
		set(descContainers, float64(s.Containers[state]), state)
	}
	for v, n := range s.Volumes {
		state := "desired_state_of_world"
		if v.Actual {
			state = "actual_state_of_world"
		}
		set(descVolumes, float64(n), v.Plugin, state)
	}
	for i := range s.Claims {
		for _, c := range claimMetrics {
			set(c.desc, float64(c.value(&s.Claims[i])), s.Claims[i].Namespace, s.Claims[i].Claim)
		}
		if abnormal := s.Claims[i].Abnormal; abnormal != nil {
			value := 0.0
			if *abnormal {
				value = 1
			}
			set(descAbnormal, value, s.Claims[i].Namespace, s.Claims[i].Claim)
		}
	}
	set(descInvalidManifests, float64(s.InvalidManifests))
	degraded := 0.0
	if s.StoreDegraded {
		degraded = 1
	}
	set(descDegraded, degraded)
	now := c.now()
	set(descClientTTL, secondsUntil(s.ClientCertificate, now))
	set(descServerTTL, secondsUntil(s.ServingCertificate, now))
}

// secondsUntil returns the seconds from now to t; +Inf if t is zero.
func secondsUntil(t, now time.Time) float64 {
	if t.IsZero() {
		return math.Inf(1)
	}
	return t.Sub(now).Seconds()
}
