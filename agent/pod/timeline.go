package pod

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/agent/status/events"
)

// actionSpan returns the name of an action's span, which contains the object known to
// users, and the cause of the action. It is called before the action starts.
func (s *state) actionSpan(a plan.Action) (name, cause string) {
	key := a.Key()
	on := key.Target
	switch a := a.(type) {
	case plan.StopContainer:
		on = withAttempt(a.Name, s.containerAttempt(a.ID))
		cause = fmt.Sprintf("%s, grace %s", a.Reason, a.Grace.Round(time.Millisecond))
		if a.Grace >= time.Second {
			cause = fmt.Sprintf("%s, grace %s", a.Reason, a.Grace.Round(time.Second))
		}
	case plan.PreStop:
		on, cause = withAttempt(a.Name, s.containerAttempt(a.ID)), s.memory.Hooks[a.Name].Reason
	case plan.ResizeContainer:
		on, cause = withAttempt(a.Name, s.containerAttempt(a.ID)), "the pod's resources have changed"
	case plan.ResizeCgroup:
		cause = "the pod's resources have changed"
	case plan.PostStart:
		on, cause = withAttempt(a.Name, s.containerAttempt(a.ID)), "part of the container start"
	case plan.RemoveContainer:
		on, cause = withAttempt(a.Name, s.containerAttempt(a.ID)), s.terminationCause("replaced by a newer container")
		if s.isLive(a.ID) {
			cause = s.terminationCause("created but never started")
		}
	case plan.StopSandbox:
		on, cause = withAttempt("sandbox", s.sandboxAttempt(a.ID)), s.terminationCause("the sandbox is no longer ready")
	case plan.RemoveSandbox:
		on, cause = withAttempt("sandbox", s.sandboxAttempt(a.ID)), s.terminationCause("replaced by a newer sandbox")
	case plan.UnmountVolume, plan.RemoveCgroup, plan.RemoveDirs:
		cause = s.terminationCause("")
	case plan.MountVolume:
		cause = "a container mounts it"
		if a.Version != "" {
			cause += ", content " + shortVersion(a.Version)
		}
	case plan.ProjectVolume:
		before := cmp.Or(s.observed.Volumes[a.Volume].Version, "an unknown version")
		cause = fmt.Sprintf("content %s in place of %s", shortVersion(a.Version), shortVersion(before))
	case plan.RunSandbox:
		on, cause = withAttempt("sandbox", a.Attempt), "the pod has no sandbox"
		if a.Attempt > 0 {
			cause = fmt.Sprintf("attempt %d no longer exists", a.Attempt-1)
		}
	case plan.PullImage:
		cause = a.Image + ", not on this node"
		if a.Policy == corev1.PullAlways {
			cause = a.Image + ", policy Always"
		}
	case plan.StartContainer:
		on, cause = withAttempt(a.Name, a.Attempt), a.Kind.String()+", "+s.startCause(a)
	}
	return key.Verb + "/" + on, cause
}

// startCause distinguishes a first start from a restart.
func (s *state) startCause(a plan.StartContainer) string {
	var last plan.Container
	for _, k := range s.observed.Containers {
		if k.Name == a.Name {
			last = k
			break
		}
	}
	if last.ID == "" {
		last = s.memory.Exits[a.Name]
	}
	switch {
	case last.ID == "" && a.Attempt == 0:
		return "first start"
	case last.ID == "":
		return "restart, last exit unknown"
	case s.memory.Restarts[a.Name].Replacing == last.ID:
		return "restart after a stop to apply a change"
	default:
		return fmt.Sprintf("restart after exit %d", last.ExitCode)
	}
}

// terminationCause returns why the pod terminates; otherwise other.
func (s *state) terminationCause(other string) string {
	switch {
	case s.memory.Termination != nil:
		return "the pod is terminating: " + s.memory.Termination.Reason
	case s.verdict.State == plan.Rejected:
		return "the pod was rejected: " + s.verdict.Reason
	case IsTerminal(s.memory.Phase):
		return "the pod has " + strings.ToLower(string(s.memory.Phase))
	case !s.memory.FinishedAt.IsZero():
		return "the pod has completed"
	}
	return other
}

func (s *state) containerAttempt(container string) uint32 {
	for _, k := range s.observed.Containers {
		if k.ID == container {
			return k.Attempt
		}
	}
	return 0
}

