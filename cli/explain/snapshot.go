package explain

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/agent/status"
	"berth/agent/status/events"
	"berth/nodeapi"
)

// FromSnapshot returns the state of a pod after its last sync. progress describes the progress of
// an action; empty: unknown.
func FromSnapshot(s *status.Snapshot, limits plan.Limits, progress func(plan.Action) string) PodState {
	x := PodState{
		Pod: s.Pod, Status: s.Status, Termination: s.Termination, Verdict: s.Verdict, Observed: s.Observed,
		Failed: s.Failures,
		Refs:   s.Refs,
		Memory: s.Memory, Syncs: s.Syncs, LastSync: s.At, NextSync: s.Wake, Limits: limits,
	}
	for _, t := range s.Reasons {
		x.Reasons = append(x.Reasons, TimedReason{Reason: t.Reason, Since: t.Since})
	}
	for _, w := range s.InProgress {
		x.InProgress = append(x.InProgress, Operation{Action: w.Action, Since: w.Since, Progress: progress(w.Action)})
	}
	return x
}

// PodEvent converts a notification of the status cache to a watch event.
func PodEvent(n status.Event) nodeapi.PodEvent {
	switch {
	case n.Added != nil:
		return nodeapi.PodEvent{Type: nodeapi.Added, Pod: n.Added.Object()}
	case n.Modified != nil:
		return nodeapi.PodEvent{Type: nodeapi.Modified, Pod: n.Modified.Object()}
	case n.Deleted != nil:
		return nodeapi.PodEvent{Type: nodeapi.Deleted, Pod: n.Deleted.Object()}
	}
	return nodeapi.PodEvent{Type: nodeapi.Synced}
}

// Timeline converts the timeline of a pod to its wire type.
func Timeline(pod *corev1.Pod, t *events.Timeline, now time.Time) nodeapi.Timeline {
	out := nodeapi.Timeline{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Now: now}
	spans, dropped := t.Spans()
	out.Dropped = dropped
	for _, s := range spans {
		kind := nodeapi.SpanAction
		if s.Parent != 0 {
			kind = nodeapi.SpanCall
		}
		name, on, _ := strings.Cut(s.Name, "/")
		out.Spans = append(out.Spans, nodeapi.Span{
			ID: int(s.ID), Parent: int(s.Parent), Kind: kind, Name: name, Target: on,
			Start: s.Start, End: s.End, Cause: s.Cause, Error: s.Err,
		})
	}
	return out
}
