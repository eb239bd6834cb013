package pod

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/agent/source"
	"berth/agent/status"
	"berth/podspec"
)

// Desired is the desired state of one pod. A newer one replaces the older.
type Desired struct {
	Pod         *corev1.Pod       // shared, read-only
	Termination *plan.Termination // nil: keep the pod running
}

// state is everything that a worker knows about its pod. It has no goroutine,
// clock or lock, so that the model world can drive it and replay a run exactly.
type state struct {
	desired     Desired
	verdict     plan.Verdict
	startQueued bool              // admitted before an agent restart, waits for a start slot
	reserved    plan.Resources    // resources reserved by the allocator; nil: as in memory
	resize      plan.ResizeStatus // why the allocator has not reserved the desired resources
	observed    plan.Observed
	refs        map[plan.Ref]plan.Version
	health      map[string]plan.Health
	inProgress  map[plan.ActionKey]plan.Action
	failures    map[plan.ActionKey]plan.Failure
	memory      plan.Memory

	everObserved bool     // an observation was applied since the worker started
	runtimeStale bool     // the runtime must be observed before the next decision
	hostStale    bool     // the host must be observed before the next decision
	recheck      *recheck // request to check the observed state
	eventSeq     uint64   // number of runtime events applied
	outcomeSeq   uint64   // number of actions finished
	// IDs of removed objects, newest last: a late event does not restore them
	recentlyRemoved []string
	lastChange      time.Time                    // when an action last finished or an event last arrived
	startedAt       map[plan.ActionKey]time.Time // of the actions in progress

	reported        []status.ReportedReason // reasons of the last pass: each is reported once
	restoredReports []status.ReportedReason // reported before the agent restart and not decided again yet
	restoredUntil   time.Time               // when restoredReports expire
	syncs           int64
	imagesCheckedAt time.Time // last check for missing images
}

func newState() *state {
	return &state{
		inProgress: map[plan.ActionKey]plan.Action{},
		failures:   map[plan.ActionKey]plan.Failure{},
		health:     map[string]plan.Health{},
		startedAt:  map[plan.ActionKey]time.Time{},
	}
}

// canDecide reports whether the observed state is current enough for a decision.
func (s *state) canDecide() bool {
	return s.desired.Pod != nil && s.everObserved && !s.runtimeStale && !s.hostStale
}

// finishedOrTerminating reports whether the pod has finished or is terminating:
// it needs no resources.
func (s *state) finishedOrTerminating() bool {
	return s.desired.Termination != nil || s.memory.Termination != nil || IsTerminal(s.memory.Phase)
}

// deleting reports whether the pod is terminating and nothing of it will remain.
func (s *state) deleting() bool {
	return s.desired.Termination != nil && s.desired.Termination.RemovePod
}

// podWithAllocation returns the desired pod with its allocated resources.
func (s *state) podWithAllocation() *corev1.Pod {
	return plan.WithResources(s.desired.Pod, s.memory.Resources.Allocated)
}

// persistentVerdict returns the verdict to save. An admitted pod is never checked again,
// even if it still waits for a start slot.
func (s *state) persistentVerdict() plan.Verdict {
	if s.startQueued {
		return plan.Verdict{State: plan.Admitted}
	}
	return s.verdict
}

// planInput returns the input of plan.Decide.
func (s *state) planInput(now time.Time, limits plan.Limits) plan.Input {
	return plan.Input{
		Now: now, Pod: s.desired.Pod, Verdict: s.verdict, Reserved: s.reserved, Resize: s.resize,
		Termination: s.desired.Termination, Observed: s.observed, Refs: s.refs, Health: s.health,
		InProgress: s.inProgress,
		Failures:   s.failures, Memory: s.memory, ImagesCheckedAt: s.imagesCheckedAt, Limits: limits,
	}
}

