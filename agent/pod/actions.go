package pod

import (
	"context"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/podspec"
)

// actionContext is the input of the actions of one plan: the pod, the observed state and
// the referenced objects at the time of the plan.
type actionContext struct {
	pod      *corev1.Pod
	observed plan.Observed
	objects  plan.Objects
}

// podIPs returns the known addresses of the pod.
func (c actionContext) podIPs() []string {
	if len(c.observed.Sandboxes) > 0 {
		return c.observed.Sandboxes[0].IPs
	}
	return nil
}

// Hooks runs the lifecycle hooks of running containers. A hook has no timeout of
// its own: ctx cancels it. The output or response of the hook
// is only part of the error.
type Hooks interface {
	Run(ctx context.Context, pod *corev1.Pod, c *corev1.Container, h *corev1.LifecycleHandler,
		id string, podIPs []string) error
}

// runHook runs one hook of a container.
func runHook(ctx context.Context, hooks Hooks, ac actionContext, name, id string,
	handler func(*corev1.Lifecycle) *corev1.LifecycleHandler,
) error {
	c := podspec.FindContainer(ac.pod, name)
	if c == nil || c.Lifecycle == nil || handler(c.Lifecycle) == nil {
		return &plan.Error{Kind: plan.Invalid, Err: fmt.Errorf("container %q has no such hook", name)}
	}
	return hooks.Run(ctx, ac.pod, c, handler(c.Lifecycle), id, ac.podIPs())
}

// HostPorts is notified when the pod network of a pod is set up, and without
// addresses when it is torn down: connections to the pod's host ports must not
// keep their old destination.
type HostPorts interface {
	PodIPsChanged(pod *corev1.Pod, ips []string)
}

func reportPodIPs(h HostPorts, pod *corev1.Pod, ips []string) {
	if h != nil {
		h.PodIPsChanged(pod, ips)
	}
}

// startAction starts one action. Its outcome arrives as a message. If before is not nil,
// the action first waits for it: the record that must be on disk.
func (w *Worker) startAction(ctx context.Context, stage string, a plan.Action, before func(context.Context),
	do func(context.Context, *plan.Outcome) error,
) {
	name, cause := w.state.actionSpan(a)
	w.state.actionStarted(a, w.now())
	pod := w.state.desired.Pod
	for _, r := range plan.ActionStarted(a) {
		w.logAndReport(pod, r)
	}
	ctx, cancel := context.WithCancel(ctx)
	w.cancels[a.Key()] = cancel
	w.ops.Go(func() {
		defer cancel()
		ctx, end := w.startSpan(ctx, stage, name, cause)
		out := plan.Outcome{Action: a, StartedAt: w.now()}
		w.fault("before", a)
		finished := w.measure(a)
		if before != nil {
			before(ctx)
		}
		if out.Err = ctx.Err(); out.Err == nil { // otherwise it was canceled while waiting
			out.Err = do(ctx, &out)
		}
		finished(out.Err)
		w.fault("after", a)
		out.FinishedAt = w.now()
		w.metrics.actionDuration(stage, out.FinishedAt.Sub(out.StartedAt))
		if out.Err != nil && ctx.Err() != nil && plan.KindOf(out.Err) != plan.Canceled {
			out.Err = &plan.Error{Kind: plan.Canceled, Err: out.Err}
		}
		end(out.Err)
		w.inbox.put(func(m *messages) { m.outcomes = append(m.outcomes, out) })
	})
}

func (w *Worker) fault(moment string, a plan.Action) {
	if w.Fault != nil {
		w.Fault(moment, a)
	}
}

// measure records the start of an action. The returned function records its end.
func (w *Worker) measure(a plan.Action) (finished func(error)) {
	stop := func() {}
	if _, pull := a.(plan.PullImage); pull { // pods may share a pull: the call is not a child of each pod's span
		stopRuntime, stopPull := w.runtimeTime.Start(), w.pullTime.Start()
		stop = func() { stopRuntime(); stopPull() }
	}
	done := func(error) {}
	if w.ActionStarted != nil {
		done = w.ActionStarted(a)
	}
	return func(err error) {
		done(err)
		stop()
	}
}

// handleOutcome applies the outcome of an action.
func (w *Worker) handleOutcome(ctx context.Context, r plan.Outcome) {
	delete(w.cancels, r.Action.Key())
	w.state.actionFinished(r)
	_, start := r.Action.(plan.StartContainer)
	if start && r.Err == nil && r.Container != nil && w.agent.RuntimePolled() {
		w.observeAfterStart(ctx, r.Container.ID)
	}
	w.metrics.actionFinished(w.state.desired.Pod, r)
	w.reportOutcome(r)
}

// reportOutcome reports the outcome of an action to users. The log has one line
// for each failure: the first reason, or the error if users get no reason.
func (w *Worker) reportOutcome(r plan.Outcome) {
	pod := w.state.desired.Pod
	attrs := []any{"action", r.Action.Key().String(), "duration", r.FinishedAt.Sub(r.StartedAt)}
	failed := r.Err != nil && plan.KindOf(r.Err) != plan.Canceled
	switch r.Action.(type) {
	case plan.PostStart, plan.PreStop: // the output of a hook is not reported to users
		if failed {
			attrs = append(attrs, "err", r.Err)
		}
	}
	reasons := plan.ActionFinished(r)
	for i, reason := range reasons {
		switch {
		case !failed:
			w.logAndReport(pod, reason)
		case i == 0:
			w.logAndReport(pod, reason, attrs...)
		default:
			w.agent.Report(pod, reason)
		}
	}
	switch attrs = append(attrs, "err", r.Err); {
	case !failed:
		w.log.Debug("action finished", attrs...)
	case len(reasons) == 0:
		w.log.Warn("action failed", attrs...)
	}
}

// logAndReport logs a reason and reports it to users. Reasons without an event type are decisions,
// which describe and why show.
func (w *Worker) logAndReport(pod *corev1.Pod, r plan.Reason, more ...any) {
	level := slog.LevelInfo
	if r.EventType == corev1.EventTypeWarning {
		level = slog.LevelWarn
	}
	attrs := []any{"reason", r.Code}
	if r.Target != "" {
		attrs = append(attrs, "target", r.Target)
	}
	if attrs = append(append(attrs, more...), "message", r.Message); r.EventType != "" {
		w.log.Log(context.Background(), level, "event occurred", attrs...)
	} else {
		w.log.Log(context.Background(), level, "pod decision changed", attrs...)
	}
	w.agent.Report(pod, r)
}
