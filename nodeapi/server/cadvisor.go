package server

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// cadvisor serves metrics with the names and labels of cAdvisor, which dashboards use. As in
// cAdvisor, a sample without a container label is for a pod or a parent cgroup, and network metrics
// have the labels of the pod's sandbox.
func (s *server) cadvisor(w http.ResponseWriter, r *http.Request) {
	s.serveMetrics(w, r, collectCadvisor)
}

func collectCadvisor(stats Stats, out samples) {
	for _, g := range cgroupsOf(stats) {
		for _, m := range cadvisorMetrics {
			if v, ok := m.value(g); ok {
				out.add(m.metricDesc, v, g.usage.Timestamp, g.labels()...)
			}
		}
		collectPressure(g, out)
		for _, d := range g.usage.Devices {
			for _, m := range cadvisorDiskMetrics {
				out.add(m.metricDesc, float64(m.value(d)), g.usage.Timestamp, g.labels(d.Name)...)
			}
		}
		for _, i := range g.interfaces {
			for _, m := range cadvisorNetworkMetrics {
				out.add(m.metricDesc, float64(m.value(i)), g.usage.Timestamp, g.labels(i.Name)...)
			}
		}
	}
	out.addNow(machineCores, float64(stats.Node.CPUs))
	out.addNow(machineMemory, float64(stats.Node.Memory))
	out.addNow(machineSwap, float64(stats.Node.Swap.Used+stats.Node.Swap.Free))
	if fs := stats.Node.NodeFs; fs != nil {
		root := cgroup{id: "/"}.labels("rootfs")
		out.add(fsLimit, float64(fs.Capacity), fs.Timestamp, root...)
		out.add(fsUsage, float64(fs.Used), fs.Timestamp, root...)
		out.add(fsInodes, float64(fs.Inodes), fs.Timestamp, root...)
		out.add(fsInodesFree, float64(fs.InodesFree), fs.Timestamp, root...)
	}
	out.addNow(cadvisorError, 0)
}

// cgroup is one cgroup with cAdvisor's labels.
type cgroup struct {
	container, id, image, name, namespace, pod string
	usage                                      Usage
	started                                    time.Time
	interfaces                                 []Interface
}

// cgroupLabels are the names of the labels. A metric can have one more.
func cgroupLabels(more ...string) []string {
	return append([]string{"container", "id", "image", "name", "namespace", "pod"}, more...)
}

func (g cgroup) labels(more ...string) []string {
	return append([]string{g.container, g.id, g.image, g.name, g.namespace, g.pod}, more...)
}

// cgroupsOf returns the root cgroup and those of pods, sandboxes and containers.
func cgroupsOf(stats Stats) []cgroup {
	n := stats.Node
	out := []cgroup{{id: "/", usage: n.Usage, started: n.Started, interfaces: n.Interfaces}}
	for _, p := range stats.Pods {
		out = append(out, cgroup{id: p.Cgroup, namespace: p.Namespace, pod: p.Name, usage: p.Usage, started: p.Started})
		if p.Sandbox != "" && len(p.Interfaces) > 0 {
			out = append(out, cgroup{
				id: p.SandboxCgroup, name: p.Sandbox, namespace: p.Namespace, pod: p.Name,
				interfaces: p.Interfaces, usage: Usage{Timestamp: p.Usage.Timestamp},
			})
		}
		for _, c := range p.Containers {
			out = append(out, cgroup{
				container: c.Name, id: c.Cgroup, image: c.Image, name: c.ID, namespace: p.Namespace, pod: p.Name,
				usage: c.Usage, started: c.Started,
			})
		}
	}
	return out
}

// isSandbox reports whether the cgroup is included only for its network interfaces.
func (g cgroup) isSandbox() bool { return g.name != "" && g.container == "" }

// cgroupMetric is a metric of cgroups. value reports whether a cgroup has it.
type cgroupMetric struct {
	metricDesc
	value func(cgroup) (float64, bool)
}

func secondsTotal(name, help string, of func(Usage) time.Duration) cgroupMetric {
	return cgroupMetric{counter(name, help, cgroupLabels()...), func(g cgroup) (float64, bool) {
		return of(g.usage).Seconds(), !g.isSandbox()
	}}
}