// setDesired replaces the desired state. A termination is never reverted.
func (s *state) setDesired(d Desired) {
	if d.Termination == nil {
		d.Termination = s.desired.Termination
	}
	was := s.desired.Pod
	if was != nil && d.Pod != nil && !slices.Equal(podspec.Images(was), podspec.Images(d.Pod)) {
		s.hostStale = true // it is unknown whether the new images are present
		s.outcomeSeq++     // an observation in progress does not cover them either
	}
	s.desired = d
}

// actionStarted records that an action is in progress.
func (s *state) actionStarted(a plan.Action, now time.Time) {
	if _, duplicate := s.inProgress[a.Key()]; duplicate {
		panic("two actions with one key: " + a.Key().String()) // plan.Decide has violated its contract
	}
	s.inProgress[a.Key()], s.startedAt[a.Key()] = a, now
}

// actionFinished records the outcome of an action.
func (s *state) actionFinished(r plan.Outcome) {
	key := r.Action.Key()
	delete(s.inProgress, key)
	delete(s.startedAt, key)
	if r.Err == nil {
		s.recordRemoval(r.Action)
	}
	s.outcomeSeq++
	s.lastChange = r.FinishedAt
	switch {
	case r.Err == nil:
		delete(s.failures, key)
	case plan.KindOf(r.Err) == plan.Canceled: // canceled by this agent: not a failure
	default:
		before := s.failures[key]
		if !sameTarget(before.Action, r.Action) {
			before.Count = 0
		}
		s.failures[key] = plan.FailureOf(r, before.Count)
	}
	s.observed = s.observed.After(r)
	runtime, host := plan.NeedsObservation(r)
	s.runtimeStale, s.hostStale = s.runtimeStale || runtime, s.hostStale || host
	s.pruneFailures()
}

// sameTarget reports whether failures of the two actions count as consecutive.
func sameTarget(before, now plan.Action) bool {
	b, ok := before.(plan.PullImage)
	n, ok2 := now.(plan.PullImage)
	return !ok || !ok2 || b.Image == n.Image
}

// pruneFailures drops failures of objects that no longer exist.
func (s *state) pruneFailures() {
	maps.DeleteFunc(s.failures, func(_ plan.ActionKey, f plan.Failure) bool {
		switch a := f.Action.(type) {
		case plan.StopContainer:
			return !s.isLive(a.ID)
		case plan.PostStart:
			return !s.isLive(a.ID)
		case plan.PreStop:
			return !s.isLive(a.ID)
		case plan.RemoveContainer:
			return !s.hasContainer(a.ID)
		case plan.StopSandbox:
			return !s.hasSandbox(a.ID)
		case plan.RemoveSandbox:
			return !s.hasSandbox(a.ID)
		}
		return false
	})
}

func (s *state) isLive(id string) bool {
	return slices.ContainsFunc(s.observed.Containers, func(k plan.Container) bool { return k.ID == id && k.Live() })
}

// anyRunning reports whether a sandbox or a container of the pod was observed running.
func (s *state) anyRunning() bool {
	return s.hasReadySandbox() ||
		slices.ContainsFunc(s.observed.Containers, func(k plan.Container) bool { return k.State == plan.Running })
}

// hasReadySandbox reports whether the pod has a sandbox that is ready, which
// proves that the pod was admitted.
func (s *state) hasReadySandbox() bool {
	return slices.ContainsFunc(s.observed.Sandboxes, func(x plan.Sandbox) bool { return x.Ready })
}

func (s *state) hasContainer(id string) bool {
	return slices.ContainsFunc(s.observed.Containers, func(k plan.Container) bool { return k.ID == id })
}

func (s *state) hasSandbox(id string) bool {
	return slices.ContainsFunc(s.observed.Sandboxes, func(x plan.Sandbox) bool { return x.ID == id })
}

