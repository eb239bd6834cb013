package explain

import (
	"berth/agent"
	"berth/agent/plan"
	"berth/nodeapi"
)

// Of is a pod as its last pass has left it. Progress says how far an action
// under way has come; empty: nobody knows.
func Of(s *agent.Snapshot, limits plan.Limits, progress func(plan.Action) string) Subject {
	x := Subject{
		Pod: s.Pod, Status: s.Status, End: s.End, Verdict: s.Verdict, Seen: s.Seen, Failed: s.Failed, Refs: s.Refs,
		Memory: s.Memory, Passes: s.Passes, At: s.At, Wake: s.Wake, Limits: limits,
	}
	for _, t := range s.Why {
		x.Why = append(x.Why, Told{Reason: t.Reason, Since: t.Since})
	}
	for _, w := range s.Busy {
		x.Busy = append(x.Busy, Busy{Action: w.Action, Since: w.Since, Detail: progress(w.Action)})
	}
	return x
}

// News is what the board tells of a pod, as watchers of pods are told it.
func News(n agent.News) nodeapi.PodEvent {
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
