package plan

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
)

// A container whose exit matches a rule with the action RestartAllContainers
// takes the whole pod with it, in place:
//
//	exit ──► all that lives of this round is killed: no grace, no preStop
//	     ──► a new round: init containers, sidecars and mains as on the first day,
//	         in the same sandbox, with the same volumes, whatever their policies
//
// A round is a border between attempts, laid down when the exit is seen and on
// disk before the first container is killed: an agent that dies goes on where
// the border is, and never kills a container of the new round.

// Renewal is the border between the last round of all containers and this one.
type Renewal struct {
	By   string            `json:"By"`   // ID of the container whose exit asked for it
	From map[string]uint32 `json:"From"` // first attempt of this round, by container name; absent: 0
}

// WhyRenewed is the cause of a StopContainer for a new round.
const WhyRenewed = string(corev1.ContainerRestartRuleActionRestartAllContainers)

// renews reports whether the exit of a container asks for a new round.
func renews(c spec, exit int32) bool {
	action, ruled := byRule(c, exit)
	return ruled && action == corev1.ContainerRestartRuleActionRestartAllContainers
}

// past reports whether an instance belongs to an earlier round.
func (d *decider) past(k Container) bool { return k.Attempt < d.mem.Renewal.From[k.Name] }

// here reports whether an instance was made in this sandbox and this round.
func (d *decider) here(k Container, sb Sandbox) bool { return k.SandboxID == sb.ID && !d.past(k) }

// renew lays the border down if an exit asks for it, ends what lives beyond it
// and reports whether anything does.
func (d *decider) renew() (underWay bool) {
	for _, c := range d.specs {
		k, seen := d.newest(c.Name)
		if seen && k.State == Exited && !d.past(k) && renews(c, k.ExitCode) {
			d.border(k)
			break
		}
	}
	d.cancel(func(a Action) bool {
		start, ok := a.(StartContainer)
		if ok && start.Attempt < d.mem.Renewal.From[start.Name] {
			underWay = true
			return true
		}
		return false
	})
	for _, k := range d.Seen.Containers {
		if d.past(k) && k.Live() {
			underWay = true
			d.end(k, WhyRenewed, d.Now, 0)
		}
	}
	return underWay
}

// border begins a new round after the exit of k.
func (d *decider) border(k Container) {
	from := make(map[string]uint32, len(d.specs))
	for _, c := range d.specs {
		if next := d.mem.Restarts[c.Name].Next; next > 0 {
			from[c.Name] = next
		}
		if a, busy := d.Busy[StartContainer{Name: c.Name}.Key()].(StartContainer); busy {
			from[c.Name] = max(from[c.Name], a.Attempt+1)
		}
	}
	d.mem.Renewal = Renewal{By: k.ID, From: from}
}

// renewing reports whether anything of an earlier round is left.
func (d *decider) renewing() bool {
	for _, k := range d.Seen.Containers {
		if d.past(k) && k.Live() {
			return true
		}
	}
	return false
}

func (r Renewal) clone() Renewal {
	r.From = maps.Clone(r.From)
	return r
}

// renewable reports whether any container of the pod may ask for a new round.
func (d *decider) renewable() bool {
	for _, c := range d.specs {
		for _, r := range c.RestartPolicyRules {
			if r.Action == corev1.ContainerRestartRuleActionRestartAllContainers {
				return true
			}
		}
	}
	return false
}

// renewalCondition is the condition of pods that may be renewed.
func (d *decider) renewalCondition(phase corev1.PodPhase) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.AllContainersRestarting, Status: corev1.ConditionFalse}
	switch {
	case phase == corev1.PodSucceeded:
		c.Reason = "PodCompleted"
	case phase == corev1.PodFailed:
		c.Reason = "PodFailed"
	case d.mem.End == nil && d.renewing():
		c.Status = corev1.ConditionTrue
	}
	return c
}
