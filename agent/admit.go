package agent

import (
	"berth/agent/allocator"
	"berth/agent/plan"
)

// Admit is stage 2: it asks the room whether the pod may run here. The answer
// is kept per pod; only Wait is asked again, by the room itself.
type Admit struct{}

// ask begins the question; every answer comes by reply, which never blocks.
func (Admit) ask(r *allocator.Room, b *state, running bool, reply func(plan.Verdict), end func(plan.End)) {
	r.Ask(allocator.Seat{
		Pod: b.podWithAllocation(),
		// A pod that runs here, or was let in before a restart, is not judged
		// again: a fuller or relabelled node never kills what runs.
		Admitted: running || b.verdict.State == plan.OK,
		Reply:    reply,
		End:      end,
	})
}
