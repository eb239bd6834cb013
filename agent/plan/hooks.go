package plan

import (
	"encoding/json"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The lifecycle hooks of a container:
//
//	start ─► Running ─► postStart ─succeeded─► started: the next container starts
//	                        └─failed─► stopped, then as the restart policy says
//	stop ─► preStop ─returned or out of time─► stop signal with the remaining grace period
//
// Memory.Hooks holds the progress by attempt. It is persisted before the container is started or
// the hook is run, so that a restarted agent continues from there. A hook that may have run is run
// again: hooks run at least once.

// HookStatus is the progress of the hooks of one container instance.
type HookStatus struct {
	Attempt   uint32    `json:"Attempt"` // of the instance
	PostStart HookState `json:"PostStart,omitempty"`
	PreStop   HookState `json:"PreStop,omitempty"`
	Message   string    `json:"Message,omitempty"` // error of postStart

	// Reason, Deadline and Grace are those of the first stop request, set while PreStop is not
	// HookNone. An instance whose stop has started is stopped even if the cause disappears.
	Reason   string        `json:"Why,omitempty"`
	Deadline time.Time     `json:"By,omitzero"`
	Grace    time.Duration `json:"Grace,omitempty"`
}

// UnmarshalJSON replaces the reason that earlier releases stored for a requested restart.
func (h *HookStatus) UnmarshalJSON(b []byte) error {
	type stored HookStatus
	if err := json.Unmarshal(b, (*stored)(h)); err != nil {
		return err
	}
	if h.Reason == oldStopReasonRestartRequested {
		h.Reason = stopReasonRestartRequested
	}
	return nil
}

// HookState is the progress of one hook of one instance.
type HookState int

const (
	HookNone    HookState = iota // no hook, or not its time yet
	HookPending                  // to be run, or running
	HookDone                     // succeeded, or its time is over
	HookFailed
)

// HookResult is the result of a hook that this agent process ran.
type HookResult struct {
	State   HookState // HookDone or HookFailed
	Message string    // error message
}

func hasPostStart(c *corev1.Container) bool {
	return c.Lifecycle != nil && c.Lifecycle.PostStart != nil
}

func hasPreStop(c *corev1.Container) bool { return c.Lifecycle != nil && c.Lifecycle.PreStop != nil }

// recordHookResults records the results of hooks in Memory and cancels hooks of containers that no
// longer run.
func (d *decider) recordHookResults() {
	for name, h := range d.mem.Hooks {
		k, exists := d.newest(name)
		if !exists || k.Attempt != h.Attempt {
			continue
		}
		if e := d.Observed.Hooks[PostStart{ID: k.ID}.Key()]; e.State != HookNone && h.PostStart == HookPending {
			h.PostStart, h.Message = e.State, e.Message
		}
		if e := d.Observed.Hooks[PreStop{ID: k.ID}.Key()]; e.State != HookNone && h.PreStop == HookPending {
			h.PreStop = HookDone // a failure makes no difference
		}
		d.mem.Hooks[name] = h
	}
	d.cancel(func(a Action) bool {
		switch a := a.(type) {
		case PostStart:
			return !d.isRunning(a.ID)
		case PreStop:
			return !d.isRunning(a.ID)
		}
		return false
	})
}

// isRunning reports whether the container with the ID is running.
func (d *decider) isRunning(id string) bool {
	return slices.ContainsFunc(d.Observed.Containers, func(k Container) bool {
		return k.ID == id && k.State == Running
	})
}

// hookOf returns the progress of the hooks of this instance.
func (d *decider) hookOf(k Container) HookStatus {
	if h := d.mem.Hooks[k.Name]; h.Attempt == k.Attempt {
		return h
	}
	return HookStatus{Attempt: k.Attempt}
}

// recordStart records the resources and the postStart hook of an instance that is about to start.
func (d *decider) recordStart(c spec, attempt uint32) {
	if c.resizable() {
		d.mem.Resources.Containers = withKey(d.mem.Resources.Containers, c.Name,
			ActualResources{Attempt: attempt, ContainerResources: d.allocated.ForContainer(c.Name)})
	}
	if hasPostStart(c.Container) {
		d.mem.Hooks[c.Name] = HookStatus{Attempt: attempt, PostStart: HookPending}
	} else {
		delete(d.mem.Hooks, c.Name)
	}
}

// postStart runs the postStart hook of a container that has just started, and stops the container
// if the hook has failed. It reports whether one of these is in progress. The container does not
// count as started then.
func (d *decider) postStart(k Container) bool {
	h := d.hookOf(k)
	switch {
	case h.PreStop != HookNone: // stopping
		return false
	case h.PostStart == HookPending:
		d.addBuildRun(PostStart{ID: k.ID, Name: k.Name})
		return true
	case h.PostStart == HookFailed:
		d.stop(k, "FailedPostStartHook", d.Now.Add(d.grace()), d.grace())
		return true
	}
	return false
}

// postStartUnfinished reports whether a running container has a postStart hook that has not
// succeeded.
func (d *decider) postStartUnfinished(k Container) bool {
	s := d.hookOf(k).PostStart
	return s == HookPending || s == HookFailed
}

// postStartInProgress reports whether a postStart hook is pending or running. No other container of
// the pod starts meanwhile.
func (d *decider) postStartInProgress() bool {
	for _, a := range d.InProgress {
		if _, ok := a.(PostStart); ok {
			return true
		}
	}
	for name := range d.mem.Hooks {
		if k, exists := d.newest(name); exists && k.State == Running && d.hookOf(k).PostStart == HookPending {
			return true
		}
	}
	return false
}

// preStop runs the preStop hook of a container that must stop by the given time, and reports
// whether the hook is in progress, which delays the stop. No hook runs in a container that is not
// running or has no time left.
func (d *decider) preStop(k Container, reason string, deadline time.Time, grace time.Duration) (inProgress bool) {
	c, ok := d.specOf(k.Name)
	newest, _ := d.newest(k.Name)
	if !ok || !hasPreStop(c.Container) || k.State != Running || newest.ID != k.ID {
		return false
	}
	h := d.hookOf(k)
	if h.PreStop == HookNone {
		if grace <= 0 || !d.Now.Before(deadline) {
			return false
		}
		h.PreStop, h.Reason, h.Deadline, h.Grace = HookPending, reason, deadline, grace
		d.report(d.killingReason(k, reason))
	}
	if deadline.Before(h.Deadline) {
		h.Deadline = deadline
	}
	if h.Deadline.Sub(d.Now) > h.Grace { // the clock was set back
		h.Deadline = d.Now.Add(h.Grace)
	}
	a := PreStop{ID: k.ID, Name: k.Name}
	if h.PreStop == HookPending && !d.Now.Before(h.Deadline) {
		h.PreStop = HookDone
		d.cancel(func(busy Action) bool { return busy.Key() == a.Key() })
	}
	d.mem.Hooks[k.Name] = h
	if h.PreStop != HookPending {
		return false
	}
	d.keepReadiness(k)
	d.wakeAt(h.Deadline)
	d.addCleanup(a)
	return true
}

// specOf returns the container of the pod with the name.
func (d *decider) specOf(name string) (spec, bool) {
	for _, c := range d.specs {
		if c.Name == name {
			return c, true
		}
	}
	return spec{}, false
}
