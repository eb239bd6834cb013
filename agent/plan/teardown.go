package plan

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// TeardownIncomplete is the condition of a pod that is over or to end and has
// something that cannot be taken away: what, and the cause. It is tried again
// with the usual pauses, and the condition goes when it has worked.
const TeardownIncomplete corev1.PodConditionType = "TeardownIncomplete"

// teardownCondition is that condition. A runtime that is away is no cause of the pod's:
// the node tells of it.
func (d *decider) teardownCondition() (c corev1.PodCondition, held bool) {
	if d.mem.Termination == nil && d.mem.FinishedAt.IsZero() && !d.terminal() {
		return c, false
	}
	var first, text string
	var cause Failure
	n := 0
	for key, f := range d.Failures {
		what := leftoverMessage(f.Action)
		if what == "" || f.Kind == Unavailable || f.Kind == Canceled {
			continue
		}
		if n++; first == "" || key.String() < first { // always the same one of several
			first, text, cause = key.String(), what, f
		}
	}
	if n == 0 {
		return c, false
	}
	c = corev1.PodCondition{
		Type: TeardownIncomplete, Status: corev1.ConditionTrue,
		Reason: firstNonEmpty(cause.Reason, "Failed"), Message: text + ": " + cause.Message,
	}
	if n > 1 {
		c.Message += fmt.Sprintf(" (and %d more)", n-1)
	}
	return c, true
}

// leftoverMessage says what the host still has when taking it away has failed; empty for
// what a pod can end without.
func leftoverMessage(a Action) string {
	switch a := a.(type) {
	case StopContainer:
		return fmt.Sprintf("container %s cannot be stopped", a.Name)
	case RemoveContainer:
		return fmt.Sprintf("container %s cannot be removed", a.Name)
	case StopSandbox:
		return "the pod sandbox cannot be stopped"
	case RemoveSandbox:
		return "the pod sandbox cannot be removed"
	case UnmountVolume:
		return fmt.Sprintf("volume %s cannot be unmounted", a.Volume)
	case RemoveCgroup:
		return "the pod's cgroup cannot be removed"
	case RemoveDirs:
		return "the pod's directories cannot be removed"
	}
	return ""
}
