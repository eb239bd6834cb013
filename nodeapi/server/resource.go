package server

import "net/http"

// The metrics of the kubelet's /metrics/resource.
var (
	resourceContainerCPU = counter("container_cpu_usage_seconds_total",
		"Cumulative cpu time consumed by the container in core-seconds", "container", "namespace", "pod")
	resourceContainerMemory = gauge("container_memory_working_set_bytes",
		"Current working set of the container in bytes", "container", "namespace", "pod")
	resourceContainerStart = gauge("container_start_time_seconds",
		"Start time of the container since unix epoch in seconds", "container", "namespace", "pod")
	resourceContainerSwap = gauge("container_swap_usage_bytes",
		"Current amount of the container swap usage in bytes", "container", "namespace", "pod")
	resourceNodeCPU = counter("node_cpu_usage_seconds_total",
		"Cumulative cpu time consumed by the node in core-seconds")
	resourceNodeMemory = gauge("node_memory_working_set_bytes", "Current working set of the node in bytes")
	resourceNodeSwap   = gauge("node_swap_usage_bytes", "Current swap usage of the node in bytes")
	resourcePodCPU     = counter("pod_cpu_usage_seconds_total",
		"Cumulative cpu time consumed by the pod in core-seconds", "namespace", "pod")
	resourcePodMemory = gauge("pod_memory_working_set_bytes",
		"Current working set of the pod in bytes", "namespace", "pod")
	resourcePodSwap = gauge("pod_swap_usage_bytes",
		"Current amount of the pod swap usage in bytes", "namespace", "pod")
	resourceErrors = []metricDesc{
		gauge("resource_scrape_error", "1 if there was an error while getting container metrics, 0 otherwise"),
		gauge("scrape_error", "1 if there was an error while getting container metrics, 0 otherwise"),
	}
)

// resource serves the metrics of the kubelet's /metrics/resource, which kubectl top and autoscalers
// use.
func (s *server) resource(w http.ResponseWriter, r *http.Request) {
	s.serveMetrics(w, r, collectResource)
}

func collectResource(stats Stats, out samples) {
	for _, p := range stats.Pods {
		for _, c := range p.Containers {
			u := c.Usage
			out.add(resourceContainerCPU, u.CPU.Seconds(), u.Timestamp, c.Name, p.Namespace, p.Name)
			out.add(resourceContainerMemory, float64(u.WorkingSet), u.Timestamp, c.Name, p.Namespace, p.Name)
			out.add(resourceContainerStart, seconds(c.Started), u.Timestamp, c.Name, p.Namespace, p.Name)
			out.add(resourceContainerSwap, float64(u.Swap), u.Timestamp, c.Name, p.Namespace, p.Name)
		}
		u := p.Usage
		out.add(resourcePodCPU, u.CPU.Seconds(), u.Timestamp, p.Namespace, p.Name)
		out.add(resourcePodMemory, float64(u.WorkingSet), u.Timestamp, p.Namespace, p.Name)
		out.add(resourcePodSwap, float64(u.Swap), u.Timestamp, p.Namespace, p.Name)
	}
	u := stats.Node.Usage
	out.add(resourceNodeCPU, u.CPU.Seconds(), u.Timestamp)
	out.add(resourceNodeMemory, float64(u.WorkingSet), u.Timestamp)
	out.add(resourceNodeSwap, float64(stats.Node.Swap.Used), u.Timestamp)
	for _, d := range resourceErrors {
		out.addNow(d, 0)
	}
}
