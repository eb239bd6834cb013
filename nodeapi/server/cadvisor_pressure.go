package server

import "time"

// pressureMetric is a metric of cgroups whose pressure stall information is available.
func pressureMetric(name, help string, of func(PSI) time.Duration) cgroupMetric {
	return cgroupMetric{counter(name, help, cgroupLabels()...), func(g cgroup) (float64, bool) {
		if g.usage.PSI == nil || g.isSandbox() {
			return 0, false
		}
		return of(*g.usage.PSI).Seconds(), true
	}}
}

// cadvisorPressureMetrics are the metrics of pressure stall information.
var cadvisorPressureMetrics = []cgroupMetric{
	pressureMetric("container_pressure_cpu_waiting_seconds_total",
		"Total time duration tasks in the container have waited due to CPU congestion.",
		func(p PSI) time.Duration { return p.CPU.Some.Total }),
	pressureMetric("container_pressure_cpu_stalled_seconds_total",
		"Total time duration no tasks in the container could make progress due to CPU congestion.",
		func(p PSI) time.Duration { return p.CPU.Full.Total }),
	pressureMetric("container_pressure_memory_waiting_seconds_total",
		"Total time duration tasks in the container have waited due to memory congestion.",
		func(p PSI) time.Duration { return p.Memory.Some.Total }),
	pressureMetric("container_pressure_memory_stalled_seconds_total",
		"Total time duration no tasks in the container could make progress due to memory congestion.",
		func(p PSI) time.Duration { return p.Memory.Full.Total }),
	pressureMetric("container_pressure_io_waiting_seconds_total",
		"Total time duration tasks in the container have waited due to IO congestion.",
		func(p PSI) time.Duration { return p.IO.Some.Total }),
	pressureMetric("container_pressure_io_stalled_seconds_total",
		"Total time duration no tasks in the container could make progress due to IO congestion.",
		func(p PSI) time.Duration { return p.IO.Full.Total }),
}

// memoryFailures counts page faults by failure_type, with cAdvisor's label scope. The values of a cgroup
// include its descendants.
var memoryFailures = counter("container_memory_failures_total",
	"Cumulative count of memory allocation failures.", cgroupLabels("failure_type", "scope")...)

// collectPressure adds the pressure stall information and the page faults of a cgroup.
func collectPressure(g cgroup, out samples) {
	for _, m := range cadvisorPressureMetrics {
		if v, ok := m.value(g); ok {
			out.add(m.metricDesc, v, g.usage.Timestamp, g.labels()...)
		}
	}
	if g.isSandbox() {
		return
	}
	for kind, n := range map[string]uint64{"pgfault": g.usage.Faults, "pgmajfault": g.usage.MajorFaults} {
		out.add(memoryFailures, float64(n), g.usage.Timestamp, g.labels(kind, "hierarchy")...)
	}
}
