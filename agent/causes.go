package agent

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/agent/status/events"
)

// actionSpan names an action as users know what it is about, and says why it is
// done. It is asked before the action begins.
func (b *state) actionSpan(a plan.Action) (name, cause string) {
	key := a.Key()
	on := key.On
	switch a := a.(type) {
	case plan.StopContainer:
		on = withAttempt(a.Name, b.containerAttempt(a.ID))
		cause = fmt.Sprintf("%s, grace %s", a.Why, a.Grace.Round(time.Millisecond))
		if a.Grace >= time.Second {
			cause = fmt.Sprintf("%s, grace %s", a.Why, a.Grace.Round(time.Second))
		}
	case plan.PreStop:
		on, cause = withAttempt(a.Name, b.containerAttempt(a.ID)), b.memory.Hooks[a.Name].Why
	case plan.ResizeContainer:
		on, cause = withAttempt(a.Name, b.containerAttempt(a.ID)), "the pod's resources have changed"
	case plan.ResizeCgroup:
		cause = "the pod's resources have changed"
	case plan.PostStart:
		on, cause = withAttempt(a.Name, b.containerAttempt(a.ID)), "part of its start"
	case plan.RemoveContainer:
		on, cause = withAttempt(a.Name, b.containerAttempt(a.ID)), b.terminationCause("a newer one has taken its place")
		if b.isLive(a.ID) {
			cause = b.terminationCause("it was made but never started")
		}
	case plan.StopSandbox:
		on, cause = withAttempt("sandbox", b.sandboxAttempt(a.ID)), b.terminationCause("it is not ready any more")
	case plan.RemoveSandbox:
		on, cause = withAttempt("sandbox", b.sandboxAttempt(a.ID)), b.terminationCause("another takes its place")
	case plan.UnmountVolume, plan.RemoveCgroup, plan.RemoveDirs:
		cause = b.terminationCause("")
	case plan.MountVolume:
		cause = "a container mounts it"
		if a.Version != "" {
			cause += ", content " + shortVersion(a.Version)
		}
	case plan.ProjectVolume:
		cause = fmt.Sprintf("content %s in place of %s", shortVersion(a.Version), shortVersion(cmp.Or(b.observed.Volumes[a.Volume].Version, "an unknown one")))
	case plan.RunSandbox:
		on, cause = withAttempt("sandbox", a.Attempt), "the pod has none"
		if a.Attempt > 0 {
			cause = fmt.Sprintf("attempt %d is gone", a.Attempt-1)
		}
	case plan.PullImage:
		cause = a.Image + ", not on this node"
		if a.Policy == corev1.PullAlways {
			cause = a.Image + ", policy Always"
		}
	case plan.StartContainer:
		on, cause = withAttempt(a.Name, a.Attempt), a.Kind.String()+", "+b.startCause(a)
	}
	return key.Verb + "/" + on, cause
}

// startCause tells a first start from a restart.
func (b *state) startCause(a plan.StartContainer) string {
	var last plan.Container
	for _, k := range b.observed.Containers {
		if k.Name == a.Name {
			last = k
			break
		}
	}
	if last.ID == "" {
		last = b.memory.Exits[a.Name]
	}
	switch {
	case last.ID == "" && a.Attempt == 0:
		return "first start"
	case last.ID == "":
		return "restart, nothing is known of the last exit"
	case b.memory.Restarts[a.Name].Replaces == last.ID:
		return "restart of what was stopped to be changed"
	default:
		return fmt.Sprintf("restart after exit %d", last.ExitCode)
	}
}

// terminationCause says why the pod ends; other if it does not.
func (b *state) terminationCause(other string) string {
	switch {
	case b.memory.End != nil:
		return "the pod ends: " + b.memory.End.Reason
	case b.verdict.State == plan.Rejected:
		return "the pod is rejected: " + b.verdict.Reason
	case isTerminal(b.memory.Phase):
		return "the pod has " + map[corev1.PodPhase]string{corev1.PodSucceeded: "succeeded", corev1.PodFailed: "failed"}[b.memory.Phase]
	case !b.memory.Finished.IsZero():
		return "the pod's work is over"
	}
	return other
}

func (b *state) containerAttempt(container string) uint32 {
	for _, k := range b.observed.Containers {
		if k.ID == container {
			return k.Attempt
		}
	}
	return 0
}

func (b *state) sandboxAttempt(id string) uint32 {
	for _, s := range b.observed.Sandboxes {
		if s.ID == id {
			return s.Attempt
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

// shortVersion is a content version as far as people compare it.
func shortVersion(version string) string {
	const most = 16
	if len(version) <= most {
		return version
	}
	return version[:most] + "…"
}

// waitSpan is one thing that a pod waits for, on its timeline.
type waitSpan struct{ stage, name, cause string }

// currentWaits lists what is worth a span of its own: the answer of stage admit,
// the network, and what is held back for a time.
func (b *state) currentWaits(asked bool, now time.Time) (out []waitSpan) {
	if v := b.verdict; asked && !b.finishedOrTerminating() && v.State != plan.OK && v.State != plan.Rejected {
		out = append(out, waitSpan{"admit", "admit/", v.Reason})
	}
	for _, t := range b.reported {
		switch {
		case t.Code == "NetworkNotReady":
			out = append(out, waitSpan{"build-run", "wait/network", t.Detail})
		case t.Until.After(now):
			w := waitSpan{"build-run", "back-off/" + cmp.Or(t.On, "pod"), t.Detail}
			for key, f := range b.failures {
				if key.String() == t.On && f.Action != nil { // the action itself is held back
					name, _ := b.actionSpan(f.Action)
					w.name = "back-off/" + strings.ReplaceAll(name, "/", " ")
				}
			}
			out = append(out, w)
		}
	}
	return out
}

// updateWaitSpans begins the spans of waits that are new and ends those that are over.
func (w *worker) updateWaitSpans(now time.Time) {
	open := w.waitSpans
	w.waitSpans = nil
	for _, x := range w.state.currentWaits(w.admissionRequested, now) {
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
