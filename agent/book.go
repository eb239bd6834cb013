package agent

import (
	"maps"
	"slices"
	"time"

	"berth/agent/plan"
	"berth/podspec"
)

// state is all that a worker knows of its pod: what is wished, what was seen,
// what is under way, what failed. It holds no goroutine, clock or lock, so that
// a model world can drive it and replay exactly.
type state struct {
	desired     Desired
	verdict     plan.Verdict
	startQueued bool           // it was let in by an earlier life, and waits for its turn to start
	reserved    plan.Resources // what the room holds for the pod; nil: as memory has it
	resize      plan.Resize    // why it does not hold what is wished
	observed    plan.Observed
	refs        map[plan.Ref]plan.Version
	health      map[string]plan.Health
	inProgress  map[plan.OpKey]plan.Action
	failures    map[plan.OpKey]plan.Failure
	memory      plan.Memory

	everObserved    bool                     // the pod was looked at since the worker began
	runtimeStale    bool                     // what the runtime has of the pod must be looked at before the next decision
	hostStale       bool                     // likewise the host
	recheck         *recheck                 // something was told that may not be known yet
	eventSeq        uint64                   // hints that were taken in
	recentlyRemoved []string                 // what was removed lately, newest last: a late hint does not bring it back
	outcomeSeq      uint64                   // actions that have ended
	lastChange      time.Time                // when an action last ended or a hint last came
	reported        []Told                   // of the last pass: what was told once is not told again
	restoredReports []Told                   // told by the agent's earlier life and not yet decided in this one
	restoredUntil   time.Time                // when that is forgotten
	startedAt       map[plan.OpKey]time.Time // when what is busy began
	syncs           int64
	imagesCheckedAt time.Time // when the node was last asked for images that it did not have
}

func newState() *state {
	return &state{
		inProgress: map[plan.OpKey]plan.Action{},
		failures:   map[plan.OpKey]plan.Failure{},
		health:     map[string]plan.Health{},
		startedAt:  map[plan.OpKey]time.Time{},
	}
}

// canDecide reports whether what is known is sound enough to decide on.
func (b *state) canDecide() bool {
	return b.desired.Pod != nil && b.everObserved && !b.runtimeStale && !b.hostStale
}

// finishedOrTerminating reports whether the pod is to end or has ended: it needs no room.
func (b *state) finishedOrTerminating() bool {
	return b.desired.Termination != nil || b.memory.End != nil || isTerminal(b.memory.Phase)
}

// persistentVerdict is the verdict that is kept: who was let in once is never judged again,
// though its turn to start may not have come.
func (b *state) persistentVerdict() plan.Verdict {
	if b.startQueued {
		return plan.Verdict{State: plan.OK}
	}
	return b.verdict
}

// planInput is the question to plan.Decide.
func (b *state) planInput(now time.Time, limits plan.Limits) plan.Input {
	return plan.Input{
		Now: now, Pod: b.desired.Pod, Verdict: b.verdict, Reserved: b.reserved, Resize: b.resize, End: b.desired.Termination, Seen: b.observed,
		Refs: b.refs, Health: b.health, Busy: b.inProgress, Failed: b.failures, Memory: b.memory, Sought: b.imagesCheckedAt, Limits: limits,
	}
}

// setDesired takes a newer wish. An end is never taken back.
func (b *state) setDesired(w Desired) {
	if w.Termination == nil {
		w.Termination = b.desired.Termination
	}
	if b.desired.Pod != nil && w.Pod != nil && !slices.Equal(podspec.Images(b.desired.Pod), podspec.Images(w.Pod)) {
		b.hostStale = true // whether the new images are here is not known
		b.outcomeSeq++     // nor by a look that is under way
	}
	b.desired = w
}

// actionStarted notes that an action is under way.
func (b *state) actionStarted(a plan.Action, now time.Time) {
	if _, twice := b.inProgress[a.Key()]; twice {
		panic("two actions under one key: " + a.Key().String()) // plan.Decide broke its promise
	}
	b.inProgress[a.Key()], b.startedAt[a.Key()] = a, now
}

// actionFinished notes the end of an action, good or bad.
func (b *state) actionFinished(r plan.Outcome) {
	key := r.Action.Key()
	delete(b.inProgress, key)
	delete(b.startedAt, key)
	if r.Err == nil {
		b.noteRemoval(r.Action)
	}
	b.outcomeSeq++
	b.lastChange = r.Ended
	switch {
	case r.Err == nil:
		delete(b.failures, key)
	case plan.KindOf(r.Err) == plan.Canceled: // called off: not a failure
	default:
		before := b.failures[key]
		if !sameTarget(before.Action, r.Action) {
			before.Count = 0
		}
		b.failures[key] = plan.FailureOf(r, before.Count)
	}
	b.observed = b.observed.After(r)
	runtime, host := plan.Doubtful(r)
	b.runtimeStale, b.hostStale = b.runtimeStale || runtime, b.hostStale || host
	b.pruneFailures()
}

