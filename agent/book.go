package agent

import (
	"maps"
	"slices"
	"time"

	"berth/agent/plan"
	"berth/podspec"
)

// book is all that a worker knows of its pod: what is wished, what was seen,
// what is under way, what failed. It holds no goroutine, clock or lock, so that
// a model world can drive it and replay exactly.
type book struct {
	wish     Wish
	verdict  plan.Verdict
	queued   bool           // it was let in by an earlier life, and waits for its turn to start
	reserved plan.Resources // what the room holds for the pod; nil: as memory has it
	resize   plan.Resize    // why it does not hold what is wished
	seen     plan.Observed
	refs     map[plan.Ref]plan.Version
	health   map[string]plan.Health
	busy     map[plan.OpKey]plan.Action
	failed   map[plan.OpKey]plan.Failure
	memory   plan.Memory

	looked      bool                     // the pod was looked at since the worker began
	doubt       bool                     // what the runtime has of the pod must be looked at before the next decision
	doubtOfHost bool                     // likewise the host
	suspicion   *suspicion               // something was told that may not be known yet
	heard       uint64                   // hints that were taken in
	removed     []string                 // what was removed lately, newest last: a late hint does not bring it back
	settle      uint64                   // actions that have ended
	changed     time.Time                // when an action last ended or a hint last came
	told        []Told                   // of the last pass: what was told once is not told again
	earlier     []Told                   // told by the agent's earlier life and not yet decided in this one
	forgetting  time.Time                // when that is forgotten
	since       map[plan.OpKey]time.Time // when what is busy began
	passes      int64
	sought      time.Time // when the node was last asked for images that it did not have
}

func newBook() *book {
	return &book{
		busy:   map[plan.OpKey]plan.Action{},
		failed: map[plan.OpKey]plan.Failure{},
		health: map[string]plan.Health{},
		since:  map[plan.OpKey]time.Time{},
	}
}

// mayDecide reports whether what is known is sound enough to decide on.
func (b *book) mayDecide() bool { return b.wish.Pod != nil && b.looked && !b.doubt && !b.doubtOfHost }

// over reports whether the pod is to end or has ended: it needs no room.
func (b *book) over() bool {
	return b.wish.End != nil || b.memory.End != nil || isTerminal(b.memory.Phase)
}

// lasting is the verdict that is kept: who was let in once is never judged again,
// though its turn to start may not have come.
func (b *book) lasting() plan.Verdict {
	if b.queued {
		return plan.Verdict{State: plan.OK}
	}
	return b.verdict
}

// input is the question to plan.Decide.
func (b *book) input(now time.Time, limits plan.Limits) plan.Input {
	return plan.Input{
		Now: now, Pod: b.wish.Pod, Verdict: b.verdict, Reserved: b.reserved, Resize: b.resize, End: b.wish.End, Seen: b.seen,
		Refs: b.refs, Health: b.health, Busy: b.busy, Failed: b.failed, Memory: b.memory, Sought: b.sought, Limits: limits,
	}
}

// wished takes a newer wish. An end is never taken back.
func (b *book) wished(w Wish) {
	if w.End == nil {
		w.End = b.wish.End
	}
	if b.wish.Pod != nil && w.Pod != nil && !slices.Equal(podspec.Images(b.wish.Pod), podspec.Images(w.Pod)) {
		b.doubtOfHost = true // whether the new images are here is not known
		b.settle++           // nor by a look that is under way
	}
	b.wish = w
}

// begun notes that an action is under way.
func (b *book) begun(a plan.Action, now time.Time) {
	if _, twice := b.busy[a.Key()]; twice {
		panic("two actions under one key: " + a.Key().String()) // plan.Decide broke its promise
	}
	b.busy[a.Key()], b.since[a.Key()] = a, now
}

// ended notes the end of an action, good or bad.
func (b *book) ended(r plan.Outcome) {
	key := r.Action.Key()
	delete(b.busy, key)
	delete(b.since, key)
	if r.Err == nil {
		b.bury(r.Action)
	}
	b.settle++
	b.changed = r.Ended
	switch {
	case r.Err == nil:
		delete(b.failed, key)
	case plan.KindOf(r.Err) == plan.Canceled: // called off: not a failure
	default:
		before := b.failed[key]
		if !sameJob(before.Action, r.Action) {
			before.Count = 0
		}
		b.failed[key] = plan.FailureOf(r, before.Count)
	}
	b.seen = b.seen.After(r)
	runtime, host := plan.Doubtful(r)
	b.doubt, b.doubtOfHost = b.doubt || runtime, b.doubtOfHost || host
	b.forgetOldFailures()
}

