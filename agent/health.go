package agent

import (
	"context"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
)

// Prober runs the probes that plans ask for. Neither method blocks.
type Prober interface {
	// Watch has exactly these probes of a pod run from now on. health is told
	// whenever the sum of a container's probes has changed, event what users are
	// to be told; both from any goroutine, and neither blocks.
	Watch(pod *corev1.Pod, want []plan.Watch, health func(id string, h plan.Health), event func(plan.Reason))
	// Forget says that nothing is left of a pod.
	Forget(uid types.UID)
}

// probeRequest is what was last asked of the prober.
type probeRequest struct {
	pod    *corev1.Pod
	host   string
	probes map[string]plan.Probes
}

// updateProbes has the probes run that the plan asks for.
func (w *worker) updateProbes(p plan.Plan) {
	if w.prober == nil {
		return
	}
	pod, was := w.state.desired.Pod, w.probed
	if len(p.Probes) == 0 && len(was.probes) == 0 {
		return
	}
	if pod == was.pod && p.Status.PodIP == was.host && maps.Equal(p.Probes, was.probes) {
		return
	}
	w.probed = probeRequest{pod, p.Status.PodIP, p.Probes}
	w.prober.Watch(pod, p.Watches(w.state.observed), w.onHealth, func(r plan.Reason) { w.tell(pod, r) })
}

// healthSaveTimeout is how long news of a container's health waits for the disk at most.
const healthSaveTimeout = 500 * time.Millisecond

// saveHealth has what probes and hooks have made of the containers on disk before
// users see it, and since when: an agent that is killed right after would begin
// with the time before, and take it back. A disk that is full or slow keeps nobody
// waiting for long.
func (w *worker) saveHealth(ctx context.Context, p plan.Plan) {
	was := w.lastMemory
	w.lastMemory = p.Memory
	if p.Memory.SameHealth(was) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, healthSaveTimeout)
	defer cancel()
	if err := w.sync(ctx, w.state.desired, w.state.persistentVerdict(), p.Memory); err != nil {
		w.log.Debug("health not on disk", "err", err)
	}
}

// onHealth takes what the probes of a container add up to.
func (w *worker) onHealth(id string, h plan.Health) {
	w.inbox.put(func(p *messages) {
		if p.health == nil {
			p.health = map[string]plan.Health{}
		}
		p.health[id] = h
	})
}

// applyHealth takes in news of the probes. What a container has come to is said once,
// here; that it is killed is said by the plan.
func (w *worker) applyHealth(news map[string]plan.Health) {
	b := w.state
	for _, k := range b.observed.Containers {
		if h, told := news[k.ID]; told && !h.Same(b.memory.Health[k.ID]) {
			w.log.Info("health", "container", k.Name, "started", h.Started, "ready", h.Ready)
		}
	}
	all := maps.Clone(b.health)
	maps.Copy(all, news)
	maps.DeleteFunc(all, func(id string, _ plan.Health) bool { return !b.isLive(id) })
	b.health = all
}
