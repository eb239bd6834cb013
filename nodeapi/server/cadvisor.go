package server

import (
	"net/http"
	"time"
)

// cadvisor tells the figures that dashboards ask for by cAdvisor's names and with
// its labels. As there, what has no container is a pod's or one of those above;
// figures of the network have the labels of the pod's sandbox.
func (s *server) cadvisor(w http.ResponseWriter, r *http.Request) {
	f, err := s.h.Stats(r.Context(), false)
	if err != nil {
		complain(w, err)
		return
	}
	e := newExposition()
	defer e.send(w)
	groups := groupsOf(f)
	for _, fam := range cadvisorFamilies {
		e.family(fam.name, fam.kind, fam.help)
		for _, g := range groups {
			if v, tell := fam.value(g); tell {
				e.sample(g.with(fam.extra...), v, g.use.Timestamp)
			}
		}
	}
	for _, fam := range diskFamilies {
		e.family(fam.name, counter, fam.help)
		for _, g := range groups {
			for _, d := range g.use.Devices {
				e.sample(g.with(label{"device", d.Name}), fam.value(d), g.use.Timestamp)
			}
		}
	}
	cadvisorNetwork(e, groups)
	cadvisorMachine(e, f.Node)
}

// group is one cgroup with cAdvisor's labels of it.
type group struct {
	container, id, image, name, namespace, pod string
	use                                        Usage
	started                                    time.Time
	interfaces                                 []Interface
}

// with are the labels, in order, with more of them.
func (g group) with(more ...label) []label {
	out := make([]label, 0, 6+len(more))
	out = append(out, label{"container", g.container})
	placed := false
	for _, l := range []label{{"id", g.id}, {"image", g.image}, {"name", g.name}, {"namespace", g.namespace}, {"pod", g.pod}} {
		for _, m := range more {
			if !placed && m.name < l.name {
				out = append(out, m)
				placed = true
			}
		}
		out = append(out, l)
	}
	if !placed {
		out = append(out, more...)
	}
	return out
}

// groupsOf lists the host's root, each pod, its sandbox and its containers.
func groupsOf(f Stats) []group {
	out := []group{{id: "/", use: f.Node.Usage, started: f.Node.Started, interfaces: f.Node.Interfaces}}
	for _, p := range f.Pods {
		out = append(out, group{id: p.Cgroup, namespace: p.Namespace, pod: p.Name, use: p.Usage, started: p.Started})
		if p.Sandbox != "" && len(p.Interfaces) > 0 {
			out = append(out, group{
				id: p.SandboxCgroup, name: p.Sandbox, namespace: p.Namespace, pod: p.Name, interfaces: p.Interfaces, use: Usage{Timestamp: p.Usage.Timestamp},
			})
		}
		for _, k := range p.Containers {
			out = append(out, group{
				container: k.Name, id: k.Cgroup, image: k.Image, name: k.ID, namespace: p.Namespace, pod: p.Name, use: k.Usage, started: k.Started,
			})
		}
	}
	return out
}

// family is one of cAdvisor's: value tells whether a group has the figure.
type family struct {
	name, kind, help string
	extra            []label
	value            func(group) (float64, bool)
}

// own is a figure of every cgroup that was measured; that of a sandbox, which is
// there for its network, is none.
func own(of func(Usage) float64) func(group) (float64, bool) {
	return func(g group) (float64, bool) { return of(g.use), g.name == "" || g.container != "" }
}

func bytesOf(of func(Usage) uint64) func(group) (float64, bool) {
	return own(func(u Usage) float64 { return float64(of(u)) })
}

// limited is a figure of a cgroup with a CPU limit.
func limited(of func(Usage) float64) func(group) (float64, bool) {
	return func(g group) (float64, bool) {
		if g.use.CPULimit == nil {
			return 0, false
		}
		return of(g.use), true
	}
}

