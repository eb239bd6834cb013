package pod

import (
	"context"
	"slices"
	"time"

	"berth/agent/plan"
	"berth/agent/status"
)

// RuntimeEvent is an unsolicited report of the runtime about one pod. Its content
// may be older than the newest observation.
type RuntimeEvent struct {
	Sandbox    *plan.Sandbox
	Containers []plan.Container
	Incomplete bool // a change without details: the pod must be observed

	// Listed is the pod in the newest list of a runtime that is polled. It is
	// compared with the observed state, and a difference leads to an observation.
	Listed *Listing
}

// Listing is one pod in a list of the runtime.
type Listing struct {
	Sandboxes  []plan.Sandbox
	Containers []plan.Container
}

// observation is the result of observing the runtime and the host once.
type observation struct {
	outcomeSeq uint64    // state.outcomeSeq when it started
	eventSeq   uint64    // state.eventSeq when it started
	started    time.Time // of the observation, or of an audit's listing
	sandboxes  []plan.Sandbox
	containers []plan.Container
	volumes    map[string]plan.VolumeStatus
	dirs       bool
	cgroup     bool
	images     plan.ImageStatuses
	runtime    bool // sandboxes and containers were read
	host       bool // volumes, dirs, cgroup and images were read
	err        error
}

// applyObservation applies an observation. If an action has finished since its start, it
// is ignored and repeated, because it may show the earlier state (A3).
func (s *state) applyObservation(o observation) {
	if o.outcomeSeq != s.outcomeSeq {
		if o.runtime {
			s.requestRecheck(nil, s.lastChange)
		}
		return
	}
	if o.runtime {
		if o.eventSeq != s.eventSeq { // an event has arrived since and may be newer
			o.containers = plan.KeepExits(s.observed.Containers, o.containers)
			s.requestRecheck(nil, s.lastChange)
		}
		s.observed = s.observed.WithRuntime(o.sandboxes, o.containers)
	}
	if o.host {
		s.observed.Volumes, s.observed.HasDirs, s.observed.HasCgroup = o.volumes, o.dirs, o.cgroup
		s.applyImages(o.images, o.started)
	}
	s.everObserved = true
	s.runtimeStale, s.hostStale = s.runtimeStale && !o.runtime, s.hostStale && !o.host
	s.pruneFailures()
}

// applyImages applies the result of a check for images at the given time.
func (s *state) applyImages(images plan.ImageStatuses, at time.Time) {
	s.observed, s.imagesCheckedAt = s.observed.WithImages(images), at
}

// applyEvent applies an event of the runtime.
func (s *state) applyEvent(e RuntimeEvent, now time.Time) {
	switch {
	case e.Listed != nil:
		s.requestRecheck(&observation{sandboxes: e.Listed.Sandboxes, containers: e.Listed.Containers}, now)
	case e.Incomplete || e.Sandbox == nil && len(e.Containers) == 0:
		s.requestRecheck(nil, now)
	default:
		s.eventSeq++
		s.lastChange = now
		if e.Sandbox != nil && !s.wasRemoved(e.Sandbox.ID) {
			s.observed = s.observed.WithSandbox(*e.Sandbox)
		}
		for _, k := range e.Containers {
			if !s.wasRemoved(k.ID) && !s.wasRemoved(k.SandboxID) {
				s.observed = s.observed.WithContainer(k)
			}
		}
	}
}

// recheck is a request to check whether the observed state of the runtime is outdated. An
// observation follows soon; decisions continue meanwhile (A8).
type recheck struct {
	since  time.Time
	listed *observation // existence and state only; nil: unknown, an observation is required
}

// recheckDelay is how long a recheck waits for actions in progress to explain the
// difference: in most cases they are its cause.
const recheckDelay = time.Second

// requestRecheck requests a recheck. A newer listing replaces an older one.
func (s *state) requestRecheck(listed *observation, now time.Time) {
	switch {
	case s.recheck == nil:
		s.recheck = &recheck{since: now, listed: listed}
	case listed == nil || s.recheck.listed != nil:
		s.recheck.listed = listed
	}
}

// recheckDue reports whether the recheck must run now, or otherwise when. Zero: none is
// requested. A listing that agrees with the observed state clears the request.
func (s *state) recheckDue(now time.Time) (due bool, later time.Time) {
	r := s.recheck
	switch {
	case r == nil:
		return false, time.Time{}
	case r.listed != nil && s.observed.Diff(r.listed.sandboxes, r.listed.containers) == "":
		s.recheck = nil
		return false, time.Time{}
	case !s.changingRuntime() || now.Sub(r.since) >= recheckDelay:
		return true, time.Time{}
	default:
		return false, r.since.Add(recheckDelay)
	}
}

// recordRemoval records a removed object. Events that are older than the removal
// are few and arrive soon, so a short list is enough.
func (s *state) recordRemoval(a plan.Action) {
	const limit = 32
	switch a := a.(type) {
	case plan.RemoveContainer:
		s.recentlyRemoved = append(s.recentlyRemoved, a.ID)
	case plan.RemoveSandbox:
		s.recentlyRemoved = append(s.recentlyRemoved, a.ID)
	}
	if n := len(s.recentlyRemoved) - limit; n > 0 {
		s.recentlyRemoved = slices.Delete(s.recentlyRemoved, 0, n)
	}
}

