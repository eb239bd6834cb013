package plan

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// transitionTime returns the transition time of a condition: the time known from the runtime if
// there is one, otherwise now. An agent that has lost its memory therefore reports the same time.
// It is never before the previous transition.
func (d *decider) transitionTime(c corev1.PodCondition) time.Time {
	var was *corev1.PodCondition
	for i := range d.mem.Conditions {
		if d.mem.Conditions[i].Type == c.Type {
			was = &d.mem.Conditions[i]
		}
	}
	if was != nil && was.Status == c.Status {
		return was.LastTransitionTime.Time
	}
	t := d.runtimeTime(c, was)
	switch {
	case t.IsZero(), t.After(d.Now):
		return d.Now
	case was != nil && t.Before(was.LastTransitionTime.Time):
		return was.LastTransitionTime.Time
	}
	return t
}

// runtimeTime returns the transition time known from the runtime, or zero. was is the previous
// condition, or nil if it is unknown, in which case an estimate is returned.
func (d *decider) runtimeTime(c corev1.PodCondition, was *corev1.PodCondition) time.Time {
	yes := c.Status == corev1.ConditionTrue
	switch c.Type {
	case corev1.PodScheduled:
		return d.mem.StartTime
	case corev1.PodReadyToStartContainers:
		if sb, ok := d.currentSandbox(); yes && ok {
			return sb.CreatedAt
		}
	case corev1.PodInitialized:
		if yes {
			return d.initializedAt()
		}
	case corev1.ContainersReady, corev1.PodReady:
		switch {
		case yes && (was == nil || d.readyByStart()) &&
			(c.Type == corev1.ContainersReady || was == nil || len(d.Pod.Spec.ReadinessGates) == 0):
			return d.startedAt()
		case !yes:
			if at := d.firstExit(was); !at.IsZero() {
				return at
			}
		}
	}
	if !yes && was == nil && len(d.Observed.Sandboxes)+len(d.Observed.Containers) == 0 {
		return d.mem.StartTime // the condition never had another status
	}
	return time.Time{}
}

// initializedAt returns when the last init container finished or sidecar started. It is the pod's
// start time without init containers and zero if one of the times is unknown.
func (d *decider) initializedAt() time.Time {
	at := d.mem.StartTime
	for _, c := range d.specs {
		k, exists := d.newest(c.Name)
		end := k.FinishedAt
		switch {
		case c.kind == Sidecar:
			end = k.StartedAt
		case c.kind != Init:
			continue
		}
		if !exists || end.IsZero() {
			return time.Time{}
		}
		at = latest(at, end)
	}
	return at
}

// readyByStart reports whether the containers become ready by being started.
func (d *decider) readyByStart() bool {
	for _, c := range d.specs {
		if c.kind != Main && c.kind != Sidecar {
			continue
		}
		hook := c.Lifecycle != nil && c.Lifecycle.PostStart != nil
		if hook || d.Limits.Probing && (c.StartupProbe != nil || c.ReadinessProbe != nil) {
			return false
		}
	}
	return true
}

// startedAt returns when the last container that must be ready started.
func (d *decider) startedAt() (at time.Time) {
	for _, c := range d.specs {
		if c.kind != Main && c.kind != Sidecar {
			continue
		}
		if k, exists := d.newest(c.Name); exists {
			at = latest(at, k.StartedAt)
		}
	}
	return at
}

// firstExit returns when the first container that must be ready exited after the previous
// transition, or zero.
func (d *decider) firstExit(was *corev1.PodCondition) (at time.Time) {
	for _, c := range d.specs {
		if c.kind != Main && c.kind != Sidecar {
			continue
		}
		k, exists := d.newest(c.Name)
		if !exists || k.State != Exited || k.FinishedAt.IsZero() || was != nil &&
			k.FinishedAt.Before(was.LastTransitionTime.Time) {
			continue
		}
		if at.IsZero() || k.FinishedAt.Before(at) {
			at = k.FinishedAt
		}
	}
	return at
}

// oldestCreation returns the oldest creation time in the runtime, or now.
func (d *decider) oldestCreation() time.Time {
	at := d.Now
	for _, s := range d.Observed.Sandboxes {
		if !s.CreatedAt.IsZero() && s.CreatedAt.Before(at) {
			at = s.CreatedAt
		}
	}
	for _, k := range d.Observed.Containers {
		if !k.CreatedAt.IsZero() && k.CreatedAt.Before(at) {
			at = k.CreatedAt
		}
	}
	return at
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