var cadvisorFamilies = []family{
	{"container_cpu_usage_seconds_total", counter, "Cumulative cpu time consumed in seconds.", []label{{"cpu", "total"}}, own(func(u Usage) float64 { return u.CPU.Seconds() })},
	{"container_cpu_user_seconds_total", counter, "Cumulative user cpu time consumed in seconds.", nil, own(func(u Usage) float64 { return u.User.Seconds() })},
	{"container_cpu_system_seconds_total", counter, "Cumulative system cpu time consumed in seconds.", nil, own(func(u Usage) float64 { return u.System.Seconds() })},
	{"container_cpu_cfs_periods_total", counter, "Number of elapsed enforcement period intervals.", nil, limited(func(u Usage) float64 { return float64(u.CFSPeriods) })},
	{"container_cpu_cfs_throttled_periods_total", counter, "Number of throttled period intervals.", nil, limited(func(u Usage) float64 { return float64(u.CFSThrottledPeriods) })},
	{"container_cpu_cfs_throttled_seconds_total", counter, "Total time duration the container has been throttled.", nil, limited(func(u Usage) float64 { return u.CFSThrottledTime.Seconds() })},
	{"container_spec_cpu_quota", gauge, "CPU quota of the container.", nil, limited(func(u Usage) float64 { return float64(u.CPULimit.Quota.Microseconds()) })},
	{"container_spec_cpu_period", gauge, "CPU period of the container.", nil, limited(func(u Usage) float64 { return float64(u.CPULimit.Period.Microseconds()) })},
	{"container_spec_cpu_shares", gauge, "CPU share of the container.", nil, bytesOf(func(u Usage) uint64 { return u.CPUShares })},
	{"container_spec_memory_limit_bytes", gauge, "Memory limit for the container.", nil, bytesOf(func(u Usage) uint64 { return u.MemoryLimit })},
	{"container_memory_working_set_bytes", gauge, "Current working set in bytes.", nil, bytesOf(func(u Usage) uint64 { return u.WorkingSet })},
	{"container_memory_usage_bytes", gauge, "Current memory usage in bytes, including all memory regardless of when it was accessed", nil, bytesOf(func(u Usage) uint64 { return u.Memory })},
	{"container_memory_max_usage_bytes", gauge, "Maximum memory usage recorded in bytes", nil, bytesOf(func(u Usage) uint64 { return u.MaxUsage })},
	{"container_memory_rss", gauge, "Size of RSS in bytes.", nil, bytesOf(func(u Usage) uint64 { return u.RSS })},
	{"container_memory_cache", gauge, "Number of bytes of page cache memory.", nil, bytesOf(func(u Usage) uint64 { return u.Cache })},
	{"container_memory_mapped_file", gauge, "Size of memory mapped files in bytes.", nil, bytesOf(func(u Usage) uint64 { return u.MappedFile })},
	{"container_memory_swap", gauge, "Container swap usage in bytes.", nil, bytesOf(func(u Usage) uint64 { return u.Swap })},
	{"container_oom_events_total", counter, "Count of out of memory events observed for the container", nil, bytesOf(func(u Usage) uint64 { return u.OOMKills })},
	{"container_processes", gauge, "Number of processes running inside the container.", nil, bytesOf(func(u Usage) uint64 { return u.Processes })},
	{"container_threads", gauge, "Number of threads running inside the container", nil, bytesOf(func(u Usage) uint64 { return u.Threads })},
	{"container_start_time_seconds", gauge, "Start time of the container since unix epoch in seconds.", nil, func(g group) (float64, bool) { return seconds(g.started), !g.started.IsZero() }},
	{"container_last_seen", gauge, "Last time a container was seen by the exporter", nil, func(g group) (float64, bool) { return float64(g.use.Timestamp.Unix()), true }},
}

// diskFamilies are told per block device.
var diskFamilies = []struct {
	name, help string
	value      func(Device) float64
}{
	{"container_fs_reads_bytes_total", "Cumulative count of bytes read", func(d Device) float64 { return float64(d.ReadBytes) }},
	{"container_fs_reads_total", "Cumulative count of reads completed", func(d Device) float64 { return float64(d.ReadOps) }},
	{"container_fs_writes_bytes_total", "Cumulative count of bytes written", func(d Device) float64 { return float64(d.WriteBytes) }},
	{"container_fs_writes_total", "Cumulative count of writes completed", func(d Device) float64 { return float64(d.WriteOps) }},
}

func cadvisorNetwork(e *exposition, groups []group) {
	for _, fam := range []struct {
		name, help string
		value      func(Interface) uint64
	}{
		{"container_network_receive_bytes_total", "Cumulative count of bytes received", func(i Interface) uint64 { return i.RxBytes }},
		{"container_network_receive_errors_total", "Cumulative count of errors encountered while receiving", func(i Interface) uint64 { return i.RxErrors }},
		{"container_network_receive_packets_dropped_total", "Cumulative count of packets dropped while receiving", func(i Interface) uint64 { return i.RxDropped }},
		{"container_network_receive_packets_total", "Cumulative count of packets received", func(i Interface) uint64 { return i.RxPackets }},
		{"container_network_transmit_bytes_total", "Cumulative count of bytes transmitted", func(i Interface) uint64 { return i.TxBytes }},
		{"container_network_transmit_errors_total", "Cumulative count of errors encountered while transmitting", func(i Interface) uint64 { return i.TxErrors }},
		{"container_network_transmit_packets_dropped_total", "Cumulative count of packets dropped while transmitting", func(i Interface) uint64 { return i.TxDropped }},
		{"container_network_transmit_packets_total", "Cumulative count of packets transmitted", func(i Interface) uint64 { return i.TxPackets }},
	} {
		e.family(fam.name, counter, fam.help)
		for _, g := range groups {
			for _, i := range g.interfaces {
				e.sample(g.with(label{"interface", i.Name}), float64(fam.value(i)), g.use.Timestamp)
			}
		}
	}
}

func cadvisorMachine(e *exposition, n NodeStats) {
	e.family("machine_cpu_cores", gauge, "Number of logical CPU cores.")
	e.plain(float64(n.CPUs))
	e.family("machine_memory_bytes", gauge, "Amount of memory installed on the machine.")
	e.plain(float64(n.Memory))
	if d := n.NodeFs; d != nil {
		root := group{id: "/"}.with(label{"device", "rootfs"})
		e.family("container_fs_limit_bytes", gauge, "Number of bytes that can be consumed by the container on this filesystem.")
		e.sample(root, float64(d.Capacity), d.Timestamp)
		e.family("container_fs_usage_bytes", gauge, "Number of bytes that are consumed by the container on this filesystem.")
		e.sample(root, float64(d.Used), d.Timestamp)
		e.family("container_fs_inodes_total", gauge, "Number of Inodes")
		e.sample(root, float64(d.Inodes), d.Timestamp)
		e.family("container_fs_inodes_free", gauge, "Number of available Inodes")
		e.sample(root, float64(d.InodesFree), d.Timestamp)
	}
	e.family("container_scrape_error", gauge, "1 if there was an error while getting container metrics, 0 otherwise")
	e.plain(0)
}
