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

// waits returns what the pod is waiting for: decisions of the last sync, containers with a problem,
// and containers that others depend on.
func waits(s PodState, steps []step, now time.Time) (out []nodeapi.WaitReason) {
	out = decisions(s)
	if s.Termination != nil || finished(s.Status.Phase) {
		return append(out, endings(s)...)
	}
	for _, c := range waitingOf(&s.Status) {
		w := nodeapi.WaitReason{Reason: c.State.Waiting.Reason, Target: c.Name, Message: c.State.Waiting.Message}
		switch {
		case w.Reason == "" || w.Reason == plan.ReasonCreating || w.Reason == plan.ReasonInitializing:
			continue
		case slices.ContainsFunc(
			out, func(x nodeapi.WaitReason) bool { return x.Target == w.Target && x.Reason == w.Reason },
		):
			continue
		}
		w.Until = startOf(c.Name, steps, now)
		for _, f := range s.Failed {
			if _, on, _ := Describe(f.Action); on == c.Name {
				w.Failures, w.Since = max(w.Failures, f.Count), earliest(w.Since, f.At)
			}
		}
		out = append(out, w)
	}
	if w, runs := initRunning(s); runs {
		out = append(out, w)
	}
	out = append(out, unhealthy(s)...)
	if len(out) == 0 && len(s.InProgress) == 0 {
		out = append(out, unready(s)...)
	}
	return out
}

// startOf is the time of the next pull or start of a container, or zero if it is not scheduled.
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

// NextRetries returns the times of the next image pull or start of containers in back-off, by
// container name.
func NextRetries(s PodState, now time.Time) map[string]time.Time {
	out := map[string]time.Time{}
	for _, w := range Why(s, now).WaitingFor {
		if w.Target == "" || !w.Until.After(now) ||
			!slices.ContainsFunc(
				waitingOf(&s.Status),
				func(c corev1.ContainerStatus) bool { return c.Name == w.Target },
			) {
			continue
		}
		if at, known := out[w.Target]; !known || w.Until.Before(at) {
			out[w.Target] = w.Until
		}
	}
	return out
}