// sameTarget reports whether failures of the two actions are failures in a row.
func sameTarget(was, now plan.Action) bool {
	w, ok := was.(plan.PullImage)
	n, ok2 := now.(plan.PullImage)
	return !ok || !ok2 || w.Image == n.Image
}

// pruneFailures drops failures of objects that are no more.
func (b *state) pruneFailures() {
	maps.DeleteFunc(b.failures, func(_ plan.OpKey, f plan.Failure) bool {
		switch a := f.Action.(type) {
		case plan.StopContainer:
			return !b.isLive(a.ID)
		case plan.PostStart:
			return !b.isLive(a.ID)
		case plan.PreStop:
			return !b.isLive(a.ID)
		case plan.RemoveContainer:
			return !b.hasContainer(a.ID)
		case plan.StopSandbox:
			return !b.hasSandbox(a.ID)
		case plan.RemoveSandbox:
			return !b.hasSandbox(a.ID)
		}
		return false
	})
}

func (b *state) isLive(id string) bool {
	return slices.ContainsFunc(b.observed.Containers, func(k plan.Container) bool { return k.ID == id && k.Live() })
}

// anyRunning reports whether anything of the pod runs, as far as was seen.
func (b *state) anyRunning() bool {
	return slices.ContainsFunc(b.observed.Sandboxes, func(s plan.Sandbox) bool { return s.Ready }) ||
		slices.ContainsFunc(b.observed.Containers, func(k plan.Container) bool { return k.State == plan.Running })
}

func (b *state) hasContainer(id string) bool {
	return slices.ContainsFunc(b.observed.Containers, func(k plan.Container) bool { return k.ID == id })
}

func (b *state) hasSandbox(id string) bool {
	return slices.ContainsFunc(b.observed.Sandboxes, func(s plan.Sandbox) bool { return s.ID == id })
}

// observation is the result of one look at the runtime and the host.
type observation struct {
	outcomeSeq uint64    // book.settle when the look began
	eventSeq   uint64    // book.heard when the look began
	started    time.Time // of a look, or of an audit's listing
	sandboxes  []plan.Sandbox
	containers []plan.Container
	volumes    map[string]plan.VolumeSeen
	dirs       bool
	cgroup     bool
	images     plan.ImagesSeen
	runtime    bool // sandboxes and containers were read
	host       bool // volumes, dirs, cgroup and images were read
	err        error
}

// applyObservation takes in a look. One that the end of an action has overtaken counts for
// nothing and is repeated: it may have seen the time before.
func (b *state) applyObservation(s observation) {
	if s.outcomeSeq != b.outcomeSeq {
		if s.runtime {
			b.requestRecheck(nil, b.lastChange)
		}
		return
	}
	if s.runtime {
		if s.eventSeq != b.eventSeq { // a hint came meanwhile, and may be newer than what the look has seen
			s.containers = plan.KeepEnds(b.observed.Containers, s.containers)
			b.requestRecheck(nil, b.lastChange)
		}
		b.observed = b.observed.Looked(s.sandboxes, s.containers)
	}
	if s.host {
		b.observed.Volumes, b.observed.Dirs, b.observed.Cgroup = s.volumes, s.dirs, s.cgroup
		b.applyImages(s.images, s.started)
	}
	b.everObserved = true
	b.runtimeStale, b.hostStale = b.runtimeStale && !s.runtime, b.hostStale && !s.host
	b.pruneFailures()
}

// applyImages takes in which images the node was seen to have at that time.
func (b *state) applyImages(images plan.ImagesSeen, at time.Time) {
	b.observed, b.imagesCheckedAt = b.observed.WithImages(images), at
}

// applyEvent takes in what the runtime told without being asked.
func (b *state) applyEvent(h RuntimeEvent, now time.Time) {
	switch {
	case h.Listed != nil:
		b.requestRecheck(&observation{sandboxes: h.Listed.Sandboxes, containers: h.Listed.Containers}, now)
	case h.Incomplete || h.Sandbox == nil && len(h.Containers) == 0:
		b.requestRecheck(nil, now)
	default:
		b.eventSeq++
		b.lastChange = now
		if h.Sandbox != nil && !b.wasRemoved(h.Sandbox.ID) {
			b.observed = b.observed.WithSandbox(*h.Sandbox)
		}
		for _, k := range h.Containers {
			if !b.wasRemoved(k.ID) && !b.wasRemoved(k.SandboxID) {
				b.observed = b.observed.WithContainer(k)
			}
		}
	}
}

// recheck says that what is known of the runtime may be old. It is looked
// into soon; decisions go on meanwhile, as they would had nobody told.
type recheck struct {
	since  time.Time
	listed *observation // by existence and state; nil: only a look can tell
}

// recheckDelay is how long a suspicion waits for actions under way to explain it:
// most often they are its cause.
const recheckDelay = time.Second

// requestRecheck takes in a suspicion. A newer list of the pod replaces an older one.
func (b *state) requestRecheck(listed *observation, now time.Time) {
	switch {
	case b.recheck == nil:
		b.recheck = &recheck{since: now, listed: listed}
	case listed == nil || b.recheck.listed != nil:
		b.recheck.listed = listed
	}
}

