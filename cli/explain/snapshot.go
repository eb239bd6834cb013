package explain

import (
	"berth/agent"
	"berth/agent/plan"
	"berth/nodeapi"
)

// FromSnapshot is a pod as its last pass has left it. Progress says how far an action
// under way has come; empty: nobody knows.
func FromSnapshot(s *agent.Snapshot, limits plan.Limits, progress func(plan.Action) string) PodState {
	x := PodState{
		Pod: s.Pod, Status: s.Status, Termination: s.End, Verdict: s.Verdict, Observed: s.Seen, Failed: s.Failed, Refs: s.Refs,
		Memory: s.Memory, Syncs: s.Passes, LastSync: s.At, NextSync: s.Wake, Limits: limits,
	}
	for _, t := range s.Why {
		x.Reasons = append(x.Reasons, TimedReason{Reason: t.Reason, Since: t.Since})
	}
	for _, w := range s.Busy {
		x.InProgress = append(x.InProgress, Operation{Action: w.Action, Since: w.Since, Progress: progress(w.Action)})
	}
	return x
}

// PodEvent is what the board tells of a pod, as watchers of pods are told it.
func PodEvent(n agent.News) nodeapi.PodEvent {
	switch {
	case n.Added != nil:
		return nodeapi.PodEvent{Type: nodeapi.Added, Pod: n.Added.Object()}
	case n.Modified != nil:
		return nodeapi.PodEvent{Type: nodeapi.Modified, Pod: n.Modified.Object()}
	case n.Gone != nil:
		return nodeapi.PodEvent{Type: nodeapi.Deleted, Pod: n.Gone.Object()}
	}
	return nodeapi.PodEvent{Type: nodeapi.Synced}
}
