package plan

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Termination of a pod:
//
//	live ──app and init containers stopped in parallel──► sidecars, last first;
//	     after the grace period all remaining containers at once
//	     ──► sandbox stopped, volumes unmounted, dead containers removed (*)
//	     ──► cgroup, sandbox (*) ──► directories and logs (*) ──► Done (*)
//
//	(*) only with Termination.RemovePod

// failsPod reports whether the pod fails regardless of its exit codes. The phase of a deleted pod
// depends on them.
func (e *Termination) failsPod() bool { return e.Reason != "Deleted" && e.Reason != "Orphaned" }

// isDisruption reports whether the pod was terminated in the interest of the node.
func (e *Termination) isDisruption() bool {
	return e.Reason == "Evicted" || e.Reason == "Preempting" || e.Reason == "Terminated"
}

// disruptionCondition returns the condition DisruptionTarget.
func (e *Termination) disruptionCondition() corev1.PodCondition {
	c := corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
		Reason: corev1.PodReasonTerminationByKubelet, Message: e.Message,
	}
	if e.Reason == "Preempting" {
		c.Message = "Pod was preempted by Kubelet to accommodate a critical pod."
	}
	return c
}

// finish terminates a completed pod. The completion is recorded, so that nothing starts again when
// the runtime loses a container.
func (d *decider) finish() {
	if d.mem.FinishedAt.IsZero() {
		d.mem.FinishedAt = d.Now
	}
	d.terminate(d.mem.FinishedAt.Add(d.grace()), d.grace(), "Completed")
}

// terminate stops the containers by the given time, then releases the resources on the host. It
// reports whether containers may still be running.
func (d *decider) terminate(deadline time.Time, grace time.Duration, reason string) (live bool) {
	d.cancel(func(a Action) bool {
		_, cleanup := a.(CleanupAction)
		return !cleanup && !d.startFailed(a)
	})
	if d.stopContainers(deadline, grace, reason) {
		return true
	}
	if d.nonCleanupInProgress() {
		d.report(Reason{Code: "Settling", Message: "waiting for canceled actions to finish"})
		return true
	}
	d.releaseHost()
	return false
}

// startFailed reports whether a is the start of a container that has already exited. Such a start is
// about to return, and only its outcome tells users why the container did not run.
func (d *decider) startFailed(a Action) bool {
	start, ok := a.(StartContainer)
	return ok && slices.ContainsFunc(d.byName[start.Name], func(k Container) bool {
		return k.Attempt == start.Attempt && k.SandboxID == start.SandboxID && k.State == Exited
	})
}

// nonCleanupInProgress reports whether an action in progress may still create something.
func (d *decider) nonCleanupInProgress() bool {
	for _, a := range d.InProgress {
		if _, cleanup := a.(CleanupAction); !cleanup {
			return true
		}
	}
	return false
}

// stopContainers stops live containers: app containers together, then sidecars in reverse order. It
// reports whether any is left.
func (d *decider) stopContainers(deadline time.Time, grace time.Duration, reason string) (live bool) {
	sidecar := map[string]bool{}
	for _, c := range d.specs {
		if c.kind == Sidecar {
			sidecar[c.Name] = true
		}
	}
	for _, k := range d.Observed.Containers {
		if k.Live() && !sidecar[k.Name] {
			live = true
			d.stop(k, reason, deadline, grace)
		} else if k.State == Running && d.Limits.Probing {
			d.keepReadiness(k)
		}
	}
	expired := !d.Now.Before(deadline)
	for _, c := range slices.Backward(d.specs) {
		waits := live && !expired
		if waits {
			d.wakeAt(deadline)
		}
		if c.kind != Sidecar {
			continue
		}
		for _, k := range d.Observed.Containers {
			switch {
			case k.Name != c.Name || !k.Live():
			case waits: // the stop waits for its turn, the hook does not
				d.preStop(k, reason, deadline, grace)
			default:
				live = true
				d.stop(k, reason, deadline, grace)
			}
		}
	}
	return live
}

