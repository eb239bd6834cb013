package pod

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
)

// Prober runs the probes of plans. No method blocks.
type Prober interface {
	// Watch runs exactly these probes of a pod from now on. It calls health when the
	// combined result of a container's probes has changed, and event with what is
	// reported to users. Both are called from any goroutine and do not block.
	Watch(pod *corev1.Pod, want []plan.ProbeTarget, health func(id string, h plan.Health), event func(plan.Reason))
	// Forget drops the state of a deleted pod.
	Forget(uid types.UID)
}

// probeRequest is what was last requested of the prober.
type probeRequest struct {
	pod    *corev1.Pod
	podIP  string
	probes map[string]plan.Probes
}

// updateProbes requests the probes of the plan.
func (w *Worker) updateProbes(p plan.Plan) {
	if w.Prober == nil {
		return
	}
	pod, before := w.state.desired.Pod, w.probed
	if len(p.Probes) == 0 && len(before.probes) == 0 {
		return
	}
	if pod == before.pod && p.Status.PodIP == before.podIP && maps.Equal(p.Probes, before.probes) {
		return
	}
	w.probed = probeRequest{pod, p.Status.PodIP, p.Probes}
	report := func(r plan.Reason) { w.agent.Report(pod, r) }
	w.Prober.Watch(pod, p.ProbeTargets(w.state.observed), w.onHealth, report)
}

// onHealth receives the combined result of a container's probes.
func (w *Worker) onHealth(id string, h plan.Health) {
	w.inbox.put(func(m *messages) {
		if m.health == nil {
			m.health = map[string]plan.Health{}
		}
		m.health[id] = h
	})
}

// applyHealth applies new probe results and logs their changes. The plan
// reports when it kills a container for them.
func (w *Worker) applyHealth(results map[string]plan.Health) {
	s := w.state
	for _, k := range s.observed.Containers {
		if h, ok := results[k.ID]; ok && !h.SameStatus(s.memory.Health[k.ID]) {
			w.log.Info("container health changed", "containerName", k.Name, "started", h.Started, "ready", h.Ready)
		}
	}
	all := maps.Clone(s.health)
	maps.Copy(all, results)
	maps.DeleteFunc(all, func(id string, _ plan.Health) bool { return !s.isLive(id) })
	s.health = all
}
