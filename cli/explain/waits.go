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

// waits gathers what holds the pod up: decisions, containers that wait for
// something that went wrong, containers that others wait for.
func waits(s Subject, steps []step, now time.Time) (out []nodeapi.Wait) {
	out = decisions(s)
	if s.End != nil || over(s.Status.Phase) {
		return append(out, endings(s)...)
	}
	for _, c := range waitingOf(&s.Status) {
		w := nodeapi.Wait{For: c.State.Waiting.Reason, On: c.Name, Message: c.State.Waiting.Message}
		switch {
		case w.For == "" || w.For == plan.ReasonCreating || w.For == plan.ReasonInitializing:
			continue
		case slices.ContainsFunc(out, func(x nodeapi.Wait) bool { return x.On == w.On && x.For == w.For }):
			continue
		}
		w.Until = startOf(c.Name, steps, now)
		for _, f := range s.Failed {
			if _, on, _ := Describe(f.Action); on == c.Name {
				w.Tries, w.Since = max(w.Tries, f.Count), earliest(w.Since, f.At)
			}
		}
		out = append(out, w)
	}
	if w, runs := initRunning(s); runs {
		out = append(out, w)
	}
	out = append(out, unhealthy(s)...)
	if len(out) == 0 && len(s.Busy) == 0 {
		out = append(out, unready(s)...)
	}
	return out
}

// startOf is when the next pull or start of a container comes, if that is a
// matter of time.
func startOf(container string, steps []step, now time.Time) time.Time {
	for _, st := range steps {
		switch st.action.(type) {
		case plan.PullImage, plan.StartContainer:
			if _, on, _ := Describe(st.action); on == container {
				if st.at.After(now) {
					return st.at
				}
				return time.Time{}
			}
		}
	}
	return time.Time{}
}

// NextTries is when the containers that are held back are pulled for or started
// next, by name.
func NextTries(s Subject, now time.Time) map[string]time.Time {
	out := map[string]time.Time{}
	for _, w := range Why(s, now).Waiting {
		if w.On == "" || !w.Until.After(now) || !slices.ContainsFunc(waitingOf(&s.Status), func(c corev1.ContainerStatus) bool { return c.Name == w.On }) {
			continue
		}
		if at, known := out[w.On]; !known || w.Until.Before(at) {
			out[w.On] = w.Until
		}
	}
	return out
}

// decisions are the waits that the last pass spoke of.
func decisions(s Subject) (out []nodeapi.Wait) {
	all := make([]plan.Reason, len(s.Why))
	for i, t := range s.Why {
		all[i] = t.Reason
	}
	for i, r := range s.Why {
		f, failed := failureOf(r.Reason, s.Failed)
		if told(all, i) || over(s.Status.Phase) && !failed && r.Code != plan.ReasonReturns {
			continue
		}
		w := nodeapi.Wait{For: r.Code, On: r.On, Message: r.Detail, Since: r.Since, Until: r.Until}
		if failed {
			name, on, _ := Describe(f.Action)
			w.On = on
			if on == "" {
				w.On = name
			}
		}
		for key, f := range s.Failed {
			if key.String() == r.On || key.On == r.On && r.On != "" {
				w.Tries = f.Count
				w.Since = earliest(w.Since, f.At)
			}
		}
		switch r.Code {
		case "NotAdmitted":
			w.For = "Admission"
			if w.Message == "" {
				w.Message = "the node has not said yet whether the pod may run"
			}
		case resizeDeferred, resizeInfeasible:
			w.Message = resizeProblem(s.Status)
		case "BackOff", "InspectFailed":
			w = backOff(s, w)
		}
		out = append(out, w)
	}
	return out
}

// The events of a resize have the pod's whole resources as JSON, which is for programs.
const (
	resizeDeferred   = "ResizeDeferred"
	resizeInfeasible = "ResizeInfeasible"
)

// resizeProblem is why other resources than the pod has are not had.
func resizeProblem(st corev1.PodStatus) string {
	for _, c := range st.Conditions {
		if c.Type == corev1.PodResizePending {
			return c.Message
		}
	}
	return ""
}

