package plan

import (
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// ProbeKind is the kind of a probe, as named in events and metrics.
type ProbeKind string

const (
	StartupProbe   ProbeKind = "Startup"
	ReadinessProbe ProbeKind = "Readiness"
	LivenessProbe  ProbeKind = "Liveness"
)

// ProbeTarget is a running container instance with the probes to run.
type ProbeTarget struct {
	ID, Name  string
	StartedAt time.Time
	Host      string // pod IP, empty: unknown
	Probes
	Health Health // result so far, when the probes start
}

// ProbeState is the progress of one probe of one container instance. It changes only with decisive
// results.
type ProbeState struct {
	Kind        ProbeKind `json:"Kind"`
	OK          bool      `json:"OK"`                // last decisive result
	Consecutive int32     `json:"Run"`               // consecutive results like it, at most the threshold
	Succeeded   bool      `json:"Once"`              // has succeeded since the container started
	Phase       time.Time `json:"Phase"`             // time of one run, runs are due at multiples of the period from it
	Failure     string    `json:"Failure,omitempty"` // output of the last decisive failure, empty with OK
}

// StateOf returns the progress of a probe, or nil if it is unknown.
func (h Health) StateOf(kind ProbeKind) *ProbeState {
	for i := range h.Probes {
		if h.Probes[i].Kind == kind {
			return &h.Probes[i]
		}
	}
	return nil
}

// SameStatus reports whether both result in the same container status.
func (h Health) SameStatus(other Health) bool {
	return h.Ready == other.Ready && h.Started == other.Started
}

// SameReadiness reports whether both memories result in the same readiness, as far as it depends on
// probes and postStart hooks and not on the runtime.
func (m Memory) SameReadiness(other Memory) bool {
	if len(m.Health)+len(m.Hooks) == 0 {
		return true
	}
	return maps.EqualFunc(m.Health, other.Health, Health.SameStatus) &&
		!postStartFinished(m.Hooks, other.Hooks) &&
		sameCondition(m.Conditions, other.Conditions, corev1.ContainersReady) &&
		sameCondition(m.Conditions, other.Conditions, corev1.PodReady)
}

// postStartFinished reports whether a postStart hook has finished between was and now.
func postStartFinished(now, was map[string]HookStatus) bool {
	for name, h := range now {
		finished := h.PostStart == HookDone || h.PostStart == HookFailed
		if b := was[name]; finished && (b.Attempt != h.Attempt || b.PostStart != h.PostStart) {
			return true
		}
	}
	return false
}

// sameCondition reports whether a condition has the same status and transition time.
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

// ProbeTargets returns the probes of the plan by container.
func (p *Plan) ProbeTargets(observed Observed) (all []ProbeTarget) {
	for _, k := range observed.Containers {
		if probes, wanted := p.Probes[k.ID]; wanted {
			all = append(all, ProbeTarget{ID: k.ID, Name: k.Name, StartedAt: k.StartedAt, Host: p.Status.PodIP,
				Probes: probes,
				Health: p.Memory.Health[k.ID]})
		}
	}
	return all
}

// recordHealth records the probe results of live containers. After a restart of the agent they
// apply until the probes have run again.
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

// probe plans the probes of a container.
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

// started reports whether a container counts as started: it is running, its postStart hook has
// succeeded and its startup probe has succeeded.
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

// probeGrace returns the grace period of a container whose probe has failed.
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
