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

// PodState is the state of a pod after its last sync.
type PodState struct {
	Pod         *corev1.Pod
	Status      corev1.PodStatus
	Termination *plan.Termination
	Verdict     plan.Verdict
	Observed    plan.Observed
	Reasons     []TimedReason
	InProgress  []Operation
	Failed      map[plan.ActionKey]plan.Failure
	Refs        map[plan.Ref]plan.Version
	Memory      plan.Memory       // of the last sync
	Reserved    plan.Resources    // reserved by the allocator; nil: as in Memory
	Resize      plan.ResizeStatus // why a resize is not possible
	Syncs       int64
	LastSync    time.Time
	NextSync    time.Time
	Limits      plan.Limits
}

// TimedReason is a decision and the time when it was first made.
type TimedReason struct {
	plan.Reason
	Since time.Time
}

// Operation is an action in progress.
type Operation struct {
	Action   plan.Action
	Since    time.Time
	Progress string // empty: unknown
}

// Why returns what the pod is waiting for, what is in progress and what happens next.
func Why(s PodState, now time.Time) nodeapi.PodExplanation {
	w := nodeapi.PodExplanation{
		Namespace: s.Pod.Namespace, Name: s.Pod.Name, UID: s.Pod.UID, Phase: s.Status.Phase,
		Syncs: s.Syncs, LastSync: s.LastSync, NextSync: s.NextSync,
	}
	var steps []step
	if !unknown(s) {
		steps, _ = simulate(s, now)
	}
	w.WaitingFor = waits(s, steps, now)
	for _, b := range s.InProgress {
		name, on, detail := Describe(b.Action)
		if b.Progress != "" {
			detail = b.Progress
		}
		if f, before := s.Failed[b.Action.Key()]; before {
			detail = strings.TrimPrefix(detail+"; ", "; ") + "previous attempt failed: " + f.Message
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

// unknown reports whether the state of the pod in the runtime is unknown. Next steps are not
// predicted then.
func unknown(s PodState) bool {
	return slices.ContainsFunc(s.Reasons, func(t TimedReason) bool {
		return t.Code == "RuntimeNotReady" || t.Code == "ObserveFailed" || t.Code == "NameTaken"
	})
}

// next returns the steps that the simulation predicts, without those in progress.
func next(s PodState, steps []step, now time.Time) (out []nodeapi.Step) {
	busy := map[plan.ActionKey]bool{}
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
		return fmt.Sprintf(
			"%s is terminating (%s): %s, for %s",
			name,
			s.Termination.Reason,
			work(w.InProgress[0]),
			age(now, w.InProgress[0].Since),
		)
	case s.Termination != nil && (s.Termination.RemovePod || !finished(s.Status.Phase)):
		return fmt.Sprintf("%s is terminating (%s)", name, s.Termination.Reason)
	case s.Status.Phase == corev1.PodSucceeded:
		return name + " has succeeded: all containers have completed"
	case s.Status.Phase == corev1.PodFailed:
		return joined(name+" has failed", s.Status.Reason, s.Status.Message, failures(s), recreation(w, now))
	case len(w.WaitingFor) > 0:
		x := w.WaitingFor[0]
		if x.Reason == resizeDeferred || x.Reason == resizeInfeasible {
			return fmt.Sprintf(
				"%s keeps its current resources: the resize is %s",
				name,
				strings.TrimPrefix(x.Reason, "Resize"),
			)
		}
		text := joined(name+" is waiting for "+joined(targetText(s.Pod, x), x.Reason), x.Message)
		if x.Until.After(now) {
			text += fmt.Sprintf(" (next attempt in %s)", rounded(x.Until.Sub(now)))
		}
		return text
	case len(w.InProgress) > 0:
		doing := "is starting"
		if s.Status.Phase == corev1.PodRunning {
			doing = "is running with an action in progress"
		}
		return fmt.Sprintf("%s %s: %s, for %s", name, doing, work(w.InProgress[0]), age(now, w.InProgress[0].Since))
	case len(waitingOf(&s.Status)) > 0:
		c := waitingOf(&s.Status)[0]
		return joined(
			fmt.Sprintf("%s: container %s is waiting", name, c.Name),
			c.State.Waiting.Reason,
			c.State.Waiting.Message,
		)
	}
	return name + " is up to date: waiting for nothing"
}

// volumeReasons are reasons whose target is a volume, even if a container has the same name.
var volumeReasons = []string{"FailedMount", "FailedUnMount", "FailedUnmount"}

// targetText is the target of a wait reason with its kind, such as container "app"; empty: the pod.
func targetText(pod *corev1.Pod, w nodeapi.WaitReason) string {
	isVolume := slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == w.Target })
	isContainer := hasContainer(&pod.Spec, w.Target)
	switch {
	case isVolume && (!isContainer || slices.Contains(volumeReasons, w.Reason)):
		return fmt.Sprintf("volume %q", w.Target)
	case isContainer:
		return fmt.Sprintf("container %q", w.Target)
	}
	return w.Target
}

func hasContainer(spec *corev1.PodSpec, name string) bool {
	return slices.ContainsFunc(slices.Concat(spec.InitContainers, spec.Containers),
		func(c corev1.Container) bool { return c.Name == name }) ||
		slices.ContainsFunc(spec.EphemeralContainers,
			func(c corev1.EphemeralContainer) bool { return c.Name == name })
}

// recreation describes when a terminated pod is created again; empty: never.
func recreation(w nodeapi.PodExplanation, now time.Time) string {
	for _, x := range w.WaitingFor {
		if x.Reason == plan.ReasonRecreate && x.Until.After(now) {
			return fmt.Sprintf("%s (in %s)", x.Message, rounded(x.Until.Sub(now)))
		} else if x.Reason == plan.ReasonRecreate {
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

// failures lists the containers of a failed pod with a nonzero exit code; empty if the pod itself
// has a reason.
func failures(s PodState) string {
	if s.Status.Reason != "" {
		return ""
	}
	var out []string
	for _, list := range [][]corev1.ContainerStatus{s.Status.InitContainerStatuses, s.Status.ContainerStatuses} {
		for _, c := range list {
			if x := c.State.Terminated; x != nil && x.ExitCode != 0 {
				out = append(out, fmt.Sprintf("container %s exited with code %d (%s)", c.Name, x.ExitCode, x.Reason))
			}
		}
	}
	return strings.Join(out, ", ")
}
