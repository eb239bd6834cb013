package server

import "net/http"

// resource tells what `kubectl top` and autoscalers need, as the kubelet's
// /metrics/resource.
func (s *server) resource(w http.ResponseWriter, r *http.Request) {
	f, err := s.h.Stats(r.Context(), false)
	if err != nil {
		complain(w, err)
		return
	}
	e := newExposition()
	defer e.send(w)
	containers := func(each func(PodStats, ContainerStats, []label)) {
		for _, p := range f.Pods {
			for _, k := range p.Containers {
				each(p, k, []label{{"container", k.Name}, {"namespace", p.Namespace}, {"pod", p.Name}})
			}
		}
	}
	pods := func(each func(Usage, []label)) {
		for _, p := range f.Pods {
			each(p.Usage, []label{{"namespace", p.Namespace}, {"pod", p.Name}})
		}
	}
	e.family("container_cpu_usage_seconds_total", counter, "Cumulative cpu time consumed by the container in core-seconds")
	containers(func(_ PodStats, k ContainerStats, l []label) { e.sample(l, k.Usage.CPU.Seconds(), k.Usage.Timestamp) })
	e.family("container_memory_working_set_bytes", gauge, "Current working set of the container in bytes")
	containers(func(_ PodStats, k ContainerStats, l []label) {
		e.sample(l, float64(k.Usage.WorkingSet), k.Usage.Timestamp)
	})
	e.family("container_start_time_seconds", gauge, "Start time of the container since unix epoch in seconds")
	containers(func(_ PodStats, k ContainerStats, l []label) { e.sample(l, seconds(k.Started), k.Usage.Timestamp) })
	e.family("container_swap_usage_bytes", gauge, "Current amount of the container swap usage in bytes")
	containers(func(_ PodStats, k ContainerStats, l []label) { e.sample(l, float64(k.Usage.Swap), k.Usage.Timestamp) })

	n := f.Node
	e.family("node_cpu_usage_seconds_total", counter, "Cumulative cpu time consumed by the node in core-seconds")
	e.sample(nil, n.Usage.CPU.Seconds(), n.Usage.Timestamp)
	e.family("node_memory_working_set_bytes", gauge, "Current working set of the node in bytes")
	e.sample(nil, float64(n.Usage.WorkingSet), n.Usage.Timestamp)
	e.family("node_swap_usage_bytes", gauge, "Current swap usage of the node in bytes")
	e.sample(nil, float64(n.Swap.Used), n.Usage.Timestamp)

	e.family("pod_cpu_usage_seconds_total", counter, "Cumulative cpu time consumed by the pod in core-seconds")
	pods(func(u Usage, l []label) { e.sample(l, u.CPU.Seconds(), u.Timestamp) })
	e.family("pod_memory_working_set_bytes", gauge, "Current working set of the pod in bytes")
	pods(func(u Usage, l []label) { e.sample(l, float64(u.WorkingSet), u.Timestamp) })
	e.family("pod_swap_usage_bytes", gauge, "Current amount of the pod swap usage in bytes")
	pods(func(u Usage, l []label) { e.sample(l, float64(u.Swap), u.Timestamp) })
	for _, name := range []string{"resource_scrape_error", "scrape_error"} {
		e.family(name, gauge, "1 if there was an error while getting container metrics, 0 otherwise")
		e.plain(0)
	}
}
