package explain

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/nodeapi"
)

// Describe returns the name, the target and details of an action.
func Describe(action plan.Action) (name, on, detail string) {
	name = strings.TrimPrefix(fmt.Sprintf("%T", action), "plan.")
	switch a := action.(type) {
	case plan.MountVolume:
		on = a.Volume
	case plan.ProjectVolume:
		on = a.Volume
	case plan.UnmountVolume:
		on = a.Volume
	case plan.StopContainer:
		on, detail = a.Name, fmt.Sprintf("%s, grace period %s", a.Reason, rounded(a.Grace))
	case plan.PreStop:
		on = a.Name
	case plan.PostStart:
		on = a.Name
	case plan.ResizeContainer:
		on = a.Name
	case plan.RemoveContainer:
		on = a.Name
	case plan.PullImage:
		on, detail = a.Container, a.Image
	case plan.StartContainer:
		on, detail = a.Name, a.Kind.String()
		if a.Attempt > 0 {
			detail += fmt.Sprintf(", attempt %d", a.Attempt)
		}
	case plan.RunSandbox:
		if a.Attempt > 0 {
			detail = fmt.Sprintf("attempt %d", a.Attempt)
		}
	}
	return name, on, detail
}

// StageOf returns the stage of an action.
func StageOf(action plan.Action) string {
	switch action.(type) {
	case plan.ConfigureAction:
		return "configure"
	case plan.CleanupAction:
		return "cleanup"
	default:
		return "build-run"
	}
}

// waitingOf returns the waiting containers with their states.
func waitingOf(st *corev1.PodStatus) (out []corev1.ContainerStatus) {
	for _, list := range [][]corev1.ContainerStatus{
		st.InitContainerStatuses, st.ContainerStatuses, st.EphemeralContainerStatuses,
	} {
		for _, cs := range list {
			if cs.State.Waiting != nil {
				out = append(out, cs)
			}
		}
	}
	return out
}

// actionText is an action as text, such as "StartContainer app".
func actionText(a plan.Action) string {
	name, on, _ := Describe(a)
	return strings.TrimSpace(name + " " + on)
}

// rounded rounds a duration for display.
func rounded(d time.Duration) time.Duration {
	if d >= time.Second {
		return d.Round(time.Second)
	}
	return d.Round(10 * time.Millisecond)
}

// redundant reports whether a decision does not block anything, or is covered by another decision.
func redundant(all []plan.Reason, i int) bool {
	r := all[i]
	switch r.Code {
	case "Killing", "Pulled", "SandboxChanged", "DeadlineExceeded":
		return true
	}
	for j, x := range all {
		// The event of a waiting reason.
		same := x.Target == r.Target && x.Code != r.Code && r.Code == "Failed" &&
			strings.HasPrefix(r.Message, "Error: ")
		if j != i && (same || j < i && x.Target == r.Target && x.Code == r.Code && x.Message == r.Message) {
			return true
		}
	}
	return false
}

// reason converts a decision to its wire type. If it is about a failed action, the target is the
// action instead of its key.
func reason(r plan.Reason, failed map[plan.ActionKey]plan.Failure) nodeapi.Reason {
	out := nodeapi.Reason{Code: r.Code, Target: r.Target, Detail: r.Message, Until: r.Until}
	if strings.HasPrefix(r.Code, "Resize") {
		out.Detail = "" // JSON; the wait reason has the problem in readable form
	}
	if f, is := failureOf(r, failed); is {
		out.Target = actionText(f.Action)
	}
	return out
}

// failureOf returns the failed action that a decision is about.
func failureOf(r plan.Reason, failed map[plan.ActionKey]plan.Failure) (plan.Failure, bool) {
	for key, f := range failed {
		if key.String() == r.Target && f.Action != nil {
			return f, true
		}
	}
	return plan.Failure{}, false
}

// ordinal is the position of an init container: "(2 of 3)".
func ordinal(pod *corev1.Pod, init string) string {
	for i, c := range pod.Spec.InitContainers {
		if c.Name == init {
			return fmt.Sprintf("(%d of %d)", i+1, len(pod.Spec.InitContainers))
		}
	}
	return ""
}