// decisions converts the reasons of the last sync to wait reasons.
func decisions(s PodState) (out []nodeapi.WaitReason) {
	all := make([]plan.Reason, len(s.Reasons))
	for i, t := range s.Reasons {
		all[i] = t.Reason
	}
	for i, r := range s.Reasons {
		f, failed := failureOf(r.Reason, s.Failed)
		if redundant(all, i) || finished(s.Status.Phase) && !failed && r.Code != plan.ReasonRecreate {
			continue
		}
		w := nodeapi.WaitReason{Reason: r.Code, Target: r.Target, Message: r.Message, Since: r.Since, Until: r.Until}
		if failed {
			name, on, _ := Describe(f.Action)
			w.Target = on
			if on == "" {
				w.Target = name
			}
		}
		for key, f := range s.Failed {
			if key.String() == r.Target || key.Target == r.Target && r.Target != "" {
				w.Failures = f.Count
				w.Since = earliest(w.Since, f.At)
			}
		}
		switch r.Code {
		case "NotAdmitted":
			w.Reason = "Admission"
			if w.Message == "" {
				w.Message = "admission is pending"
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

// The events of a resize contain the pod's resources as JSON, which is not readable.
const (
	resizeDeferred   = "ResizeDeferred"
	resizeInfeasible = "ResizeInfeasible"
)

// resizeProblem is the reason why a resize is pending.
func resizeProblem(st corev1.PodStatus) string {
	for _, c := range st.Conditions {
		if c.Type == corev1.PodResizePending {
			return c.Message
		}
	}
	return ""
}

// backOff takes reason and message from the status of a container in back-off, because the event of
// both kinds of back-off is BackOff and contains only the image.
func backOff(s PodState, w nodeapi.WaitReason) nodeapi.WaitReason {
	for _, c := range waitingOf(&s.Status) {
		if c.Name != w.Target {
			continue
		}
		if r := c.State.Waiting.Reason; r != "" {
			w.Reason = r
		}
		if m := c.State.Waiting.Message; m != "" {
			w.Message = m
		}
	}
	r, counted := s.Memory.Restarts[w.Target]
	k, seen := newest(s.Observed, w.Target)
	if !seen {
		k, seen = s.Memory.Exits[w.Target]
	}
	if w.Reason != "CrashLoopBackOff" || !seen || k.State != plan.Exited {
		return w
	}
	w.Details = append(w.Details, nodeapi.Detail{Name: "last exit code", Value: fmt.Sprint(k.ExitCode)})
	if counted {
		w.Details = append(w.Details,
			nodeapi.Detail{Name: "restarts", Value: fmt.Sprint(max(r.NextAttempt, 1) - 1)},
			nodeapi.Detail{Name: "consecutive exits", Value: fmt.Sprint(r.Count)})
	}
	if !k.FinishedAt.IsZero() && w.Until.After(k.FinishedAt) {
		wait := w.Until.Sub(k.FinishedAt)
		w.Since = k.FinishedAt
		w.Details = append(
			w.Details,
			nodeapi.Detail{Name: "back-off", Value: rounded(wait).String()},
			nodeapi.Detail{
				Name:  "back-off after the next exit",
				Value: rounded(min(2*wait, s.Limits.CrashMax)).String(),
			},
		)
	}
	w.Details = append(w.Details, nodeapi.Detail{Name: "maximum back-off", Value: s.Limits.CrashMax.String()})
	return w
}

// endings are the containers of a terminating pod that are still running.
func endings(s PodState) (out []nodeapi.WaitReason) {
	for _, b := range s.InProgress {
		if a, hook := b.Action.(plan.PreStop); hook {
			by := s.Memory.Hooks[a.Name].Deadline
			out = append(out, nodeapi.WaitReason{
				Reason: "Terminating", Target: a.Name, Since: b.Since, Until: by,
				Message: fmt.Sprintf(
					"the preStop hook of container %s is running and is canceled at the end of the grace period",
					a.Name,
				),
			})
		}
		if a, stops := b.Action.(plan.StopContainer); stops {
			out = append(out, nodeapi.WaitReason{
				Reason: "Terminating", Target: a.Name, Since: b.Since, Until: a.Deadline,
				Message: fmt.Sprintf(
					"container %s is stopping and is killed at the end of its grace period of %s",
					a.Name,
					rounded(a.Grace),
				),
			})
		}
	}
	return out
}

// initRunning is the wait for a running init container, or for a sidecar that is not started yet.
func initRunning(s PodState) (nodeapi.WaitReason, bool) {
	for _, c := range s.Status.InitContainerStatuses {
		if c.State.Running == nil {
			continue
		}
		since := c.State.Running.StartedAt.Time
		w := nodeapi.WaitReason{Reason: plan.ReasonInitializing, Target: c.Name, Since: since}
		kind := s.kindOf(c.Name)
		if kind == plan.Init {
			w.Message = fmt.Sprintf(
				"init container %s %s is running since %s",
				c.Name,
				ordinal(s.Pod, c.Name),
				since.UTC().Format(time.RFC3339),
			)
			return w, true
		}
		if c.Started != nil && !*c.Started && s.Status.Phase == corev1.PodPending {
			w.Message = fmt.Sprintf(
				"sidecar %s %s is running since %s, its startup probe has not succeeded",
				c.Name,
				ordinal(s.Pod, c.Name),
				since.UTC().Format(time.RFC3339),
			)
			return w, true
		}
	}
	return nodeapi.WaitReason{}, false
}

func (s PodState) kindOf(init string) plan.ContainerKind {
	for _, c := range s.Pod.Spec.InitContainers {
		if c.Name == init && c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			return plan.Sidecar
		}
	}
	return plan.Init
}

// unready is the reason why a running pod is not ready.
func unready(s PodState) (out []nodeapi.WaitReason) {
	if s.Status.Phase != corev1.PodRunning {
		return nil
	}
	for _, c := range s.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse {
			out = append(
				out,
				nodeapi.WaitReason{Reason: c.Reason, Message: c.Message, Since: c.LastTransitionTime.Time},
			)
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

// joined joins the parts that are not empty.
func joined(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), ": ")
}
