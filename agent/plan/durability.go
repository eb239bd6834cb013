package plan

// The durability contract of a Plan defines which part of it must be on disk before an action may
// start, and before its status is published. The worker first passes Plan.Memory to the store, then
// waits as the contract requires, and starts all other actions immediately.
//
//	action                                        requires         without it, an agent killed in between
//	any cleanup action of a terminating pod       termination      runs a partially removed pod again
//	PreStop                                       memory           does not continue the termination
//	StopContainer that replaces the container     memory           takes its stop for the container's own exit
//	ResizeContainer                               memory           does not know the size of the container
//	StartContainer of one with a postStart hook   memory           takes a container for started without its hook
//
// The wait is bounded: a full or failing disk delays an action and does not block it.

// Requirement is what must be on disk before an action may start.
type Requirement int

const (
	Nothing           Requirement = iota
	TerminationOnDisk             // Memory.Termination of this plan, or an equal one of an earlier plan
	MemoryOnDisk                  // Memory of this plan, including its Termination
)

// Requires returns what must be on disk before an action of the plan may start.
func (p *Plan) Requires(a Action) Requirement { return p.Requirements[a.Key()] }

// setDurability sets the durability contract. before is the memory of the previous plan, or the
// memory restored from disk.
func (p *Plan) setDurability(before Memory) {
	p.Requirements = nil
	require := func(a Action, r Requirement) {
		if r == Nothing {
			return
		}
		if p.Requirements == nil {
			p.Requirements = map[ActionKey]Requirement{}
		}
		p.Requirements[a.Key()] = r
	}
	for _, a := range p.Cleanup {
		require(a, p.cleanupRequires(a))
	}
	for _, a := range p.BuildRun {
		require(a, p.buildRunRequires(a))
	}
	p.MemoryBeforeStatus = !p.Memory.SameReadiness(before)
}

func (p *Plan) cleanupRequires(a CleanupAction) Requirement {
	switch a := a.(type) {
	case PreStop:
		return MemoryOnDisk
	case StopContainer:
		if a.IsReplacement() {
			return MemoryOnDisk
		}
	}
	if p.Memory.Termination != nil {
		return TerminationOnDisk
	}
	return Nothing
}

func (p *Plan) buildRunRequires(a BuildRunAction) Requirement {
	switch a := a.(type) {
	case ResizeContainer:
		return MemoryOnDisk
	case StartContainer:
		if p.Memory.Hooks[a.Name].PostStart == HookPending {
			return MemoryOnDisk
		}
	}
	return Nothing
}