func usageMetric(
	kind func(string, string, ...string) metricDesc,
	name, help string,
	of func(Usage) uint64,
) cgroupMetric {
	return cgroupMetric{kind(name, help, cgroupLabels()...), func(g cgroup) (float64, bool) {
		return float64(of(g.usage)), !g.isSandbox()
	}}
}

// limitMetric is a metric of cgroups with a CPU limit.
func limitMetric(
	kind func(string, string, ...string) metricDesc, name, help string, of func(Usage, CPULimit) float64,
) cgroupMetric {
	return cgroupMetric{kind(name, help, cgroupLabels()...), func(g cgroup) (float64, bool) {
		if g.usage.CPULimit == nil {
			return 0, false
		}
		return of(g.usage, *g.usage.CPULimit), true
	}}
}

var cadvisorMetrics = []cgroupMetric{
	{
		metricDesc{prometheus.NewDesc("container_cpu_usage_seconds_total", "Cumulative cpu time consumed in seconds.",
			cgroupLabels(), prometheus.Labels{"cpu": "total"}), prometheus.CounterValue},
		func(g cgroup) (float64, bool) { return g.usage.CPU.Seconds(), !g.isSandbox() },
	},
	secondsTotal("container_cpu_user_seconds_total", "Cumulative user cpu time consumed in seconds.",
		func(u Usage) time.Duration { return u.User }),
	secondsTotal("container_cpu_system_seconds_total", "Cumulative system cpu time consumed in seconds.",
		func(u Usage) time.Duration { return u.System }),
	limitMetric(counter, "container_cpu_cfs_periods_total", "Number of elapsed enforcement period intervals.",
		func(u Usage, _ CPULimit) float64 { return float64(u.CFSPeriods) }),
	limitMetric(counter, "container_cpu_cfs_throttled_periods_total", "Number of throttled period intervals.",
		func(u Usage, _ CPULimit) float64 { return float64(u.CFSThrottledPeriods) }),
	limitMetric(counter, "container_cpu_cfs_throttled_seconds_total",
		"Total time duration the container has been throttled.",
		func(u Usage, _ CPULimit) float64 { return u.CFSThrottledTime.Seconds() }),
	limitMetric(gauge, "container_spec_cpu_quota", "CPU quota of the container.",
		func(_ Usage, l CPULimit) float64 { return float64(l.Quota.Microseconds()) }),
	limitMetric(gauge, "container_spec_cpu_period", "CPU period of the container.",
		func(_ Usage, l CPULimit) float64 { return float64(l.Period.Microseconds()) }),
	usageMetric(gauge, "container_spec_cpu_shares", "CPU share of the container.",
		func(u Usage) uint64 { return u.CPUShares }),
	usageMetric(gauge, "container_spec_memory_limit_bytes", "Memory limit for the container.",
		func(u Usage) uint64 { return u.MemoryLimit }),
	usageMetric(gauge, "container_memory_working_set_bytes", "Current working set in bytes.",
		func(u Usage) uint64 { return u.WorkingSet }),
	usageMetric(gauge, "container_memory_usage_bytes",
		"Current memory usage in bytes, including all memory regardless of when it was accessed",
		func(u Usage) uint64 { return u.Memory }),
	usageMetric(gauge, "container_memory_max_usage_bytes", "Maximum memory usage recorded in bytes",
		func(u Usage) uint64 { return u.MaxUsage }),
	usageMetric(gauge, "container_memory_rss", "Size of RSS in bytes.", func(u Usage) uint64 { return u.RSS }),
	usageMetric(gauge, "container_memory_cache", "Number of bytes of page cache memory.",
		func(u Usage) uint64 { return u.Cache }),
	usageMetric(gauge, "container_memory_mapped_file", "Size of memory mapped files in bytes.",
		func(u Usage) uint64 { return u.MappedFile }),
	usageMetric(gauge, "container_memory_swap", "Container swap usage in bytes.",
		func(u Usage) uint64 { return u.Swap }),
	usageMetric(counter, "container_oom_events_total", "Count of out of memory events observed for the container",
		func(u Usage) uint64 { return u.OOMKills }),
	usageMetric(gauge, "container_processes", "Number of processes running inside the container.",
		func(u Usage) uint64 { return u.Processes }),
	usageMetric(gauge, "container_threads", "Number of threads running inside the container",
		func(u Usage) uint64 { return u.Threads }),
	{
		gauge(
			"container_start_time_seconds",
			"Start time of the container since unix epoch in seconds.",
			cgroupLabels()...),
		func(g cgroup) (float64, bool) { return seconds(g.started), !g.started.IsZero() },
	},
	{
		gauge("container_last_seen", "Last time a container was seen by the exporter", cgroupLabels()...),
		func(g cgroup) (float64, bool) { return float64(g.usage.Timestamp.Unix()), true },
	},
}