// sameJob reports whether failures of the two actions are failures in a row.
func sameJob(was, now plan.Action) bool {
	w, ok := was.(plan.PullImage)
	n, ok2 := now.(plan.PullImage)
	return !ok || !ok2 || w.Image == n.Image
}

// forgetOldFailures drops failures of objects that are no more.
func (b *book) forgetOldFailures() {
	maps.DeleteFunc(b.failed, func(_ plan.OpKey, f plan.Failure) bool {
		switch a := f.Action.(type) {
		case plan.StopContainer:
			return !b.lives(a.ID)
		case plan.PostStart:
			return !b.lives(a.ID)
		case plan.PreStop:
			return !b.lives(a.ID)
		case plan.RemoveContainer:
			return !b.exists(a.ID)
		case plan.StopSandbox:
			return !b.hasSandbox(a.ID)
		case plan.RemoveSandbox:
			return !b.hasSandbox(a.ID)
		}
		return false
	})
}

func (b *book) lives(id string) bool {
	return slices.ContainsFunc(b.seen.Containers, func(k plan.Container) bool { return k.ID == id && k.Live() })
}

// runs reports whether anything of the pod runs, as far as was seen.
func (b *book) runs() bool {
	return slices.ContainsFunc(b.seen.Sandboxes, func(s plan.Sandbox) bool { return s.Ready }) ||
		slices.ContainsFunc(b.seen.Containers, func(k plan.Container) bool { return k.State == plan.Running })
}

func (b *book) exists(id string) bool {
	return slices.ContainsFunc(b.seen.Containers, func(k plan.Container) bool { return k.ID == id })
}

func (b *book) hasSandbox(id string) bool {
	return slices.ContainsFunc(b.seen.Sandboxes, func(s plan.Sandbox) bool { return s.ID == id })
}

