package probes

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
)

// setPod sets the probes of a pod.
func (o *Manager) setPod(w *watch, now time.Time) {
	p := o.pods[w.pod.UID]
	if p == nil {
		p = &pod{}
		o.pods[w.pod.UID] = p
	}
	p.watch = *w
	keep := map[string]bool{}
	for _, want := range w.want {
		keep[want.ID] = true
		c := containerOf(w.pod, want.Name)
		if c == nil {
			continue
		}
		i := slices.IndexFunc(p.instances, func(x *instance) bool { return x.watch.ID == want.ID })
		if i < 0 {
			p.instances = append(p.instances, &instance{pod: p, watch: want, health: want.Health})
			i = len(p.instances) - 1
		}
		o.setContainer(p.instances[i], c, want, now)
	}
	p.instances = slices.DeleteFunc(p.instances, func(in *instance) bool {
		if !keep[in.watch.ID] {
			for _, x := range in.probes {
				o.stop(x)
			}
		}
		return !keep[in.watch.ID]
	})
	slices.SortFunc(p.instances, func(a, b *instance) int {
		return cmp.Or(cmp.Compare(a.watch.Name, b.watch.Name), cmp.Compare(a.watch.ID, b.watch.ID))
	})
}

func (o *Manager) setContainer(in *instance, c *corev1.Container, want plan.ProbeTarget, now time.Time) {
	in.watch.Probes, in.watch.Host = want.Probes, want.Host
	for _, k := range []struct {
		kind plan.ProbeKind
		want bool
		spec *corev1.Probe
	}{
		{plan.StartupProbe, want.Startup, c.StartupProbe},
		{plan.ReadinessProbe, want.Readiness, c.ReadinessProbe},
		{plan.LivenessProbe, want.Liveness, c.LivenessProbe},
	} {
		i := slices.IndexFunc(in.probes, func(x *probe) bool { return x.Kind == k.kind })
		if i >= 0 && (!k.want || k.spec == nil) {
			o.stop(in.probes[i])
		}
		if !k.want || k.spec == nil {
			continue
		}
		if i < 0 {
			in.probes = append(in.probes, o.newProbe(in, k.kind, k.spec, now))
			i = len(in.probes) - 1
		}
		o.configure(in.probes[i], c, k.spec, now)
	}
}

// newProbe returns a new probe, or one that continues the state of an earlier run of the agent.
func (o *Manager) newProbe(in *instance, kind plan.ProbeKind, spec *corev1.Probe, now time.Time) *probe {
	x := &probe{in: in, heapIndex: -1}
	r := thresholdsOf(spec, phaseSpread(in.pod.pod.UID, in.watch.Name, kind))
	if was := in.health.StateOf(kind); was != nil {
		x.probeState = resumeState(*was, r, passedBefore(in.health, kind, *was, r), now)
		return x
	}
	x.probeState = newState(kind, r, in.watch.StartedAt, time.Duration(spec.InitialDelaySeconds)*time.Second, now)
	return x
}

// passedBefore returns the result that an earlier run of the agent has determined.
func passedBefore(h plan.Health, kind plan.ProbeKind, was plan.ProbeState, r thresholds) *bool {
	switch {
	case kind == plan.ReadinessProbe && (h.Ready || !was.OK && was.Consecutive >= r.failure):
		return &h.Ready
	case kind == plan.StartupProbe && h.Started:
		return &h.Started
	}
	return nil
}

// configure schedules a probe with the current spec and address.
func (o *Manager) configure(x *probe, c *corev1.Container, spec *corev1.Probe, now time.Time) {
	if x.wanted && x.host == x.in.watch.Host && (x.spec == spec || equality.Semantic.DeepEqual(x.spec, spec)) {
		return
	}
	if x.spec != nil && !equality.Semantic.DeepEqual(x.spec, spec) {
		x.thresholds = thresholdsOf(spec, x.spread)
	}
	x.spec, x.host, x.timeout = spec, x.in.watch.Host, time.Duration(max(spec.TimeoutSeconds, 1))*time.Second
	x.execute = o.buildRunner(x, c)
	if !x.wanted && x.due.Before(now) {
		x.due = now
	}
	x.wanted = true
	o.reschedule(x)
}

// stop stops a probe. Its results are kept as long as its container.
func (o *Manager) stop(x *probe) {
	x.wanted = false
	o.schedule.remove(x)
	if x.run != nil {
		x.run.canceled = true
		x.run.cancel()
	}
}

func (o *Manager) removePod(uid types.UID) {
	p := o.pods[uid]
	if p == nil {
		return
	}
	for _, in := range p.instances {
		for _, x := range in.probes {
			o.stop(x)
		}
	}
	delete(o.pods, uid)
	if o.opt.OnForget != nil {
		o.opt.OnForget(p.pod)
	}
}

// phaseSpread returns the phase of a probe within its period. It is stable across restarts of the
// agent and different for every probe of the node.
func phaseSpread(uid types.UID, container string, kind plan.ProbeKind) float64 {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s/%s/%s", uid, container, kind) // a hash never fails
	x := h.Sum64()
	x ^= x >> 33 // mix the bits: similar names must get different phases
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return float64(x%(1<<20)+1) / (1 << 20)
}

func containerOf(pod *corev1.Pod, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}
