package plan

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// TeardownIncomplete is the condition of a terminated or terminating pod with resources that could
// not be removed, with the cause. The removal is retried with back-off.
const TeardownIncomplete corev1.PodConditionType = "TeardownIncomplete"

// teardownCondition returns the condition TeardownIncomplete. An unavailable runtime does not cause
// it, because it is reported as a node condition.
func (d *decider) teardownCondition() (c corev1.PodCondition, found bool) {
	if d.mem.Termination == nil && d.mem.FinishedAt.IsZero() && !d.terminal() {
		return c, false
	}
	var first, text string
	var cause Failure
	n := 0
	for key, f := range d.Failures {
		what := teardownMessage(f.Action)
		if what == "" || f.Kind == Unavailable || f.Kind == Canceled {
			continue
		}
		if n++; first == "" || key.String() < first { // deterministic choice
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

// teardownMessage describes what remains on the host after a failed action, or returns "" if that
// does not delay termination.
func teardownMessage(a Action) string {
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