// stop stops a container, or removes one that was never started.
func (d *decider) stop(k Container, reason string, deadline time.Time, grace time.Duration) {
	if k.State == Created && d.beingStarted(k.Name) {
		return // its state is known when the start has returned
	}
	if k.State == Created {
		d.addCleanup(RemoveContainer{ID: k.ID, Name: k.Name})
		return
	}
	if d.preStop(k, reason, deadline, grace) {
		return
	}
	hook := d.hookOf(k)
	if hook.PreStop != HookNone && hook.Deadline.Before(deadline) { // the hook uses part of the grace period
		deadline = hook.Deadline
	}
	left := min(deadline.Sub(d.Now), grace) // longer only if the clock was set back
	left = max(left, min(d.Limits.MinStopGrace, grace), 0)
	a := StopContainer{ID: k.ID, Name: k.Name, Reason: reason, Grace: left, Deadline: d.Now.Add(left)}
	d.keepReadiness(k)
	if !d.available(a) {
		return
	}
	d.out.Cleanup = append(d.out.Cleanup, a)
	if hook.PreStop == HookNone { // otherwise reported before the hook
		d.report(d.killingReason(k, reason))
	}
}

// The reason of a StopContainer that a user requested with a restart.
const (
	stopReasonRestartRequested    = "RestartRequested"
	oldStopReasonRestartRequested = "RestartAsked" // in records of earlier releases
)

// Reasons of a StopContainer after which a new instance starts regardless of the restart policy.
// Only Memory records this, so it must be persisted first.
const (
	stopReasonSpecChanged = "Changed" // the container spec
	stopReasonResized     = "Resized" // by a restart, as its resize policy requires
)

// IsReplacement reports whether the container is stopped only to be replaced.
func (a StopContainer) IsReplacement() bool {
	return a.Reason == StopReasonRestartAll || a.Reason == stopReasonSpecChanged || a.Reason == stopReasonResized
}

// killingReason returns the Killing event of a container.
func (d *decider) killingReason(k Container, reason string) Reason {
	detail := "Stopping container " + k.Name
	switch reason {
	case "FailedPostStartHook":
		detail = reason
	case stopReasonResized:
		detail = fmt.Sprintf("Container %s resize requires restart", k.Name)
	case stopReasonSpecChanged:
		detail = fmt.Sprintf("Container %s definition changed, will be restarted", k.Name)
	case stopReasonRestartRequested:
		detail = fmt.Sprintf("Container %s is restarted because a user requested it", k.Name)
	case "Unhealthy":
		detail = fmt.Sprintf("Container %s failed %s probe", k.Name, d.mem.Health[k.ID].FailedProbe)
		if d.restartsAfterKill(k) {
			detail += ", will be restarted"
		}
	}
	return Reason{Code: "Killing", Target: k.Name, Message: detail, EventType: corev1.EventTypeNormal}
}

// restartsAfterKill reports whether a container that is killed now will run again.
func (d *decider) restartsAfterKill(k Container) bool {
	k.ExitCode = 137
	for _, c := range d.specs {
		if c.Name == k.Name {
			return d.mayRestart(c, k)
		}
	}
	return false
}

// keepReadiness continues only the readiness probe of a terminating container.
func (d *decider) keepReadiness(k Container) {
	if !d.Limits.Probing || k.State != Running {
		return
	}
	for _, c := range d.specs {
		if c.Name == k.Name {
			d.probe(c, k, Probes{Readiness: true})
		}
	}
}

// releaseHost releases the resources of the pod on the host, in parallel where possible.
func (d *decider) releaseHost() {
	removePod := d.mem.Termination != nil && d.mem.Termination.RemovePod
	remaining, network := false, false
	for _, s := range d.Observed.Sandboxes {
		if s.Ready || !s.Stopped {
			remaining, network = true, true
			d.addCleanup(StopSandbox{s.ID})
		}
	}
	for _, v := range slices.Sorted(maps.Keys(d.Observed.Volumes)) {
		remaining = true
		d.addCleanup(UnmountVolume{v})
	}
	if d.Observed.HasCgroup {
		remaining = true
		if !network { // it contains the sandbox process
			d.addCleanup(RemoveCgroup{})
		}
	}
	if !removePod && d.Observed.DiskPressure && !remaining { // the status of the containers is recorded
		for _, k := range d.Observed.Containers {
			d.addCleanup(RemoveContainer{k.ID, k.Name, true})
		}
	}
	if !removePod {
		return
	}
	for _, k := range d.Observed.Containers {
		remaining = true
		d.addCleanup(RemoveContainer{ID: k.ID, Name: k.Name})
	}
	for _, s := range d.Observed.Sandboxes {
		remaining = true
		if s.Stopped && !s.Ready && len(d.Observed.Containers) == 0 {
			d.addCleanup(RemoveSandbox{ID: s.ID})
		}
	}
	if d.Observed.HasDirs {
		if !remaining {
			d.addCleanup(RemoveDirs{})
		}
		remaining = true
	}
	d.out.Done = !remaining && len(d.InProgress) == 0
}