// wasRemoved reports whether an object was removed, or is being removed.
func (s *state) wasRemoved(id string) bool {
	_, removing := s.inProgress[plan.RemoveContainer{ID: id}.Key()] // the removal of a sandbox has the same key
	return removing || slices.Contains(s.recentlyRemoved, id)
}

const (
	// observeRetry is the delay after a failed observation.
	observeRetry = 250 * time.Millisecond
	// observeAfterStartDelay is when a started container is read again if the
	// runtime has no events: many containers that fail do so at once.
	observeAfterStartDelay = 200 * time.Millisecond
)

// observe starts an observation of the host, and of the runtime if requested. A new
// worker starts with the pod's part of the agent's listing. The result
// arrives as a message.
func (w *Worker) observe(ctx context.Context, runtime bool) {
	w.observing = true
	s := w.state
	pod, outcomeSeq, eventSeq := plan.WithResources(s.podWithAllocation(), s.memory.Resources.Cgroup), s.outcomeSeq,
		s.eventSeq
	objs := w.agent.Objects(pod)
	host := !s.everObserved || s.hostStale
	if runtime {
		s.recheck = nil // a later report concerns a later state
	}
	retry := w.observeErr != "" // consecutive failures share one span
	w.ops.Go(func() {
		spanCtx, end := ctx, func(error) {}
		if !retry {
			spanCtx, end = w.startSpan(ctx, "prepare", "observe", "")
		}
		started := w.now()
		o := w.stages.Prepare.observe(spanCtx, pod, objs, host, runtime)
		w.metrics.actionDuration("prepare", w.now().Sub(started))
		end(o.err)
		if o.err != nil {
			sleep(ctx, observeRetry)
		}
		o.outcomeSeq, o.eventSeq, o.started = outcomeSeq, eventSeq, started
		w.inbox.put(func(m *messages) { m.observations = append(m.observations, o) })
	})
}

// checkImages checks for images that are never pulled. It adds no span:
// the repeated checks would fill the timeline.
func (w *Worker) checkImages(ctx context.Context, images []string) {
	if w.checkingImages || len(images) == 0 {
		return
	}
	w.checkingImages = true
	pod := w.state.desired.Pod
	objs := w.agent.Objects(pod)
	w.ops.Go(func() {
		c := &imageCheck{at: w.now(), images: w.stages.Prepare.Images.Observe(ctx, pod, images, objs)}
		w.inbox.put(func(m *messages) { m.images = c })
	})
}

// imageCheck is the result of a check for images.
type imageCheck struct {
	at     time.Time
	images plan.ImageStatuses
}

// handleObservation applies the result of an observation.
func (w *Worker) handleObservation(o observation) {
	s := w.state
	if o.err != nil {
		if o.runtime {
			s.requestRecheck(nil, w.now())
		}
		if text := o.err.Error(); text != w.observeErr && plan.KindOf(o.err) != plan.Canceled {
			if w.observeErr == "" {
				w.observeErrSince = w.now()
			}
			w.observeErr = text
			w.publishObserveError()
			w.log.Warn("pod state unknown; retrying", "err", o.err)
		}
		return
	}
	w.observeErr = ""
	if w.auditPending && o.runtime && o.outcomeSeq == s.outcomeSeq {
		w.auditPending = false
		if diff := s.observed.Diff(o.sandboxes, o.containers); diff != "" {
			w.metrics.divergence()
			w.log.Warn("runtime state differs from observed state", "diff", diff)
		}
	}
	s.applyObservation(o)
}

// publishObserveError publishes the error that blocks the pod, with its last published
// snapshot or its last known state.
func (w *Worker) publishObserveError() {
	s := w.state
	why := status.ReportedReason{Reason: plan.Reason{Code: ObserveFailed, Message: w.observeErr},
		Since: w.observeErrSince}
	snap := UnsyncedSnapshot(s.desired.Pod, s.verdict, s.memory, why)
	if w.published != nil && w.published.Syncs > 0 {
		last := *w.published
		last.InProgress, last.Failures = s.activity()
		snap = &last
		others := slices.DeleteFunc(slices.Clone(snap.Reasons), func(t status.ReportedReason) bool {
			return t.Code == ObserveFailed
		})
		snap.Reasons = append(others, why)
	}
	snap.At = w.now()
	w.publish(snap)
}

// handleAudit compares the observed state with a separate listing of the runtime. A
// difference triggers an observation and counts as a divergence if that confirms it.
// There should be none.
func (w *Worker) handleAudit(o observation) {
	s := w.state
	if !s.everObserved || s.runtimeStale || s.observed.Diff(o.sandboxes, o.containers) == "" {
		return
	}
	if s.changingRuntime() || !s.lastChange.Before(o.started) { // the listing may show the state before that
		s.requestRecheck(&o, w.now())
		return
	}
	w.auditPending = true
	s.requestRecheck(nil, w.now())
}

// observeAfterStart reads a container shortly after its start.
func (w *Worker) observeAfterStart(ctx context.Context, id string) {
	w.ops.Go(func() {
		if !sleep(ctx, observeAfterStartDelay) {
			return
		}
		ctx, end := w.startSpan(ctx, "prepare", "observe after start", "")
		k, err := w.stages.Prepare.Runtime.Container(ctx, id)
		end(err)
		if err != nil {
			w.Notify(RuntimeEvent{Incomplete: true})
			return
		}
		w.Notify(RuntimeEvent{Containers: []plan.Container{k}})
	})
}

// sleep waits for the duration. It returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
