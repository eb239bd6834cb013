package server

import "net/http"

// resource tells what `kubectl top` and autoscalers need, as the kubelet's
// /metrics/resource.
func (s *server) resource(w http.ResponseWriter, r *http.Request) {
	f, err := s.h.Figures(r.Context(), false)
	if err != nil {
		complain(w, err)
		return
	}
	e := newExposition()
	defer e.send(w)
	containers := func(each func(PodFigures, ContainerFigures, []label)) {
		for _, p := range f.Pods {
			for _, k := range p.Containers {
				each(p, k, []label{{"container", k.Name}, {"namespace", p.Namespace}, {"pod", p.Name}})
			}
		}
	}
	pods := func(each func(Use, []label)) {
		for _, p := range f.Pods {
			each(p.Use, []label{{"namespace", p.Namespace}, {"pod", p.Name}})
		}
	}
	e.family("container_cpu_usage_seconds_total", counter, "Cumulative cpu time consumed by the container in core-seconds")
	containers(func(_ PodFigures, k ContainerFigures, l []label) { e.sample(l, k.Use.CPU.Seconds(), k.Use.At) })
	e.family("container_memory_working_set_bytes", gauge, "Current working set of the container in bytes")
	containers(func(_ PodFigures, k ContainerFigures, l []label) { e.sample(l, float64(k.Use.WorkingSet), k.Use.At) })
	e.family("container_start_time_seconds", gauge, "Start time of the container since unix epoch in seconds")
	containers(func(_ PodFigures, k ContainerFigures, l []label) { e.sample(l, seconds(k.Started), k.Use.At) })
	e.family("container_swap_usage_bytes", gauge, "Current amount of the container swap usage in bytes")
	containers(func(_ PodFigures, k ContainerFigures, l []label) { e.sample(l, float64(k.Use.Swap), k.Use.At) })

	n := f.Node
	e.family("node_cpu_usage_seconds_total", counter, "Cumulative cpu time consumed by the node in core-seconds")
	e.sample(nil, n.Use.CPU.Seconds(), n.Use.At)
	e.family("node_memory_working_set_bytes", gauge, "Current working set of the node in bytes")
	e.sample(nil, float64(n.Use.WorkingSet), n.Use.At)
	e.family("node_swap_usage_bytes", gauge, "Current swap usage of the node in bytes")
	e.sample(nil, float64(n.Swap.Used), n.Use.At)

	e.family("pod_cpu_usage_seconds_total", counter, "Cumulative cpu time consumed by the pod in core-seconds")
	pods(func(u Use, l []label) { e.sample(l, u.CPU.Seconds(), u.At) })
	e.family("pod_memory_working_set_bytes", gauge, "Current working set of the pod in bytes")
	pods(func(u Use, l []label) { e.sample(l, float64(u.WorkingSet), u.At) })
	e.family("pod_swap_usage_bytes", gauge, "Current amount of the pod swap usage in bytes")
	pods(func(u Use, l []label) { e.sample(l, float64(u.Swap), u.At) })
	for _, name := range []string{"resource_scrape_error", "scrape_error"} {
		e.family(name, gauge, "1 if there was an error while getting container metrics, 0 otherwise")
		e.plain(0)
	}
}
