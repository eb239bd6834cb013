package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// show formats an action.
func show(a Action) string {
	switch a := a.(type) {
	case MountVolume:
		return fmt.Sprintf("mount %s@%s", a.Volume, a.Version)
	case ProjectVolume:
		return fmt.Sprintf("project %s@%s", a.Volume, a.Version)
	case StopContainer:
		return fmt.Sprintf("stop %s %s", a.ID, a.Grace)
	case PullImage:
		return fmt.Sprintf("pull %s %s", a.Container, a.Image)
	case RunSandbox:
		return fmt.Sprintf("run sandbox#%d", a.Attempt)
	case StartContainer:
		return fmt.Sprintf("start %s#%d", a.Name, a.Attempt)
	default:
		k := a.Key()
		return k.Verb + " " + k.Target
	}
}

func showActions(p Plan) string {
	var out []string
	for _, k := range p.Cancel {
		out = append(out, "cancel "+k.String())
	}
	for _, a := range p.Actions() {
		out = append(out, show(a))
	}
	if len(out) == 0 {
		return "-"
	}
	return strings.Join(out, ", ")
}

// text formats the last plan for transcripts. Times are relative to t0.
func (w *driver) text() string {
	var b strings.Builder
	p := w.last
	fmt.Fprintf(&b, "  do     %s\n", showActions(p))
	fmt.Fprintf(&b, "  pod    %s\n",
		joined(string(p.Status.Phase), p.Status.Reason, quoted(p.Status.Message), "ip="+p.Status.PodIP))
	for _, cs := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses,
		p.Status.EphemeralContainerStatuses) {
		fmt.Fprintf(&b, "  %-6s %s\n", cs.Name, showContainer(cs))
	}
	fmt.Fprintf(&b, "  conds  %s\n", showConditions(p.Status.Conditions))
	for _, r := range p.Reasons {
		line := joined(r.Code, r.Target, quoted(r.Message), since("until", r.Until))
		if r.EventType != "" {
			line += " (" + r.EventType + ")"
		}
		fmt.Fprintf(&b, "  why    %s\n", line)
	}
	for _, id := range sorted(p.Probes) {
		fmt.Fprintf(&b, "  probe  %s %+v\n", id, p.Probes[id])
	}
	if len(p.CheckImages) > 0 {
		fmt.Fprintf(&b, "  check  %s\n", strings.Join(p.CheckImages, " "))
	}
	if !p.Wake.IsZero() {
		fmt.Fprintf(&b, "  wake   %s\n", since("at", p.Wake))
	}
	if p.Done {
		fmt.Fprintf(&b, "  done\n")
	}
	return b.String()
}

func showContainer(cs corev1.ContainerStatus) string {
	line := showState(cs.State)
	if cs.Started != nil && *cs.Started {
		line += " started"
	}
	if cs.Ready {
		line += " ready"
	}
	line += fmt.Sprintf(" restarts=%d", cs.RestartCount)
	if cs.LastTerminationState != (corev1.ContainerState{}) {
		line += " last=(" + showState(cs.LastTerminationState) + ")"
	}
	return line
}

func showState(s corev1.ContainerState) string {
	switch {
	case s.Waiting != nil:
		return joined("waiting", s.Waiting.Reason, quoted(s.Waiting.Message))
	case s.Running != nil:
		return joined("running", since("since", s.Running.StartedAt.Time))
	case s.Terminated != nil:
		return fmt.Sprintf("terminated %s %d", s.Terminated.Reason, s.Terminated.ExitCode)
	}
	return "none"
}

func showConditions(cs []corev1.PodCondition) string {
	var out []string
	for _, c := range cs {
		s := fmt.Sprintf("%s=%s", c.Type, c.Status)
		if c.Reason != "" {
			s += "/" + c.Reason
		}
		if !c.LastTransitionTime.IsZero() {
			s += since("", c.LastTransitionTime.Time)
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

func since(word string, t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return fmt.Sprintf("%s+%s", word, t.Sub(t0))
}

func quoted(s string) string {
	if s == "" {
		return ""
	}
	return fmt.Sprintf("%q", s)
}

func joined(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" || s == "ip=" }), " ")
}

func sorted[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
