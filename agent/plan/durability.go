package plan

// The durability contract of a Plan: which part of it must be on disk before which
// of its actions may start, and before its status is published. The worker that
// executes the plan hands Plan.Memory to the store first, then waits where the contract
// says so, and starts everything else at once.
//
//	action                                        requires         without it, an agent killed in between
//	any cleanup action of a terminating pod       termination      runs a pod again that is half removed
//	PreStop                                       memory           does not continue a started termination
//	StopContainer that replaces the container     memory           takes its end for the container's own exit
//	ResizeContainer                               memory           does not know which size the container has
//	StartContainer of one with a postStart hook   memory           takes a container for started without its hook
//
// The wait is bounded: a full or failing disk delays an action and does not block
// it.

// Requirement is what must be on disk before an action may start.
type Requirement int

const (
	Nothing           Requirement = iota
	TerminationOnDisk             // Memory.End of this plan; that of an earlier plan will do if it is equal
	MemoryOnDisk                  // Memory of this plan, which includes its End
)

// Requires returns what must be on disk before an action of the plan may start.
func (p Plan) Requires(a Action) Requirement { return p.Requirements[a.Key()] }

// setDurability fills in the durability contract. before is the memory of the
// previous plan, or what was restored from disk.
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
