package explain

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/status/events"
	"berth/nodeapi"
)

// Timeline is the timeline of a pod on the wire.
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