// recheckDue reports whether a suspicion is to be looked into now, or else when;
// zero: there is none. A list that shows what is known by now clears it.
func (b *state) recheckDue(now time.Time) (due bool, later time.Time) {
	s := b.recheck
	switch {
	case s == nil:
	case s.listed != nil && b.observed.Differences(s.listed.sandboxes, s.listed.containers) == "":
		b.recheck = nil
	case !b.changingRuntime() || now.Sub(s.since) >= recheckDelay:
		return true, time.Time{}
	default:
		return false, s.since.Add(recheckDelay)
	}
	return false, time.Time{}
}

// changingRuntime reports whether an action is under way that changes what the runtime
// has of the pod.
func (b *state) changingRuntime() bool {
	for _, a := range b.inProgress {
		switch a.(type) {
		case plan.RunSandbox, plan.StartContainer, plan.StopContainer, plan.RemoveContainer, plan.StopSandbox, plan.RemoveSandbox:
			return true
		}
	}
	return false
}

// noteRemoval remembers what was removed. Hints that are older than that are few and
// soon over, so a short memory will do.
func (b *state) noteRemoval(a plan.Action) {
	const most = 32
	switch a := a.(type) {
	case plan.RemoveContainer:
		b.recentlyRemoved = append(b.recentlyRemoved, a.ID)
	case plan.RemoveSandbox:
		b.recentlyRemoved = append(b.recentlyRemoved, a.ID)
	}
	if n := len(b.recentlyRemoved) - most; n > 0 {
		b.recentlyRemoved = slices.Delete(b.recentlyRemoved, 0, n)
	}
}

// wasRemoved reports whether an object was removed, or is being removed.
func (b *state) wasRemoved(id string) bool {
	_, going := b.inProgress[plan.RemoveContainer{ID: id}.Key()] // a sandbox's removal has the same key
	return going || slices.Contains(b.recentlyRemoved, id)
}

// setRefs takes in the objects that the pod names. What failed for want of
// another content may be tried at once.
func (b *state) setRefs(refs map[plan.Ref]plan.Version) {
	if maps.Equal(refs, b.refs) {
		return
	}
	b.refs = refs
	if b.waitsForLocalImage() {
		b.hostStale = true // it may be here, and a Secret that gives access to it has come
	}
	maps.DeleteFunc(b.failures, func(_ plan.OpKey, f plan.Failure) bool {
		switch f.Action.(type) {
		case plan.StartContainer, plan.MountVolume, plan.ProjectVolume, plan.PullImage:
			return true
		}
		return false
	})
}

// waitsForLocalImage reports whether a container waits for an image that nobody
// pulls.
func (b *state) waitsForLocalImage() bool {
	return slices.ContainsFunc(b.reported, func(t Told) bool { return t.Code == "ErrImageNeverPull" })
}

// clearUnavailable drops what failed only because the runtime was away.
func (b *state) clearUnavailable() {
	maps.DeleteFunc(b.failures, func(_ plan.OpKey, f plan.Failure) bool { return f.Kind == plan.Unavailable })
}

// applyPlan keeps what the plan asks to be kept and returns what is new in it
// for the user.
func (b *state) applyPlan(p plan.Plan, now time.Time) (news []plan.Reason) {
	b.memory = p.Memory
	b.syncs++
	told := make([]Told, 0, len(p.Why))
	if now.After(b.restoredUntil) {
		b.restoredReports = nil
	}
	before := slices.Concat(b.reported, b.restoredReports)
	for _, r := range p.Why {
		t := Told{Reason: r, Since: now}
		same := func(t Told) bool { return t.Code == r.Code && t.On == r.On && t.Detail == r.Detail }
		i := slices.IndexFunc(before, same)
		if i >= 0 {
			t.Since = before[i].Since
		}
		if i < 0 || !before[i].Until.Equal(r.Until) { // the next back-off is told anew
			news = append(news, r)
		}
		told = append(told, t)
		b.restoredReports = slices.DeleteFunc(b.restoredReports, same)
	}
	b.reported = told
	return news
}

// restoreReports takes what the agent's earlier life told last. What is decided again
// within a short while keeps its time; the rest is over.
func (b *state) restoreReports(told []Told, now time.Time) {
	const while = 10 * time.Second
	b.restoredReports, b.restoredUntil = told, now.Add(while)
}

// isStarting reports whether something is being made for the pod, or cleared away of
// what ran before it, as after a boot. A pull or a hook is not: pods that wait for a
// big image or a hook that hangs must not keep others from starting.
func (b *state) isStarting() bool {
	for _, a := range b.inProgress {
		switch a.(type) {
		case plan.PullImage, plan.PostStart:
			continue
		}
		if _, giving := a.(plan.CleanupAction); !giving || !b.finishedOrTerminating() && !b.anyRunning() {
			return true
		}
	}
	return false
}
