package plan

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

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
	return !d.Limits.Probing || c.StartupProbe == nil || d.Health[k.ID].Started
}

// ready reports whether a container counts as ready.
func (d *decider) ready(c spec, k Container) bool {
	if !d.started(c, k) {
		return false
	}
	return !d.Limits.Probing || c.ReadinessProbe == nil || d.Health[k.ID].Ready
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
