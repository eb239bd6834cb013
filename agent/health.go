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

// watched is what was last asked of the prober.
type watched struct {
	pod    *corev1.Pod
	host   string
	probes map[string]plan.Probes
}

// watch has the probes run that the plan asks for.
func (w *worker) watch(p plan.Plan) {
	if w.prober == nil {
		return
	}
	pod, was := w.book.wish.Pod, w.watched
	if len(p.Probes) == 0 && len(was.probes) == 0 {
		return
	}
	if pod == was.pod && p.Status.PodIP == was.host && maps.Equal(p.Probes, was.probes) {
		return
	}
	w.watched = watched{pod, p.Status.PodIP, p.Probes}
	w.prober.Watch(pod, p.Watches(w.book.seen), w.healthy, func(r plan.Reason) { w.tell(pod, r) })
}

// keepBound is how long news of a container's health waits for the disk at most.
const keepBound = 500 * time.Millisecond

// keepHealth has what probes and hooks have made of the containers on disk before
// users see it, and since when: an agent that is killed right after would begin
// with the time before, and take it back. A disk that is full or slow keeps nobody
// waiting for long.
func (w *worker) keepHealth(ctx context.Context, p plan.Plan) {
	was := w.told
	w.told = p.Memory
	if p.Memory.SameHealth(was) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, keepBound)
	defer cancel()
	if err := w.sync(ctx, w.book.wish, w.book.lasting(), p.Memory); err != nil {
		w.log.Debug("health not on disk", "err", err)
	}
}

// healthy takes what the probes of a container add up to.
func (w *worker) healthy(id string, h plan.Health) {
	w.mail.put(func(p *post) {
		if p.health == nil {
			p.health = map[string]plan.Health{}
		}
		p.health[id] = h
	})
}

// feels takes in news of the probes. What a container has come to is said once,
// here; that it is killed is said by the plan.
func (w *worker) feels(news map[string]plan.Health) {
	b := w.book
	for _, k := range b.seen.Containers {
		if h, told := news[k.ID]; told && !h.Same(b.memory.Health[k.ID]) {
			w.log.Info("health", "container", k.Name, "started", h.Started, "ready", h.Ready)
		}
	}
	all := maps.Clone(b.health)
	maps.Copy(all, news)
	maps.DeleteFunc(all, func(id string, _ plan.Health) bool { return !b.lives(id) })
	b.health = all
}