// sight is the result of one look at the runtime and the host.
type sight struct {
	at         uint64    // book.settle when the look began
	heard      uint64    // book.heard when the look began
	began      time.Time // of a look, or of an audit's listing
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

// saw takes in a look. One that the end of an action has overtaken counts for
// nothing and is repeated: it may have seen the time before.
func (b *book) saw(s sight) {
	if s.at != b.settle {
		if s.runtime {
			b.suspect(nil, b.changed)
		}
		return
	}
	if s.runtime {
		if s.heard != b.heard { // a hint came meanwhile, and may be newer than what the look has seen
			s.containers = plan.KeepEnds(b.seen.Containers, s.containers)
			b.suspect(nil, b.changed)
		}
		b.seen = b.seen.Looked(s.sandboxes, s.containers)
	}
	if s.host {
		b.seen.Volumes, b.seen.Dirs, b.seen.Cgroup = s.volumes, s.dirs, s.cgroup
		b.found(s.images, s.began)
	}
	b.looked = true
	b.doubt, b.doubtOfHost = b.doubt && !s.runtime, b.doubtOfHost && !s.host
	b.forgetOldFailures()
}

// found takes in which images the node was seen to have at that time.
func (b *book) found(images plan.ImagesSeen, at time.Time) {
	b.seen, b.sought = b.seen.WithImages(images), at
}

// noted takes in what the runtime told without being asked.
func (b *book) noted(h Hint, now time.Time) {
	switch {
	case h.Listed != nil:
		b.suspect(&sight{sandboxes: h.Listed.Sandboxes, containers: h.Listed.Containers}, now)
	case h.Bare || h.Sandbox == nil && len(h.Containers) == 0:
		b.suspect(nil, now)
	default:
		b.heard++
		b.changed = now
		if h.Sandbox != nil && !b.buried(h.Sandbox.ID) {
			b.seen = b.seen.WithSandbox(*h.Sandbox)
		}
		for _, k := range h.Containers {
			if !b.buried(k.ID) && !b.buried(k.SandboxID) {
				b.seen = b.seen.WithContainer(k)
			}
		}
	}
}

// suspicion says that what is known of the runtime may be old. It is looked
// into soon; decisions go on meanwhile, as they would had nobody told.
type suspicion struct {
	since  time.Time
	listed *sight // by existence and state; nil: only a look can tell
}

// patience is how long a suspicion waits for actions under way to explain it:
// most often they are its cause.
const patience = time.Second

// suspect takes in a suspicion. A newer list of the pod replaces an older one.
func (b *book) suspect(listed *sight, now time.Time) {
	switch {
	case b.suspicion == nil:
		b.suspicion = &suspicion{since: now, listed: listed}
	case listed == nil || b.suspicion.listed != nil:
		b.suspicion.listed = listed
	}
}

// lookDue reports whether a suspicion is to be looked into now, or else when;
// zero: there is none. A list that shows what is known by now clears it.
func (b *book) lookDue(now time.Time) (due bool, later time.Time) {
	s := b.suspicion
	switch {
	case s == nil:
	case s.listed != nil && b.seen.Differences(s.listed.sandboxes, s.listed.containers) == "":
		b.suspicion = nil
	case !b.touching() || now.Sub(s.since) >= patience:
		return true, time.Time{}
	default:
		return false, s.since.Add(patience)
	}
	return false, time.Time{}
}

// touching reports whether an action is under way that changes what the runtime
// has of the pod.
func (b *book) touching() bool {
	for _, a := range b.busy {
		switch a.(type) {
		case plan.RunSandbox, plan.StartContainer, plan.StopContainer, plan.RemoveContainer, plan.StopSandbox, plan.RemoveSandbox:
			return true
		}
	}
	return false
}

// bury remembers what was removed. Hints that are older than that are few and
// soon over, so a short memory will do.
func (b *book) bury(a plan.Action) {
	const most = 32
	switch a := a.(type) {
	case plan.RemoveContainer:
		b.removed = append(b.removed, a.ID)
	case plan.RemoveSandbox:
		b.removed = append(b.removed, a.ID)
	}
	if n := len(b.removed) - most; n > 0 {
		b.removed = slices.Delete(b.removed, 0, n)
	}
}

// buried reports whether an object was removed, or is being removed.
func (b *book) buried(id string) bool {
	_, going := b.busy[plan.RemoveContainer{ID: id}.Key()] // a sandbox's removal has the same key
	return going || slices.Contains(b.removed, id)
}

// referred takes in the objects that the pod names. What failed for want of
// another content may be tried at once.
func (b *book) referred(refs map[plan.Ref]plan.Version) {
	if maps.Equal(refs, b.refs) {
		return
	}
	b.refs = refs
	if b.wantsPresentImage() {
		b.doubtOfHost = true // it may be here, and a Secret that gives access to it has come
	}
	maps.DeleteFunc(b.failed, func(_ plan.OpKey, f plan.Failure) bool {
		switch f.Action.(type) {
		case plan.StartContainer, plan.MountVolume, plan.ProjectVolume, plan.PullImage:
			return true
		}
		return false
	})
}

// wantsPresentImage reports whether a container waits for an image that nobody
// pulls.
func (b *book) wantsPresentImage() bool {
	return slices.ContainsFunc(b.told, func(t Told) bool { return t.Code == "ErrImageNeverPull" })
}

// recovered drops what failed only because the runtime was away.
func (b *book) recovered() {
	maps.DeleteFunc(b.failed, func(_ plan.OpKey, f plan.Failure) bool { return f.Kind == plan.Unavailable })
}

// decided keeps what the plan asks to be kept and returns what is new in it
// for the user.
func (b *book) decided(p plan.Plan, now time.Time) (news []plan.Reason) {
	b.memory = p.Memory
	b.passes++
	told := make([]Told, 0, len(p.Why))
	if now.After(b.forgetting) {
		b.earlier = nil
	}
	before := slices.Concat(b.told, b.earlier)
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
		b.earlier = slices.DeleteFunc(b.earlier, same)
	}
	b.told = told
	return news
}

// recalled takes what the agent's earlier life told last. What is decided again
// within a short while keeps its time; the rest is over.
func (b *book) recalled(told []Told, now time.Time) {
	const while = 10 * time.Second
	b.earlier, b.forgetting = told, now.Add(while)
}

// building reports whether something is being made for the pod, or cleared away of
// what ran before it, as after a boot. A pull or a hook is not: pods that wait for a
// big image or a hook that hangs must not keep others from starting.
func (b *book) building() bool {
	for _, a := range b.busy {
		switch a.(type) {
		case plan.PullImage, plan.PostStart:
			continue
		}
		if _, giving := a.(plan.CleanupAction); !giving || !b.over() && !b.runs() {
			return true
		}
	}
	return false
}