func (s *state) sandboxAttempt(id string) uint32 {
	for _, x := range s.observed.Sandboxes {
		if x.ID == id {
			return x.Attempt
		}
	}
	return 0
}

func withAttempt(name string, attempt uint32) string {
	if attempt == 0 {
		return name
	}
	return fmt.Sprintf("%s (attempt %d)", name, attempt)
}

// shortVersion returns the part of a content version that is shown to users.
func shortVersion(version string) string {
	const limit = 16
	if len(version) <= limit {
		return version
	}
	return version[:limit] + "…"
}

// waitSpan is a span for something that the pod waits for.
type waitSpan struct{ stage, name, cause string }

// currentWaits lists the waits that get a span: for admission, for the network,
// and for the end of a back-off.
func (s *state) currentWaits(requested bool, now time.Time) (out []waitSpan) {
	if v := s.verdict; requested && !s.finishedOrTerminating() && v.State != plan.Admitted && v.State != plan.Rejected {
		out = append(out, waitSpan{"admit", "admit/", v.Reason})
	}
	for _, t := range s.reported {
		switch {
		case t.Code == "NetworkNotReady":
			out = append(out, waitSpan{"build-run", "wait/network", t.Message})
		case t.Until.After(now):
			w := waitSpan{"build-run", "back-off/" + cmp.Or(t.Target, "pod"), t.Message}
			for key, f := range s.failures {
				if key.String() == t.Target && f.Action != nil { // the action itself backs off
					name, _ := s.actionSpan(f.Action)
					w.name = "back-off/" + strings.ReplaceAll(name, "/", " ")
				}
			}
			out = append(out, w)
		}
	}
	return out
}

// updateWaitSpans starts the spans of new waits and ends those of finished ones.
func (w *Worker) updateWaitSpans(now time.Time) {
	open := w.waitSpans
	w.waitSpans = nil
	for _, x := range w.state.currentWaits(w.admission.requested, now) {
		id, known := open[x]
		if !known {
			id = w.timeline.Begin(events.Span{Name: x.name, Stage: x.stage, Cause: x.cause, Start: now})
		}
		if w.waitSpans == nil {
			w.waitSpans = map[waitSpan]events.SpanID{}
		}
		w.waitSpans[x] = id
		delete(open, x)
	}
	for _, id := range open {
		w.timeline.End(id, nil)
	}
}

// spanKey is the context key of the span that a runtime call belongs to.
type spanKey struct{}

type openSpan struct {
	timeline    *events.Timeline
	id          events.SpanID
	stage       string
	runtimeTime *events.Stopwatch // runs while the runtime changes something for the pod
}

// startSpan starts a span on the pod's timeline and puts it into ctx: the runtime
// calls made with ctx become its children.
func (w *Worker) startSpan(ctx context.Context, stage, name, cause string) (context.Context, func(error)) {
	id := w.timeline.Begin(events.Span{Name: name, Stage: stage, Cause: cause})
	ctx = context.WithValue(ctx, spanKey{}, openSpan{w.timeline, id, stage, &w.runtimeTime})
	return ctx, func(err error) { w.timeline.End(id, err) }
}

// RuntimeCallSpan starts a span for a runtime call, as a child of the span in ctx.
// Without a span in ctx it does nothing. The interceptor of the CRI client calls
// it.
func RuntimeCallSpan(ctx context.Context, name string) (end func(error)) {
	parent, ok := ctx.Value(spanKey{}).(openSpan)
	if !ok {
		return func(error) {}
	}
	id := parent.timeline.Begin(events.Span{Name: name, Stage: parent.stage, Parent: parent.id})
	if !changesRuntime(name) {
		return func(err error) { parent.timeline.End(id, err) }
	}
	stop := parent.runtimeTime.Start()
	return func(err error) {
		stop()
		parent.timeline.End(id, err)
	}
}

// changesRuntime reports whether a runtime call changes something. The others only
// read.
func changesRuntime(call string) bool {
	switch call {
	case "RunPodSandbox", "StopPodSandbox", "RemovePodSandbox",
		"CreateContainer", "StartContainer", "StopContainer", "RemoveContainer", "PullImage":
		return true
	}
	return false
}

// StageFromContext returns the stage that ctx belongs to. Empty: none.
func StageFromContext(ctx context.Context) string {
	s, _ := ctx.Value(spanKey{}).(openSpan)
	return s.stage
}