func diskCounter(name, help string) metricDesc { return counter(name, help, cgroupLabels("device")...) }

// cadvisorDiskMetrics are metrics per block device.
var cadvisorDiskMetrics = []struct {
	metricDesc
	value func(Device) uint64
}{
	{diskCounter("container_fs_reads_bytes_total", "Cumulative count of bytes read"),
		func(d Device) uint64 { return d.ReadBytes }},
	{diskCounter("container_fs_reads_total", "Cumulative count of reads completed"),
		func(d Device) uint64 { return d.ReadOps }},
	{diskCounter("container_fs_writes_bytes_total", "Cumulative count of bytes written"),
		func(d Device) uint64 { return d.WriteBytes }},
	{diskCounter("container_fs_writes_total", "Cumulative count of writes completed"),
		func(d Device) uint64 { return d.WriteOps }},
}

func networkCounter(name, help string) metricDesc {
	return counter(name, help, cgroupLabels("interface")...)
}

// cadvisorNetworkMetrics are metrics per network interface.
var cadvisorNetworkMetrics = []struct {
	metricDesc
	value func(Interface) uint64
}{
	{networkCounter("container_network_receive_bytes_total", "Cumulative count of bytes received"),
		func(i Interface) uint64 { return i.RxBytes }},
	{networkCounter("container_network_receive_errors_total", "Cumulative count of errors encountered while receiving"),
		func(i Interface) uint64 { return i.RxErrors }},
	{
		networkCounter(
			"container_network_receive_packets_dropped_total",
			"Cumulative count of packets dropped while receiving",
		),
		func(i Interface) uint64 { return i.RxDropped },
	},
	{networkCounter("container_network_receive_packets_total", "Cumulative count of packets received"),
		func(i Interface) uint64 { return i.RxPackets }},
	{networkCounter("container_network_transmit_bytes_total", "Cumulative count of bytes transmitted"),
		func(i Interface) uint64 { return i.TxBytes }},
	{
		networkCounter(
			"container_network_transmit_errors_total",
			"Cumulative count of errors encountered while transmitting",
		),
		func(i Interface) uint64 { return i.TxErrors },
	},
	{
		networkCounter(
			"container_network_transmit_packets_dropped_total",
			"Cumulative count of packets dropped while transmitting",
		),
		func(i Interface) uint64 { return i.TxDropped },
	},
	{networkCounter("container_network_transmit_packets_total", "Cumulative count of packets transmitted"),
		func(i Interface) uint64 { return i.TxPackets }},
}

var (
	machineCores  = gauge("machine_cpu_cores", "Number of logical CPU cores.")
	machineMemory = gauge("machine_memory_bytes", "Amount of memory installed on the machine.")
	machineSwap   = gauge("machine_swap_bytes", "Amount of swap memory available on the machine.")
	fsLimit       = gauge("container_fs_limit_bytes",
		"Number of bytes that can be consumed by the container on this filesystem.", cgroupLabels("device")...)
	fsUsage = gauge("container_fs_usage_bytes",
		"Number of bytes that are consumed by the container on this filesystem.", cgroupLabels("device")...)
	fsInodes      = gauge("container_fs_inodes_total", "Number of Inodes", cgroupLabels("device")...)
	fsInodesFree  = gauge("container_fs_inodes_free", "Number of available Inodes", cgroupLabels("device")...)
	cadvisorError = gauge("container_scrape_error",
		"1 if there was an error while getting container metrics, 0 otherwise")
)
