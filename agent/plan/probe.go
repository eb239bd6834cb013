package plan

import (
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// ProbeKind tells the three probes of a container apart. Its value is how
// events and metrics name it.
type ProbeKind string

const (
	StartupProbe   ProbeKind = "Startup"
	ReadinessProbe ProbeKind = "Readiness"
	LivenessProbe  ProbeKind = "Liveness"
)

// Watch asks for the probes of one running container instance.
type Watch struct {
	ID, Name  string
	StartedAt time.Time
	Host      string // address of the pod; empty: unknown
	Probes
	Health Health // what was known when it was first asked for
}

// Probed is how far one probe of one container instance has come. It changes
// with what counts only, not with every result.
type Probed struct {
	Kind    ProbeKind `json:"Kind"`
	OK      bool      `json:"OK"`                // the last result that counted
	Run     int32     `json:"Run"`               // how many such came in a row, at most the threshold
	Once    bool      `json:"Once"`              // it has succeeded since the container began
	Phase   time.Time `json:"Phase"`             // a moment at which it was due; so it is every period after
	Failure string    `json:"Failure,omitempty"` // what the failure that counted last said; empty: OK
}

// Of returns how far a probe has come; nil: nothing is known of it.
func (h Health) Of(kind ProbeKind) *Probed {
	for i := range h.Probed {
		if h.Probed[i].Kind == kind {
			return &h.Probed[i]
		}
	}
	return nil
}

// Same reports whether users see the same of both.
func (h Health) Same(other Health) bool { return h.Ready == other.Ready && h.Started == other.Started }

// SameHealth reports whether users see the same readiness by both memories, as
// far as the runtime does not tell it: what probes and postStart hooks have made
// of the containers, and since when the pod is ready by them.
func (m Memory) SameHealth(other Memory) bool {
	if len(m.Health)+len(m.Hooks) == 0 {
		return true
	}
	return maps.EqualFunc(m.Health, other.Health, Health.Same) &&
		!hooksEnded(m.Hooks, other.Hooks) &&
		sameCondition(m.Conditions, other.Conditions, corev1.ContainersReady) &&
		sameCondition(m.Conditions, other.Conditions, corev1.PodReady)
}

// hooksEnded reports whether a postStart hook has ended since.
func hooksEnded(now, was map[string]Hook) bool {
	for name, h := range now {
		over := h.PostStart == HookDone || h.PostStart == HookFailed
		if b := was[name]; over && (b.Attempt != h.Attempt || b.PostStart != h.PostStart) {
			return true
		}
	}
	return false
}

// sameCondition reports whether a condition is the same since the same moment.
func sameCondition(a, b []corev1.PodCondition, kind corev1.PodConditionType) bool {
	of := func(all []corev1.PodCondition) corev1.PodCondition {
		for _, c := range all {
			if c.Type == kind {
				return c
			}
		}
		return corev1.PodCondition{}
	}
	now, was := of(a), of(b)
	return now.Status == was.Status && now.LastTransitionTime.Equal(&was.LastTransitionTime)
}

// Watches spells out which probes of which containers the plan wants.
func (p Plan) Watches(seen Observed) (all []Watch) {
	for _, k := range seen.Containers {
		if probes, wanted := p.Probes[k.ID]; wanted {
			all = append(all, Watch{ID: k.ID, Name: k.Name, StartedAt: k.StartedAt, Host: p.Status.PodIP, Probes: probes, Health: p.Memory.Health[k.ID]})
		}
	}
	return all
}

// rememberHealth keeps what the probes of live containers add up to: after a
// restart of the agent it holds until they have run again.
func (d *decider) rememberHealth() {
	var all map[string]Health
	if d.Limits.Probing {
		for _, k := range d.Seen.Containers {
			h, known := d.Health[k.ID]
			if !known {
				h, known = d.mem.Health[k.ID]
			}
			if !known || !k.Live() {
				continue
			}
			if all == nil {
				all = map[string]Health{}
			}
			all[k.ID] = h
		}
	}
	d.mem.Health = all
}

// probe says which probes of a container are wanted now.
func (d *decider) probe(c spec, k Container, p Probes) {
	p.Startup = p.Startup && c.StartupProbe != nil
	p.Readiness = p.Readiness && c.ReadinessProbe != nil && !p.Startup
	p.Liveness = p.Liveness && c.LivenessProbe != nil && !p.Startup
	if p == (Probes{}) {
		return
	}
	if d.out.Probes == nil {
		d.out.Probes = map[string]Probes{}
	}
	d.out.Probes[k.ID] = p
}

// started reports whether a container counts as started: running, its postStart
// hook ended, and past its startup probe.
func (d *decider) started(c spec, k Container) bool {
	if k.State != Running || d.beingStarted(k.Name) || d.unstarted(k) {
		return false
	}
	return !d.Limits.Probing || c.StartupProbe == nil || d.mem.Health[k.ID].Started
}

// ready reports whether a container counts as ready.
func (d *decider) ready(c spec, k Container) bool {
	if !d.started(c, k) {
		return false
	}
	return !d.Limits.Probing || c.ReadinessProbe == nil || d.mem.Health[k.ID].Ready
}

// probeGrace is the grace of a container that a probe has given up.
func (d *decider) probeGrace(c spec, probe string) time.Duration {
	var p *corev1.Probe
	switch probe {
	case "liveness":
		p = c.LivenessProbe
	case "startup":
		p = c.StartupProbe
	}
	if p != nil && p.TerminationGracePeriodSeconds != nil {
		return seconds(*p.TerminationGracePeriodSeconds)
	}
	return d.grace()
}
