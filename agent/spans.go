package agent

import (
	"context"

	"berth/agent/status/events"
)

// spanKey is the context key of the span that a runtime call belongs to.
type spanKey struct{}

type openSpan struct {
	timeline *events.Timeline
	id       events.SpanID
	stage    string
	making   *events.Stopwatch // runs while the runtime changes something for the pod
}

// span begins a span on the pod's timeline and hands it down with ctx, so that
// the runtime calls made under it become its children.
func (w *worker) span(ctx context.Context, stage, name, cause string) (context.Context, func(error)) {
	id := w.timeline.Begin(events.Span{Name: name, Stage: stage, Cause: cause})
	ctx = context.WithValue(ctx, spanKey{}, openSpan{w.timeline, id, stage, &w.runtimeTime})
	return ctx, func(err error) { w.timeline.End(id, err) }
}

// RuntimeCallSpan begins a span for a runtime call, as a child of the action that ctx
// belongs to; without one it does nothing. The CRI client's interceptor calls it.
func RuntimeCallSpan(ctx context.Context, name string) (end func(error)) {
	parent, ok := ctx.Value(spanKey{}).(openSpan)
	if !ok {
		return func(error) {}
	}
	id := parent.timeline.Begin(events.Span{Name: name, Stage: parent.stage, Parent: parent.id})
	if !changes(name) {
		return func(err error) { parent.timeline.End(id, err) }
	}
	made := parent.making.Begin()
	return func(err error) {
		made()
		parent.timeline.End(id, err)
	}
}

// changes reports whether a runtime call makes or ends something; the others
// only read.
func changes(call string) bool {
	switch call {
	case "RunPodSandbox", "StopPodSandbox", "RemovePodSandbox",
		"CreateContainer", "StartContainer", "StopContainer", "RemoveContainer", "PullImage":
		return true
	}
	return false
}

// StageFromContext returns the stage that ctx belongs to; empty: none.
func StageFromContext(ctx context.Context) string {
	s, _ := ctx.Value(spanKey{}).(openSpan)
	return s.stage
}
