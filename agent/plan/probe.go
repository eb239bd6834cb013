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

// ProbeTarget asks for the probes of one running container instance.
type ProbeTarget struct {
	ID, Name  string
	StartedAt time.Time
	Host      string // address of the pod; empty: unknown
	Probes
	Health Health // what was known when it was first asked for
}

// ProbeState is how far one probe of one container instance has come. It changes
// with what counts only, not with every result.
type ProbeState struct {
	Kind        ProbeKind `json:"Kind"`
	OK          bool      `json:"OK"`                // the last result that counted
	Consecutive int32     `json:"Run"`               // how many such came in a row, at most the threshold
	Succeeded   bool      `json:"Once"`              // it has succeeded since the container began
	Phase       time.Time `json:"Phase"`             // a moment at which it was due; so it is every period after
	Failure     string    `json:"Failure,omitempty"` // what the failure that counted last said; empty: OK
}

// StateOf returns how far a probe has come; nil: nothing is known of it.
func (h Health) StateOf(kind ProbeKind) *ProbeState {
	for i := range h.Probes {
		if h.Probes[i].Kind == kind {
			return &h.Probes[i]
		}
	}
	return nil
}

// SameStatus reports whether users see the same of both.
func (h Health) SameStatus(other Health) bool {
	return h.Ready == other.Ready && h.Started == other.Started
}

// SameReadiness reports whether users see the same readiness by both memories, as
// far as the runtime does not tell it: what probes and postStart hooks have made
// of the containers, and since when the pod is ready by them.
func (m Memory) SameReadiness(other Memory) bool {
	if len(m.Health)+len(m.Hooks) == 0 {
		return true
	}
	return maps.EqualFunc(m.Health, other.Health, Health.SameStatus) &&
		!postStartFinished(m.Hooks, other.Hooks) &&
		sameCondition(m.Conditions, other.Conditions, corev1.ContainersReady) &&
		sameCondition(m.Conditions, other.Conditions, corev1.PodReady)
}

// postStartFinished reports whether a postStart hook has ended since.
func postStartFinished(now, was map[string]HookStatus) bool {
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

// ProbeTargets spells out which probes of which containers the plan wants.
func (p Plan) ProbeTargets(seen Observed) (all []ProbeTarget) {
	for _, k := range seen.Containers {
		if probes, wanted := p.Probes[k.ID]; wanted {
			all = append(all, ProbeTarget{ID: k.ID, Name: k.Name, StartedAt: k.StartedAt, Host: p.Status.PodIP, Probes: probes, Health: p.Memory.Health[k.ID]})
		}
	}
	return all
}

// recordHealth keeps what the probes of live containers add up to: after a
// restart of the agent it holds until they have run again.
func (d *decider) recordHealth() {
	var all map[string]Health
	if d.Limits.Probing {
		for _, k := range d.Observed.Containers {
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
	if k.State != Running || d.beingStarted(k.Name) || d.postStartUnfinished(k) {
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
