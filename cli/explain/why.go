package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/nodeapi"
)

// PodState is a pod after its last pass.
type PodState struct {
	Pod         *corev1.Pod
	Status      corev1.PodStatus
	Termination *plan.End
	Verdict     plan.Verdict
	Observed    plan.Observed
	Reasons     []TimedReason
	InProgress  []Operation
	Failed      map[plan.OpKey]plan.Failure
	Refs        map[plan.Ref]plan.Version
	Memory      plan.Memory    // of the last pass
	Reserved    plan.Resources // that the room would hold; nil: as Memory has it
	Resize      plan.Resize    // why it would not
	Syncs       int64
	LastSync    time.Time // of the last pass
	NextSync    time.Time
	Limits      plan.Limits
}

// TimedReason is a decision and when it was first made.
type TimedReason struct {
	plan.Reason
	Since time.Time
}

// Operation is an action under way.
type Operation struct {
	Action   plan.Action
	Since    time.Time
	Progress string // progress, if somebody knows it
}

// Why says what the pod waits for, what is being done and what comes then.
func Why(s PodState, now time.Time) nodeapi.PodExplanation {
	w := nodeapi.PodExplanation{
		Namespace: s.Pod.Namespace, Name: s.Pod.Name, UID: s.Pod.UID, Phase: s.Status.Phase,
		Syncs: s.Syncs, LastSync: s.LastSync, NextSync: s.NextSync,
	}
	var steps []step
	if !unknown(s) {
		steps, _ = imagine(s, now)
	}
	w.WaitingFor = waits(s, steps, now)
	for _, b := range s.InProgress {
		name, on, detail := Describe(b.Action)
		if b.Progress != "" {
			detail = b.Progress
		}
		if f, before := s.Failed[b.Action.Key()]; before {
			detail = strings.TrimPrefix(detail+"; ", "; ") + "tried before, and failed: " + f.Message
		}
		w.InProgress = append(w.InProgress, nodeapi.Operation{Action: name, Target: on, Detail: detail, Since: b.Since})
	}
	w.Next = next(s, steps, now)
	for _, r := range s.Reasons {
		w.Reasons = append(w.Reasons, reason(r.Reason, s.Failed))
	}
	w.Summary = summary(s, w, now)
	return w
}

// unknown reports whether what there is of the pod is not known: no guess is made
// of what comes next.
func unknown(s PodState) bool {
	return slices.ContainsFunc(s.Reasons, func(t TimedReason) bool {
		return t.Code == "RuntimeNotReady" || t.Code == "LookFailed" || t.Code == "NameTaken"
	})
}

// next lists what comes later: the steps that an obedient host would see, less
// what is under way.
func next(s PodState, steps []step, now time.Time) (out []nodeapi.Step) {
	busy := map[plan.OpKey]bool{}
	for _, b := range s.InProgress {
		busy[b.Action.Key()] = true
	}
	for _, step := range steps {
		if busy[step.action.Key()] {
			continue
		}
		name, on, _ := Describe(step.action)
		st := nodeapi.Step{Action: name, Target: on, After: step.after}
		if step.at.After(now) {
			st.At = step.at
		}
		if out = append(out, st); len(out) == maxSteps {
			break
		}
	}
	return out
}

const maxSteps = 12

func summary(s PodState, w nodeapi.PodExplanation, now time.Time) string {
	name := s.Pod.Namespace + "/" + s.Pod.Name
	switch {
	case s.Termination != nil && len(w.InProgress) > 0:
		return fmt.Sprintf("%s is ending (%s): %s, for %s", name, s.Termination.Reason, work(w.InProgress[0]), age(now, w.InProgress[0].Since))
	case s.Termination != nil && (s.Termination.Forget || !over(s.Status.Phase)):
		return fmt.Sprintf("%s is ending (%s)", name, s.Termination.Reason)
	case s.Status.Phase == corev1.PodSucceeded:
		return name + " has done its work: all containers ended well"
	case s.Status.Phase == corev1.PodFailed:
		return joined(name+" has failed", s.Status.Reason, s.Status.Message, failures(s), comesBack(w, now))
	case len(w.WaitingFor) > 0:
		x := w.WaitingFor[0]
		if x.Reason == resizeDeferred || x.Reason == resizeInfeasible {
			return fmt.Sprintf("%s goes on with the resources that it has: other ones are %s", name, strings.TrimPrefix(x.Reason, "Resize"))
		}
		text := fmt.Sprintf("%s waits for %s", name, x.Reason)
		if x.Target != "" {
			text += " of " + x.Target
		}
		text = joined(text, x.Message)
		if x.Until.After(now) {
			text += fmt.Sprintf(" (next try in %s)", rounded(x.Until.Sub(now)))
		}
		return text
	case len(w.InProgress) > 0:
		doing := "is being started"
		if s.Status.Phase == corev1.PodRunning {
			doing = "runs and is being worked on"
		}
		return fmt.Sprintf("%s %s: %s, for %s", name, doing, work(w.InProgress[0]), age(now, w.InProgress[0].Since))
	case len(waitingOf(&s.Status)) > 0:
		c := waitingOf(&s.Status)[0]
		return joined(fmt.Sprintf("%s: container %s is waiting", name, c.Name), c.State.Waiting.Reason, c.State.Waiting.Message)
	}
	return name + " waits for nothing: it is as it should be"
}

// comesBack says when a pod that is over is made anew; empty: it is not.
func comesBack(w nodeapi.PodExplanation, now time.Time) string {
	for _, x := range w.WaitingFor {
		if x.Reason == plan.ReasonReturns && x.Until.After(now) {
			return fmt.Sprintf("%s (in %s)", x.Message, rounded(x.Until.Sub(now)))
		} else if x.Reason == plan.ReasonReturns {
			return x.Message
		}
	}
	return ""
}

func work(w nodeapi.Operation) string {
	text := w.Action
	if w.Target != "" {
		text += " " + w.Target
	}
	if w.Detail != "" {
		text += " (" + w.Detail + ")"
	}
	return text
}

func age(now, since time.Time) string { return rounded(max(now.Sub(since), 0)).String() }

// failures names the containers of a failed pod that did not end well; empty if
// the pod itself has a reason.
func failures(s PodState) string {
	if s.Status.Reason != "" {
		return ""
	}
	var out []string
	for _, list := range [][]corev1.ContainerStatus{s.Status.InitContainerStatuses, s.Status.ContainerStatuses} {
		for _, c := range list {
			if x := c.State.Terminated; x != nil && x.ExitCode != 0 {
				out = append(out, fmt.Sprintf("container %s ended with exit code %d (%s)", c.Name, x.ExitCode, x.Reason))
			}
		}
	}
	return strings.Join(out, ", ")
}
