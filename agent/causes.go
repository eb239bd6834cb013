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

// spanOf names an action as users know what it is about, and says why it is
// done. It is asked before the action begins.
func (b *book) spanOf(a plan.Action) (name, cause string) {
	key := a.Key()
	on := key.On
	switch a := a.(type) {
	case plan.StopContainer:
		on = numbered(a.Name, b.attemptOf(a.ID))
		cause = fmt.Sprintf("%s, grace %s", a.Why, a.Grace.Round(time.Millisecond))
		if a.Grace >= time.Second {
			cause = fmt.Sprintf("%s, grace %s", a.Why, a.Grace.Round(time.Second))
		}
	case plan.PreStop:
		on, cause = numbered(a.Name, b.attemptOf(a.ID)), b.memory.Hooks[a.Name].Why
	case plan.ResizeContainer:
		on, cause = numbered(a.Name, b.attemptOf(a.ID)), "the pod's resources have changed"
	case plan.ResizeCgroup:
		cause = "the pod's resources have changed"
	case plan.PostStart:
		on, cause = numbered(a.Name, b.attemptOf(a.ID)), "part of its start"
	case plan.RemoveContainer:
		on, cause = numbered(a.Name, b.attemptOf(a.ID)), b.ending("a newer one has taken its place")
		if b.lives(a.ID) {
			cause = b.ending("it was made but never started")
		}
	case plan.StopSandbox:
		on, cause = numbered("sandbox", b.sandboxAttempt(a.ID)), b.ending("it is not ready any more")
	case plan.RemoveSandbox:
		on, cause = numbered("sandbox", b.sandboxAttempt(a.ID)), b.ending("another takes its place")
	case plan.UnmountVolume, plan.RemoveCgroup, plan.RemoveDirs:
		cause = b.ending("")
	case plan.MountVolume:
		cause = "a container mounts it"
		if a.Version != "" {
			cause += ", content " + clipped(a.Version)
		}
	case plan.ProjectVolume:
		cause = fmt.Sprintf("content %s in place of %s", clipped(a.Version), clipped(cmp.Or(b.seen.Volumes[a.Volume].Version, "an unknown one")))
	case plan.RunSandbox:
		on, cause = numbered("sandbox", a.Attempt), "the pod has none"
		if a.Attempt > 0 {
			cause = fmt.Sprintf("attempt %d is gone", a.Attempt-1)
		}
	case plan.PullImage:
		cause = a.Image + ", not on this node"
		if a.Policy == corev1.PullAlways {
			cause = a.Image + ", policy Always"
		}
	case plan.StartContainer:
		on, cause = numbered(a.Name, a.Attempt), a.Kind.String()+", "+b.whyStart(a)
	}
	return key.Verb + "/" + on, cause
}

// whyStart tells a first start from a restart.
func (b *book) whyStart(a plan.StartContainer) string {
	var last plan.Container
	for _, k := range b.seen.Containers {
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

// ending says why the pod ends; other if it does not.
func (b *book) ending(other string) string {
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

func (b *book) attemptOf(container string) uint32 {
	for _, k := range b.seen.Containers {
		if k.ID == container {
			return k.Attempt
		}
	}
	return 0
}

func (b *book) sandboxAttempt(id string) uint32 {
	for _, s := range b.seen.Sandboxes {
		if s.ID == id {
			return s.Attempt
		}
	}
	return 0
}

func numbered(name string, attempt uint32) string {
	if attempt == 0 {
		return name
	}
	return fmt.Sprintf("%s (attempt %d)", name, attempt)
}

// clipped is a content version as far as people compare it.
func clipped(version string) string {
	const most = 16
	if len(version) <= most {
		return version
	}
	return version[:most] + "…"
}

// wait is one thing that a pod waits for, on its timeline.
type wait struct{ stage, name, cause string }

// waitsNow lists what is worth a span of its own: the answer of stage admit,
// the network, and what is held back for a time.
func (b *book) waitsNow(asked bool, now time.Time) (out []wait) {
	if v := b.verdict; asked && !b.over() && v.State != plan.OK && v.State != plan.Rejected {
		out = append(out, wait{"admit", "admit/", v.Reason})
	}
	for _, t := range b.told {
		switch {
		case t.Code == "NetworkNotReady":
			out = append(out, wait{"build-run", "wait/network", t.Detail})
		case t.Until.After(now):
			w := wait{"build-run", "back-off/" + cmp.Or(t.On, "pod"), t.Detail}
			for key, f := range b.failed {
				if key.String() == t.On && f.Action != nil { // the action itself is held back
					name, _ := b.spanOf(f.Action)
					w.name = "back-off/" + strings.ReplaceAll(name, "/", " ")
				}
			}
			out = append(out, w)
		}
	}
	return out
}

// timeWaits begins the spans of waits that are new and ends those that are over.
func (w *worker) timeWaits(now time.Time) {
	open := w.waits
	w.waits = nil
	for _, x := range w.book.waitsNow(w.asked, now) {
		id, known := open[x]
		if !known {
			id = w.timeline.Begin(events.Span{Name: x.name, Stage: x.stage, Cause: x.cause, Start: now})
		}
		if w.waits == nil {
			w.waits = map[wait]events.SpanID{}
		}
		w.waits[x] = id
		delete(open, x)
	}
	for _, id := range open {
		w.timeline.End(id, nil)
	}
}
