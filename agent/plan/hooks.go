package plan

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The hooks of a container, and what waits for them:
//
//	start ─► Running ─► postStart ─ended─► started: the next container's turn
//	                        └─failed─► ended, as the restart policy says from there
//	to be ended ─► preStop ─ended, failed or out of time─► stop signal with what is left
//
// Where a hook stands is kept in Memory.Hooks, by attempt: it is on disk before
// the container is started or the hook is run, so that whatever an agent that
// dies has left behind is finished by the next one. A hook that may have run is
// run again: at least once, never half.

// HookStatus is how far the hooks of one instance of a container have come.
type HookStatus struct {
	Attempt   uint32    `json:"Attempt"` // of the instance
	PostStart HookState `json:"PostStart,omitempty"`
	PreStop   HookState `json:"PreStop,omitempty"`
	Message   string    `json:"Message,omitempty"` // why postStart has failed

	// Of an instance that is being ended, since PreStop is not HookNone: why, by
	// when, and with how much grace it was first asked for. Sticky: an instance
	// that was told to stop is ended, whatever becomes of the cause.
	Reason   string        `json:"Why,omitempty"`
	Deadline time.Time     `json:"By,omitzero"`
	Grace    time.Duration `json:"Grace,omitempty"`
}

// HookState is how far one hook of one instance has come.
type HookState int

const (
	HookNone    HookState = iota // there is none, or it is not its time
	HookPending                  // to be run, or being run
	HookDone                     // has ended well, or its time was over
	HookFailed
)

// HookResult is the end of a hook, as this agent has seen it.
type HookResult struct {
	State   HookState // HookDone or HookFailed
	Message string    // of a failure
}

func hasPostStart(c *corev1.Container) bool {
	return c.Lifecycle != nil && c.Lifecycle.PostStart != nil
}

func hasPreStop(c *corev1.Container) bool { return c.Lifecycle != nil && c.Lifecycle.PreStop != nil }

// recordHookResults takes the ends of hooks over into memory and calls off hooks of
// containers that do not run any more.
func (d *decider) recordHookResults() {
	for name, h := range d.mem.Hooks {
		k, seen := d.newest(name)
		if !seen || k.Attempt != h.Attempt {
			continue
		}
		if e := d.Observed.Hooks[PostStart{ID: k.ID}.Key()]; e.State != HookNone && h.PostStart == HookPending {
			h.PostStart, h.Message = e.State, e.Message
		}
		if e := d.Observed.Hooks[PreStop{ID: k.ID}.Key()]; e.State != HookNone && h.PreStop == HookPending {
			h.PreStop = HookDone // whether it failed changes nothing any more
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

// isRunning reports whether the container of that ID is running.
func (d *decider) isRunning(id string) bool {
	return slices.ContainsFunc(d.Observed.Containers, func(k Container) bool { return k.ID == id && k.State == Running })
}

// hookOf is how far the hooks of this very instance have come.
func (d *decider) hookOf(k Container) HookStatus {
	if h := d.mem.Hooks[k.Name]; h.Attempt == k.Attempt {
		return h
	}
	return HookStatus{Attempt: k.Attempt}
}

// recordStart notes what an instance that is about to be started is made with: its
// resources, and whether it has a hook to run.
func (d *decider) recordStart(c spec, attempt uint32) {
	if c.resizable() {
		d.mem.Resources.Containers = withKey(d.mem.Resources.Containers, c.Name, ActualResources{Attempt: attempt, ContainerResources: d.allocated.ForContainer(c.Name)})
	}
	if hasPostStart(c.Container) {
		d.mem.Hooks[c.Name] = HookStatus{Attempt: attempt, PostStart: HookPending}
	} else {
		delete(d.mem.Hooks, c.Name)
	}
}

// postStart runs the hook of a container that has just been started, and ends
// the container if it has failed. It reports whether either is under way: the
// container does not count as started then.
func (d *decider) postStart(k Container) bool {
	h := d.hookOf(k)
	switch {
	case h.PreStop != HookNone: // being ended
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

// postStartUnfinished reports whether a running container's postStart hook has not ended
// well.
func (d *decider) postStartUnfinished(k Container) bool {
	s := d.hookOf(k).PostStart
	return s == HookPending || s == HookFailed
}

// postStartInProgress reports whether a postStart hook is to run or under way: no other
// container of the pod is started meanwhile.
func (d *decider) postStartInProgress() bool {
	for _, a := range d.InProgress {
		if _, ok := a.(PostStart); ok {
			return true
		}
	}
	for name := range d.mem.Hooks {
		if k, seen := d.newest(name); seen && k.State == Running && d.hookOf(k).PostStart == HookPending {
			return true
		}
	}
	return false
}

// preStop runs the hook of a container that is to be ended by the given time,
// and reports whether it is under way: its stop waits for it. A container that
// has ended or never ran gets none, nor does one that has no time left.
func (d *decider) preStop(k Container, why string, by time.Time, grace time.Duration) (underWay bool) {
	c, ok := d.specOf(k.Name)
	newest, _ := d.newest(k.Name)
	if !ok || !hasPreStop(c.Container) || k.State != Running || newest.ID != k.ID {
		return false
	}
	h := d.hookOf(k)
	if h.PreStop == HookNone {
		if grace <= 0 || !d.Now.Before(by) {
			return false
		}
		h.PreStop, h.Reason, h.Deadline, h.Grace = HookPending, why, by, grace
		d.report(d.killingReason(k, why))
	}
	if by.Before(h.Deadline) {
		h.Deadline = by
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

// specOf finds a container of the pod by name.
func (d *decider) specOf(name string) (spec, bool) {
	for _, c := range d.specs {
		if c.Name == name {
			return c, true
		}
	}
	return spec{}, false
}
