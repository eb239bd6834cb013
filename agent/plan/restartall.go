package plan

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
)

// A container whose exit matches a rule with the action RestartAllContainers restarts the whole pod
// in place:
//
//	exit ──► all live containers of this round are killed: no grace period, no preStop
//	     ──► a new round: init containers, sidecars and app containers as for a new pod,
//	         in the same sandbox, with the same volumes, regardless of restart policies
//
// A round begins at an attempt number per container. These numbers are recorded when the exit is
// observed and are persisted before the first container is killed. An agent that restarts meanwhile
// continues from them and never kills a container of the new round.

// RestartAll is the start of the current round of all containers.
type RestartAll struct {
	TriggeredBy   string            `json:"By"`   // ID of the container whose exit triggered it
	FirstAttempts map[string]uint32 `json:"From"` // first attempt of this round by container name, default 0
}

// StopReasonRestartAll is the reason of a StopContainer for a new round.
const StopReasonRestartAll = string(corev1.ContainerRestartRuleActionRestartAllContainers)

// triggersRestartAll reports whether the exit code of a container triggers RestartAllContainers.
func triggersRestartAll(c spec, exit int32) bool {
	action, ruled := restartRule(c, exit)
	return ruled && action == corev1.ContainerRestartRuleActionRestartAllContainers
}

// fromEarlierRound reports whether an instance belongs to an earlier round.
func (d *decider) fromEarlierRound(k Container) bool {
	return k.Attempt < d.mem.RestartAll.FirstAttempts[k.Name]
}

// isCurrent reports whether an instance was created in this sandbox and round.
func (d *decider) isCurrent(k Container, sb Sandbox) bool {
	return k.SandboxID == sb.ID && !d.fromEarlierRound(k)
}

// restartAll starts a new round if an exit triggers one, stops the containers of earlier rounds and
// reports whether any of them is still live.
func (d *decider) restartAll() (inProgress bool) {
	for _, c := range d.specs {
		k, exists := d.newest(c.Name)
		if exists && k.State == Exited && !d.fromEarlierRound(k) && triggersRestartAll(c, k.ExitCode) {
			d.startRound(k)
			break
		}
	}
	d.cancel(func(a Action) bool {
		start, ok := a.(StartContainer)
		if ok && start.Attempt < d.mem.RestartAll.FirstAttempts[start.Name] {
			inProgress = true
			return true
		}
		return false
	})
	for _, k := range d.Observed.Containers {
		if d.fromEarlierRound(k) && k.Live() {
			inProgress = true
			d.stop(k, StopReasonRestartAll, d.Now, 0)
		}
	}
	return inProgress
}

// startRound starts a new round after the exit of k.
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

// earlierRoundRunning reports whether a container of an earlier round is live.
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

// canRestartAll reports whether a container of the pod has a rule with RestartAllContainers.
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

// restartAllCondition returns the condition AllContainersRestarting.
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

// MemoryAfterReboot returns the memory of a pod that was terminated by a node shutdown, for after
// the reboot: a new round of all containers (see RestartAll) in a new sandbox, regardless of their
// exit codes.
func MemoryAfterReboot(m Memory) Memory {
	from := make(map[string]uint32, len(m.Restarts))
	restarts := make(map[string]RestartState, len(m.Restarts))
	for name, r := range m.Restarts {
		restarts[name] = RestartState{NextAttempt: r.NextAttempt}
		if r.NextAttempt > 0 {
			from[name] = r.NextAttempt
		}
	}
	return Memory{StartTime: m.StartTime, Restarts: restarts, Exits: maps.Clone(m.Exits),
		RestartAll: RestartAll{FirstAttempts: from}}
}