// changingRuntime reports whether an action in progress changes the pod's
// sandboxes or containers.
func (s *state) changingRuntime() bool {
	for _, a := range s.inProgress {
		switch a.(type) {
		case plan.RunSandbox, plan.StartContainer, plan.StopContainer, plan.RemoveContainer,
			plan.StopSandbox, plan.RemoveSandbox:
			return true
		}
	}
	return false
}

// isStarting reports whether the pod uses its start slot: an action creates
// something for it, or removes what remains of it, as after a reboot. Pulls and
// hooks do not count: a pod that waits for a large image or a hanging hook must not
// keep other pods from starting.
func (s *state) isStarting() bool {
	for _, a := range s.inProgress {
		switch a.(type) {
		case plan.PullImage, plan.PostStart:
			continue
		}
		if _, cleanup := a.(plan.CleanupAction); !cleanup || !s.finishedOrTerminating() && !s.anyRunning() {
			return true
		}
	}
	return false
}

// setRefs replaces the versions of the objects that the pod references. Failures
// caused by their content may be retried immediately.
func (s *state) setRefs(refs map[plan.Ref]plan.Version) {
	if maps.Equal(refs, s.refs) {
		return
	}
	s.refs = refs
	if s.waitsForLocalImage() {
		s.hostStale = true // a new pull secret may give access to an image that is present
	}
	maps.DeleteFunc(s.failures, func(_ plan.ActionKey, f plan.Failure) bool {
		switch f.Action.(type) {
		case plan.StartContainer, plan.MountVolume, plan.ProjectVolume, plan.PullImage:
			return true
		}
		return false
	})
}

// waitsForLocalImage reports whether a container waits for an image that is never pulled.
func (s *state) waitsForLocalImage() bool {
	return slices.ContainsFunc(s.reported, func(t status.ReportedReason) bool { return t.Code == "ErrImageNeverPull" })
}

// clearUnavailable drops failures that were caused only by an unavailable runtime.
func (s *state) clearUnavailable() {
	maps.DeleteFunc(s.failures, func(_ plan.ActionKey, f plan.Failure) bool { return f.Kind == plan.Unavailable })
}

// applyPlan keeps the memory of the plan and returns the reasons to report: those
// that the last pass did not have.
func (s *state) applyPlan(p plan.Plan, now time.Time) (report []plan.Reason) {
	s.memory = p.Memory
	s.syncs++
	reported := make([]status.ReportedReason, 0, len(p.Reasons))
	if now.After(s.restoredUntil) {
		s.restoredReports = nil
	}
	before := slices.Concat(s.reported, s.restoredReports)
	for _, r := range p.Reasons {
		t := status.ReportedReason{Reason: r, Since: now}
		same := func(t status.ReportedReason) bool {
			return t.Code == r.Code && t.Target == r.Target && t.Message == r.Message
		}
		i := slices.IndexFunc(before, same)
		if i >= 0 {
			t.Since = before[i].Since
		}
		if i < 0 || !before[i].Until.Equal(r.Until) { // the next back-off is reported again
			report = append(report, r)
		}
		reported = append(reported, t)
		s.restoredReports = slices.DeleteFunc(s.restoredReports, same)
	}
	s.reported = reported
	return report
}

// restoreReports restores the reasons that were reported before an agent restart.
// A reason that is decided again within a short time keeps its timestamp; the
// others have ended.
func (s *state) restoreReports(reported []status.ReportedReason, now time.Time) {
	const validity = 10 * time.Second
	s.restoredReports, s.restoredUntil = reported, now.Add(validity)
}

// mustRecreate reports whether a new desired state edits a pod from a file that
// has finished: the pod is recreated (invariant A9).
func (s *state) mustRecreate(d Desired) bool {
	return d.Termination == nil && !s.deleting() && source.ManifestChanged(s.desired.Pod, d.Pod) &&
		plan.HasFinished(s.memory, s.verdict)
}

// IsTerminal reports whether a phase is final.
func IsTerminal(p corev1.PodPhase) bool { return p == corev1.PodSucceeded || p == corev1.PodFailed }
