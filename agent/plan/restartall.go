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

// RestartAll is the border between the last round of all containers and this one.
type RestartAll struct {
	TriggeredBy   string            `json:"By"`   // ID of the container whose exit asked for it
	FirstAttempts map[string]uint32 `json:"From"` // first attempt of this round, by container name; absent: 0
}

// StopReasonRestartAll is the cause of a StopContainer for a new round.
const StopReasonRestartAll = string(corev1.ContainerRestartRuleActionRestartAllContainers)

// triggersRestartAll reports whether the exit of a container asks for a new round.
func triggersRestartAll(c spec, exit int32) bool {
	action, ruled := restartRule(c, exit)
	return ruled && action == corev1.ContainerRestartRuleActionRestartAllContainers
}

// fromEarlierRound reports whether an instance belongs to an earlier round.
func (d *decider) fromEarlierRound(k Container) bool {
	return k.Attempt < d.mem.RestartAll.FirstAttempts[k.Name]
}

// isCurrent reports whether an instance was made in this sandbox and this round.
func (d *decider) isCurrent(k Container, sb Sandbox) bool {
	return k.SandboxID == sb.ID && !d.fromEarlierRound(k)
}

// restartAll lays the border down if an exit asks for it, ends what lives beyond it
// and reports whether anything does.
func (d *decider) restartAll() (underWay bool) {
	for _, c := range d.specs {
		k, seen := d.newest(c.Name)
		if seen && k.State == Exited && !d.fromEarlierRound(k) && triggersRestartAll(c, k.ExitCode) {
			d.startRound(k)
			break
		}
	}
	d.cancel(func(a Action) bool {
		start, ok := a.(StartContainer)
		if ok && start.Attempt < d.mem.RestartAll.FirstAttempts[start.Name] {
			underWay = true
			return true
		}
		return false
	})
	for _, k := range d.Observed.Containers {
		if d.fromEarlierRound(k) && k.Live() {
			underWay = true
			d.stop(k, StopReasonRestartAll, d.Now, 0)
		}
	}
	return underWay
}

// startRound begins a new round after the exit of k.
func (d *decider) startRound(k Container) {
	from := make(map[string]uint32, len(d.specs))
	for _, c := range d.specs {
		if next := d.mem.Restarts[c.Name].NextAttempt; next > 0 {
			from[c.Name] = next
		}
		if a, busy := d.InProgress[StartContainer{Name: c.Name}.Key()].(StartContainer); busy {
			from[c.Name] = max(from[c.Name], a.Attempt+1)
		}
	}
	d.mem.RestartAll = RestartAll{TriggeredBy: k.ID, FirstAttempts: from}
}

// earlierRoundRunning reports whether anything of an earlier round is left.
func (d *decider) earlierRoundRunning() bool {
	for _, k := range d.Observed.Containers {
		if d.fromEarlierRound(k) && k.Live() {
			return true
		}
	}
	return false
}

func (r RestartAll) clone() RestartAll {
	r.FirstAttempts = maps.Clone(r.FirstAttempts)
	return r
}

// canRestartAll reports whether any container of the pod may ask for a new round.
func (d *decider) canRestartAll() bool {
	for _, c := range d.specs {
		for _, r := range c.RestartPolicyRules {
			if r.Action == corev1.ContainerRestartRuleActionRestartAllContainers {
				return true
			}
		}
	}
	return false
}

// restartAllCondition is the condition of pods that may be renewed.
func (d *decider) restartAllCondition(phase corev1.PodPhase) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.AllContainersRestarting, Status: corev1.ConditionFalse}
	switch {
	case phase == corev1.PodSucceeded:
		c.Reason = "PodCompleted"
	case phase == corev1.PodFailed:
		c.Reason = "PodFailed"
	case d.mem.Termination == nil && d.earlierRoundRunning():
		c.Status = corev1.ConditionTrue
	}
	return c
}

// MemoryAfterReboot is what a pod that a shutdown of its node has ended goes on with after
// the boot: a new round of all containers (see Renewal) in a new sandbox, whatever
// they came to when they were told to end.
func MemoryAfterReboot(m Memory) Memory {
	from := make(map[string]uint32, len(m.Restarts))
	restarts := make(map[string]RestartState, len(m.Restarts))
	for name, r := range m.Restarts {
		restarts[name] = RestartState{NextAttempt: r.NextAttempt}
		if r.NextAttempt > 0 {
			from[name] = r.NextAttempt
		}
	}
	return Memory{StartTime: m.StartTime, Restarts: restarts, Exits: maps.Clone(m.Exits), RestartAll: RestartAll{FirstAttempts: from}}
}