// backOff says what a container shows in its status while it is held back: the
// event of either kind of back-off is BackOff and has no more than the image.
func backOff(s Subject, w nodeapi.Wait) nodeapi.Wait {
	for _, c := range waitingOf(&s.Status) {
		if c.Name != w.On {
			continue
		}
		if r := c.State.Waiting.Reason; r != "" {
			w.For = r
		}
		if m := c.State.Waiting.Message; m != "" {
			w.Message = m
		}
	}
	r, counted := s.Memory.Restarts[w.On]
	k, seen := newest(s.Seen, w.On)
	if !seen {
		k, seen = s.Memory.Exits[w.On]
	}
	if w.For != "CrashLoopBackOff" || !seen || k.State != plan.Exited {
		return w
	}
	w.Figures = append(w.Figures, nodeapi.Figure{Name: "last exit code", Value: fmt.Sprint(k.ExitCode)})
	if counted {
		w.Figures = append(w.Figures,
			nodeapi.Figure{Name: "restarts", Value: fmt.Sprint(max(r.Next, 1) - 1)},
			nodeapi.Figure{Name: "exits in a row", Value: fmt.Sprint(r.Count)})
	}
	if !k.FinishedAt.IsZero() && w.Until.After(k.FinishedAt) {
		wait := w.Until.Sub(k.FinishedAt)
		w.Since = k.FinishedAt
		w.Figures = append(w.Figures,
			nodeapi.Figure{Name: "back-off", Value: rounded(wait).String()},
			nodeapi.Figure{Name: "back-off after the next exit", Value: rounded(min(2*wait, s.Limits.CrashMax)).String()})
	}
	w.Figures = append(w.Figures, nodeapi.Figure{Name: "longest back-off", Value: s.Limits.CrashMax.String()})
	return w
}

// endings are the containers that an ending pod still has.
func endings(s Subject) (out []nodeapi.Wait) {
	for _, b := range s.Busy {
		if a, hook := b.Action.(plan.PreStop); hook {
			by := s.Memory.Hooks[a.Name].By
			out = append(out, nodeapi.Wait{
				For: "Terminating", On: a.Name, Since: b.Since, Until: by,
				Message: fmt.Sprintf("the preStop hook of container %s is running; it is called off when the grace is over", a.Name),
			})
		}
		if a, stops := b.Action.(plan.StopContainer); stops {
			out = append(out, nodeapi.Wait{
				For: "Terminating", On: a.Name, Since: b.Since, Until: a.By,
				Message: fmt.Sprintf("container %s was told to stop, and is killed when its grace of %s is over", a.Name, rounded(a.Grace)),
			})
		}
	}
	return out
}

// initRunning is the wait for an init container at work, or for a sidecar that
// has not started yet.
func initRunning(s Subject) (nodeapi.Wait, bool) {
	for _, c := range s.Status.InitContainerStatuses {
		if c.State.Running == nil {
			continue
		}
		since := c.State.Running.StartedAt.Time
		w := nodeapi.Wait{For: plan.ReasonInitializing, On: c.Name, Since: since}
		kind := s.kindOf(c.Name)
		if kind == plan.Init {
			w.Message = fmt.Sprintf("init container %s %s is running since %s", c.Name, ordinal(s.Pod, c.Name), since.UTC().Format(time.RFC3339))
			return w, true
		}
		if c.Started != nil && !*c.Started && s.Status.Phase == corev1.PodPending {
			w.Message = fmt.Sprintf("sidecar %s %s is running since %s and its startup probe has not succeeded", c.Name, ordinal(s.Pod, c.Name), since.UTC().Format(time.RFC3339))
			return w, true
		}
	}
	return nodeapi.Wait{}, false
}

func (s Subject) kindOf(init string) plan.ContainerKind {
	for _, c := range s.Pod.Spec.InitContainers {
		if c.Name == init && c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			return plan.Sidecar
		}
	}
	return plan.Init
}

// unready is what keeps a pod that runs from being ready.
func unready(s Subject) (out []nodeapi.Wait) {
	if s.Status.Phase != corev1.PodRunning {
		return nil
	}
	for _, c := range s.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse {
			out = append(out, nodeapi.Wait{For: c.Reason, Message: c.Message, Since: c.LastTransitionTime.Time})
		}
	}
	return out
}

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// joined puts the words that are there into a line: no gaps, none at the end.
func joined(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), ": ")
}
