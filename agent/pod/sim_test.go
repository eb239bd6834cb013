package pod

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"maps"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"berth/agent/hostfake"
	"berth/agent/plan"
	"berth/podspec"
)

var (
	seeds   = flag.Int("seeds", defaultSeeds, "seeds of the model world to run")
	oneSeed = flag.Int("seed", -1, "run this seed only, and print its transcript")
)

// TestSim drives the worker's state and plan.Decide through a model world with failures,
// races and restarts, and checks every invariant against the actual state of the world.
func TestSim(t *testing.T) {
	t.Parallel()
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // worlds are small and short-lived
	var next atomic.Int64
	to := int64(*seeds)
	if *oneSeed >= 0 {
		next.Store(int64(*oneSeed))
		to = int64(*oneSeed) + 1
	}
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) { // each world belongs to one goroutine
		wg.Go(func() {
			for seed := next.Add(1) - 1; seed < to && !t.Failed(); seed = next.Add(1) - 1 {
				s := newSimulation(uint64(seed))
				s.verbose = *oneSeed >= 0
				s.run()
				if len(s.violations) > 0 {
					t.Errorf(
						"seed %d (go test ./agent/pod -run TestSim -seed %d):\n%s\n%s", seed, seed,
						strings.Join(s.violations, "\n"), s.transcript.String(),
					)
				}
			}
		})
	}
	wg.Wait()
}

// TestSimReplays checks that a seed actual the same transcript twice.
func TestSimReplays(t *testing.T) {
	t.Parallel()
	crashes := 0
	for seed := range uint64(25) {
		a, b := newSimulation(seed), newSimulation(seed)
		a.verbose, b.verbose = true, true
		a.run()
		b.run()
		crashes += a.crashes
		if a.transcript.String() != b.transcript.String() {
			t.Fatalf("seed %d: two different transcripts", seed)
		}
	}
	if crashes == 0 {
		t.Error("no agent was killed between a record and the action that requires it")
	}
}

// TestSimDetectsWrongDecisions checks that the invariants catch wrong plans: a double
// start, an early unmount, a sandbox for a terminated pod, no hooks, no durability.
func TestSimDetectsWrongDecisions(t *testing.T) {
	t.Parallel()
	for name, corrupt := range map[string]func(*simulation, *plan.Plan){
		"I3": func(s *simulation, p *plan.Plan) {
			if p.Memory.Termination != nil && len(s.sandboxes) == 0 {
				p.BuildRun = append(p.BuildRun, plan.RunSandbox{Attempt: 77})
			}
		},
		"I4": func(s *simulation, p *plan.Plan) {
			for _, k := range s.containers {
				a := plan.StartContainer{Name: k.Name, SandboxID: k.SandboxID, Attempt: k.Attempt + 9}
				if k.State == plan.Running && len(s.state.inProgress) == 0 && p.Empty() {
					p.BuildRun = []plan.BuildRunAction{a}
					return
				}
			}
		},
		"I2": func(s *simulation, p *plan.Plan) {
			if len(s.containers) > 0 && s.containers[0].State == plan.Running && p.Empty() &&
				len(s.state.inProgress) == 0 {
				p.Cleanup = append(p.Cleanup, plan.RemoveCgroup{})
			}
		},
		"I5": func(s *simulation, p *plan.Plan) { p.Cleanup, p.Done = nil, false },
		"I9": func(s *simulation, p *plan.Plan) { // no hook actual to run
			s.ignoreDisk = true
			clear(p.Memory.Hooks)
		},
		"A6": func(_ *simulation, p *plan.Plan) { clear(p.Requirements) }, // no action requires a record
		"I10": func(s *simulation, p *plan.Plan) {
			for i, a := range p.Cleanup {
				if hook, ok := a.(plan.PreStop); ok {
					p.Cleanup[i] = plan.StopContainer{ID: hook.ID, Name: hook.Name, Grace: time.Minute}
				}
			}
		},
	} {
		found := false
		for seed := uint64(0); seed < 60 && !found; seed++ {
			s := newSimulation(seed)
			s.corrupt = corrupt
			s.run()
			found = slices.ContainsFunc(s.violations, func(b string) bool { return strings.HasPrefix(b, name) })
		}
		if !found {
			t.Errorf("%s: a wrong decision was not detected", name)
		}
	}
}

// simulation is one run of the model world with one seed.
type simulation struct {
	*world
	state      *state
	refs       map[plan.Ref]plan.Version
	canceled   map[plan.ActionKey]bool
	onDisk     plan.Memory             // memory that survives a crash
	pending    *plan.Memory            // passed to the store, not on disk yet
	waiting    map[plan.ActionKey]bool // actions that wait for pending to be on disk
	crashes    int                     // crashes between a record and the action that requires it
	ignoreDisk bool                    // A6 is not checked
	phase      corev1.PodPhase
	restarts   map[string]int32
	last       plan.Plan
	done       bool
	verbose    bool
	transcript strings.Builder
	corrupt    func(*simulation, *plan.Plan)
	timeChecks int // number of checks of I6
}

func newSimulation(seed uint64) *simulation {
	s := &simulation{world: newWorld(seed), canceled: map[plan.ActionKey]bool{}, restarts: map[string]int32{}}
	s.refs = map[plan.Ref]plan.Version{{Kind: plan.ConfigMap, Name: "cm"}: {Version: "1"}}
	s.restartAgent()
	return s
}

// restartAgent starts a new agent: it actual the record that was on disk, and observes.
func (s *simulation) restartAgent() {
	s.state = newState()
	s.state.memory = s.onDisk
	s.state.setDesired(Desired{Pod: s.pod})
	s.state.verdict = plan.Verdict{State: plan.Admitted}
	s.canceled, s.waiting, s.pending = map[plan.ActionKey]bool{}, map[plan.ActionKey]bool{}, nil
	if s.cgroup { // the first observation sets its limits again
		s.size = plan.ResourcesOf(plan.WithResources(s.state.podWithAllocation(), s.onDisk.Resources.Cgroup))
	}
	s.observe()
}

// observe applies an observation. Images are known by pulling only, so that every start
// waits for a pull.
func (s *simulation) observe() {
	l := s.observation(s.state.outcomeSeq, !s.state.everObserved || s.state.hostStale)
	l.eventSeq = s.state.eventSeq
	if !s.state.everObserved {
		for name, img := range s.images {
			l.images[name] = plan.ImageStatus{Image: img, Present: true}
		}
	}
	s.state.applyObservation(l)
}

func (s *simulation) logf(format string, args ...any) {
	if s.verbose {
		fmt.Fprintf(&s.transcript, "%s  "+format+"\n", append([]any{s.now.Format("15:04:05")}, args...)...)
	}
}

func (s *simulation) run() {
	const faultySteps, maxSettleSteps = 150, 400
	endAt := s.rng.IntN(faultySteps)
	for step := range faultySteps {
		if len(s.violations) > 0 || s.done {
			return
		}
		s.randomEvent(step == endAt && s.oneIn(2))
		s.step()
	}
	s.healthy = true
	s.logf("--- no faults from here ---")
	s.allocatorVerdict(true)
	s.step()
	if !s.settle(maxSettleSteps) {
		return
	}
	s.checkIdle()
	s.logf("--- deleted ---")
	s.state.setDesired(Desired{
		Pod:         s.pod,
		Termination: &plan.Termination{Reason: "Deleted", Grace: 30 * time.Second, RequestedAt: s.now, RemovePod: true},
	})
	s.step()
	if s.settle(maxSettleSteps) && !s.done {
		s.violated("I5 a deleted pod is not done: %+v", s.state.observed)
	}
	if s.done && (len(s.sandboxes)+len(s.containers)+len(s.volumes) > 0 || s.dirs || s.cgroup) {
		s.violated("I5 remaining: %v %v %v dirs=%v cgroup=%v", s.sandboxes, s.containers, s.volumes, s.dirs, s.cgroup)
	}
}

// randomEvent makes one random change, or terminates the pod.
func (s *simulation) randomEvent(terminate bool) {
	s.now = s.now.Add(time.Duration(s.rng.IntN(3000)) * time.Millisecond)
	if terminate {
		e := &plan.Termination{
			Reason: "Evicted", Grace: time.Duration(s.rng.IntN(40)) * time.Second, RequestedAt: s.now,
			RemovePod: s.oneIn(2),
		}
		s.logf("termination requested: %+v", *e)
		s.state.setDesired(Desired{Pod: s.pod, Termination: e})
		return
	}
	switch s.rng.IntN(18) {
	case 0, 1, 2, 3, 4, 5, 6:
		s.finishOne()
	case 7, 8:
		s.injectFault()
		if !s.oneIn(4) { // otherwise the event is lost and the audit must find the change
			s.sendEvent()
		}
	case 9:
		s.sendEvent()
	case 10:
		if !s.last.Wake.IsZero() && s.last.Wake.After(s.now) {
			s.now = s.last.Wake
		}
	case 11:
		s.audit()
	case 12:
		s.refs = map[plan.Ref]plan.Version{{Kind: plan.ConfigMap, Name: "cm"}: {
			Version: fmt.Sprint(s.rng.IntN(4)), Missing: s.oneIn(3),
		}}
	case 13:
		if s.oneIn(3) {
			s.crash()
		}
	case 14:
		switch s.rng.IntN(4) {
		case 0:
			s.editImage()
		case 1:
			s.editSize()
		case 2:
			s.allocatorVerdict(s.oneIn(2))
		}
	case 15:
		s.now = s.now.Add(time.Duration(s.rng.IntN(400)) * time.Second)
	case 16, 17:
		s.writeDisk()
	}
}

// crash kills the agent with SIGKILL and restarts it. Calls in progress may still complete.
func (s *simulation) crash() {
	for _, k := range s.inProgressKeys() {
		if !s.waiting[k] && s.oneIn(2) {
			s.world.finish(s.state.inProgress[k], s.oneIn(2))
		}
	}
	s.logf("agent killed and started")
	clear(s.restarts) // counts that neither the store nor the runtime actual are lost
	termination := s.state.desired.Termination
	s.restartAgent()
	if termination != nil && (s.onDisk.Termination == nil || s.oneIn(2)) {
		s.state.setDesired(Desired{Pod: s.pod, Termination: termination})
	}
}

func (s *simulation) editImage() {
	pod := s.pod.DeepCopy()
	c := &pod.Spec.Containers[s.rng.IntN(len(pod.Spec.Containers))]
	c.Image = fmt.Sprintf("img%d", s.rng.IntN(5))
	s.pod = pod
	s.logf("image of %s is now %s", c.Name, c.Image)
	s.state.setDesired(Desired{Pod: pod})
}

// editSize changes the desired resources, and may add or remove amounts. The allocator decides later.
func (s *simulation) editSize() {
	pod := s.pod.DeepCopy()
	c := &pod.Spec.Containers[s.rng.IntN(len(pod.Spec.Containers))]
	if s.oneIn(3) {
		pod.Spec.Resources = new(s.randomResources())
		s.logf("size of the pod is now %v", *pod.Spec.Resources)
	} else {
		c.Resources = s.randomResources()
		s.logf("size of %s is now %v", c.Name, c.Resources)
	}
	pod.Generation++
	s.pod = pod
	s.state.setDesired(Desired{Pod: pod})
}

// allocatorVerdict applies a verdict of the allocator on the desired resources.
func (s *simulation) allocatorVerdict(fits bool) {
	v := plan.Verdict{State: plan.Wait, Message: "full"}
	if fits {
		v = plan.Verdict{State: plan.Admitted}
	}
	s.logf("allocator verdict: %v", v)
	s.state.applyVerdict(admissionResult{pod: s.pod, Verdict: v, resize: true})
}

func (s *simulation) sendEvent() {
	h := RuntimeEvent{Containers: slices.Clone(s.containers)}
	if len(s.sandboxes) > 0 {
		sb := s.sandboxes[0]
		h.Sandbox = &sb
	}
	s.state.applyEvent(h, s.now)
}

// audit compares the states like the worker, which does so only if no action is in progress.
func (s *simulation) audit() {
	if len(s.state.inProgress) == 0 && s.state.canDecide() && s.differs() {
		s.state.runtimeStale = true
	}
}

func (s *simulation) inProgressKeys() []plan.ActionKey {
	return slices.SortedFunc(
		maps.Keys(s.state.inProgress),
		func(a, b plan.ActionKey) int { return strings.Compare(a.String(), b.String()) },
	)
}

// finishOne finishes one action in progress.
func (s *simulation) finishOne() {
	keys := s.inProgressKeys()
	if len(keys) == 0 {
		return
	}
	key := keys[s.rng.IntN(len(keys))]
	if s.waiting[key] && !s.canceled[key] {
		return
	}
	if s.waiting[key] { // canceled before it started
		delete(s.waiting, key)
		delete(s.canceled, key)
		err := &plan.Error{Kind: plan.Canceled, Err: errors.New("canceled")}
		s.state.actionFinished(plan.Outcome{Action: s.state.inProgress[key], StartedAt: s.now, FinishedAt: s.now,
			Err: err})
		return
	}
	if !s.canceled[key] && s.hangs(s.state.inProgress[key]) {
		s.logf("%s hangs", key)
		return
	}
	out := s.world.finish(s.state.inProgress[key], s.canceled[key])
	delete(s.canceled, key)
	s.logf("%s ended: %v", key, out.Err)
	s.state.actionFinished(out)
}

// step is a sync pass of the worker without its goroutines.
func (s *simulation) step() {
	if !s.state.canDecide() {
		s.observe()
	}
	s.state.setRefs(s.refs)
	s.state.observed.Network = plan.NetworkStatus{Ready: true}
	in := s.state.planInput(s.now, hostfake.Limits)
	sample := s.oneIn(10)
	var before []byte
	if sample {
		before = hashOf(in)
	}
	p := plan.Decide(in)
	if sample {
		if string(hashOf(in)) != string(before) {
			s.violated("I1 the input was modified")
		}
		if !reflect.DeepEqual(p, plan.Decide(in)) {
			s.violated("I1 two results for one input")
		}
	}
	s.checkTime(in, p)
	if s.corrupt != nil {
		s.corrupt(s, &p)
	}
	s.check(p)
	s.state.applyPlan(p, s.now)
	s.last, s.done = p, p.Done
	s.pending = &p.Memory
	for _, k := range p.Cancel {
		s.canceled[k] = true
	}
	as := p.Actions()
	s.rng.Shuffle(len(as), func(i, j int) { as[i], as[j] = as[j], as[i] })
	for _, a := range as {
		if _, twice := s.state.inProgress[a.Key()]; twice {
			s.violated("I2 two actions under one key %s", a.Key())
			return
		}
		s.logf("begin %s %+v", a.Key(), a)
		s.state.actionStarted(a, s.now)
		if p.Requires(a) == plan.Nothing || p.Requires(a) == plan.TerminationOnDisk && s.onDisk.Termination != nil &&
			*s.onDisk.Termination == *p.Memory.Termination {
			s.begin(a)
		} else {
			s.waiting[a.Key()] = true
		}
	}
	if s.oneIn(3) {
		s.writeDisk()
	}
}

// begin starts an action once the durability contract permits it.
func (s *simulation) begin(a plan.Action) {
	s.checkOnDisk(a)
	s.recordHookStart(a)
	s.startedWith[a.Key()] = s.state.podWithAllocation()
}

// writeDisk completes a disk write and starts the actions that wait for it. Sometimes the agent is
// killed in between.
func (s *simulation) writeDisk() {
	if s.pending == nil {
		return
	}
	s.onDisk, s.pending = *s.pending, nil
	if len(s.waiting) > 0 && !s.healthy && s.oneIn(8) {
		s.crashes++
		s.crash()
		return
	}
	for _, key := range s.inProgressKeys() {
		if s.waiting[key] && !s.canceled[key] {
			delete(s.waiting, key)
			s.begin(s.state.inProgress[key])
		}
	}
}

// checkOnDisk checks A6: when an action starts, an agent that is killed must be able to continue from
// the record on disk. It does not depend on the plan's requirements.
func (s *simulation) checkOnDisk(a plan.Action) {
	if s.ignoreDisk {
		return
	}
	m := s.onDisk
	if _, cleanup := a.(plan.CleanupAction); cleanup && s.state.memory.Termination != nil && m.Termination == nil {
		s.violated("A6 %s starts before the termination is on disk", a.Key())
	}
	switch a := a.(type) {
	case plan.PreStop:
		if m.Hooks[a.Name].PreStop == plan.HookNone {
			s.violated("A6 the preStop hook of %s starts before that is on disk", a.Name)
		}
	case plan.StartContainer:
		c := podspec.FindContainer(s.pod, a.Name)
		h := m.Hooks[a.Name]
		if c.Lifecycle != nil && c.Lifecycle.PostStart != nil &&
			(h.Attempt != a.Attempt || h.PostStart != plan.HookPending) {
			s.violated("A6 %s starts before its postStart hook is on disk", a.Name)
		}
	case plan.StopContainer:
		if a.Reason != plan.StopReasonRestartAll && a.IsReplacement() && m.Restarts[a.Name].Replacing != a.ID {
			s.violated("A6 %s stops for a replacement before that is on disk", a.Name)
		}
		if a.Reason == plan.StopReasonRestartAll && len(m.RestartAll.FirstAttempts) == 0 {
			s.violated("A6 %s stops for a new round before that is on disk", a.Name)
		}
	case plan.ResizeContainer:
		if want := s.state.memory.Resources; !reflect.DeepEqual(m.Resources.Containers[a.Name],
			want.Containers[a.Name]) {
			s.violated("A6 %s is resized before that is on disk", a.Name)
		}
	}
}

// settle finishes actions until the pod is idle. It returns false if that is not the case after
// maxSteps.
func (s *simulation) settle(maxSteps int) bool {
	for range maxSteps {
		if len(s.violations) > 0 {
			return false
		}
		s.writeDisk()
		switch {
		case s.done:
			return true
		case len(s.state.inProgress) > 0:
			s.finishOne()
		case !s.last.Wake.IsZero():
			s.now = maxTime(s.now, s.last.Wake)
		case s.finishInitContainer():
			s.sendEvent()
		default:
			s.audit()
			if !s.state.runtimeStale {
				return true
			}
		}
		s.step()
	}
	s.violated(
		"I5 not idle after %d steps: in progress %v, wake %v, reasons %v", maxSteps, s.inProgressKeys(), s.last.Wake,
		s.last.Reasons,
	)
	return false
}

// finishInitContainer lets a running init container succeed, if there is one.
func (s *simulation) finishInitContainer() bool {
	for i := range s.containers {
		k := &s.containers[i]
		c := podspec.FindContainer(s.pod, k.Name)
		if k.State == plan.Running && containerKind(s.pod, k.Name) == plan.Init && c.RestartPolicy == nil {
			k.State, k.FinishedAt, k.ExitCode = plan.Exited, s.now, 0
			return true
		}
	}
	return false
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// hashOf returns a hash of the input, which Decide must not modify.
func hashOf(in plan.Input) []byte {
	h := fnv.New64a()
	enc := json.NewEncoder(h)
	_, _ = h.Write(encoded(in.Pod)) // a hash never fails
	observed := struct {
		plan.Observed
		Hooks any // shadows the map, whose keys are not valid in JSON
	}{Observed: in.Observed}
	if err := enc.Encode(observed); err != nil {
		panic(err)
	}
	_ = enc.Encode(in.Memory)
	_ = enc.Encode(in.Health)
	fmt.Fprint(h, in.Observed.Hooks, in.Refs, in.InProgress, in.Failures, in.Termination, in.Verdict)
	return h.Sum(nil)
}

// check checks the invariants of one plan.
func (s *simulation) check(p plan.Plan) {
	terminated := p.Memory.Termination != nil || IsTerminal(s.phase)
	if terminated && len(p.BuildRun)+len(p.Configure) > 0 {
		s.violated("I3 a terminated pod gets %v %v", p.BuildRun, p.Configure)
	}
	starts := 0
	for _, a := range p.BuildRun {
		if _, ok := a.(plan.StartContainer); ok {
			starts++
		}
	}
	for _, a := range p.Cleanup {
		if stop, ok := a.(plan.StopContainer); ok {
			s.checkStop(stop)
		}
	}
	if starts > 1 {
		s.violated("I2 %d starts in one plan", starts)
	}
	now := p.Status.Phase
	if IsTerminal(s.phase) && now != s.phase {
		s.violated("I8 phase changed from %s to %s", s.phase, now)
	}
	if IsTerminal(now) && slices.ContainsFunc(s.state.observed.Containers, plan.Container.Live) {
		s.violated("I8 phase %s with running containers", now)
	}
	s.phase = now
	for _, cs := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if cs.RestartCount < s.restarts[cs.Name] {
			s.violated("I4 restart count of %s decreased from %d to %d", cs.Name, s.restarts[cs.Name], cs.RestartCount)
		}
		s.restarts[cs.Name] = cs.RestartCount
		states := 0
		for _, set := range []bool{cs.State.Waiting != nil, cs.State.Running != nil, cs.State.Terminated != nil} {
			if set {
				states++
			}
		}
		if states != 1 {
			s.violated("status of %s actual %d states", cs.Name, states)
		}
	}
}

// checkStop checks I10: the preStop hook of a container actual started before the container is stopped
// with a grace period.
func (s *simulation) checkStop(a plan.StopContainer) {
	c := podspec.FindContainer(s.pod, a.Name)
	if c == nil || c.Lifecycle == nil || c.Lifecycle.PreStop == nil || a.Grace <= hostfake.Limits.MinStopGrace {
		return
	}
	for _, k := range s.state.observed.Containers {
		if k.Name != a.Name {
			continue
		}
		if k.ID == a.ID && k.State == plan.Running && s.hookRuns[plan.PreStop{ID: a.ID}.Key()].started == 0 {
			s.violated("I10 %s is stopped with grace period %s without its preStop hook", a.Name, a.Grace)
		}
		return // no hook runs in an older instance
	}
}

// checkTime checks I6: before Wake, time alone changes nothing.
func (s *simulation) checkTime(in plan.Input, p plan.Plan) {
	if !p.Empty() {
		return
	}
	in.Memory = p.Memory
	in.Now = in.Now.Add(1000 * time.Hour)
	if !p.Wake.IsZero() {
		in.Now = p.Wake.Add(-time.Nanosecond)
		if !in.Now.After(s.now) {
			return
		}
	}
	later := plan.Decide(in)
	if s.timeChecks++; !later.Empty() || !sameStatus(&later.Status, &p.Status, s.timeChecks%8 == 0) {
		s.violated(
			"I6 before %v time alone changes something: %v\n%s", p.Wake, later.Actions(),
			cmp.Diff(p.Status, later.Status),
		)
	}
}

// sameStatus compares statuses in their encoded form, with a resolution of one second, or exactly,
// which takes ten times as long with the race detector.
func sameStatus(a, b *corev1.PodStatus, exact bool) bool {
	if exact {
		return reflect.DeepEqual(a, b)
	}
	return string(encoded(a)) == string(encoded(b))
}

func encoded(m interface{ Marshal() ([]byte, error) }) []byte {
	text, err := m.Marshal()
	if err != nil {
		panic(err)
	}
	return text
}

// checkRestartAll checks I11: no container of an earlier round runs after an exit that triggered a
// new round.
func (s *simulation) checkRestartAll() {
	if s.restartAllBy == "" {
		return
	}
	for _, k := range s.containers {
		if k.State == plan.Running && k.StartedAt.Before(s.restartAllAt) {
			s.violated("I11 idle, but %s of an earlier round is running", k.Name)
		}
	}
}

// checkReplaced checks that every container that was stopped for a replacement was replaced.
func (s *simulation) checkReplaced() {
	for name, id := range s.replaced {
		newest := s.state.memory.Exits[name]
		for _, k := range s.containers {
			if k.Name == name {
				newest = k
				break
			}
		}
		if newest.ID == id {
			s.violated("I5 idle, but %s was stopped for a replacement and not replaced", name)
		}
	}
}

// checkSizes checks that resizes have completed.
func (s *simulation) checkSizes() {
	want := plan.ResourcesOf(s.pod)
	if !s.size.Equal(want) {
		s.violated("I5 idle, but the pod's cgroup has %v, want %v", s.size, want)
	}
	for _, k := range s.containers {
		actual, resizable := s.sizes[k.ID]
		if expected := want.ForContainer(k.Name); resizable && k.State == plan.Running && !actual.Equal(expected) {
			s.violated("I5 idle, but %s has %v, want %v", k.Name, actual, expected)
		}
	}
}

// checkIdle checks the state of an idle pod in a world without faults.
func (s *simulation) checkIdle() {
	if s.done {
		return
	}
	if s.state.memory.Termination == nil && s.phase != corev1.PodFailed {
		s.checkReplaced()
	}
	if IsTerminal(s.phase) || s.state.memory.Termination != nil {
		if len(s.volumes) > 0 || s.cgroup {
			s.violated("I8 a pod in phase %s has volumes %v, cgroup=%v", s.phase, s.volumes, s.cgroup)
		}
		for _, sb := range s.sandboxes {
			if sb.Ready {
				s.violated("I8 a pod that is %s actual a running sandbox", s.phase)
			}
		}
		return
	}
	missing := s.refs[plan.Ref{Kind: plan.ConfigMap, Name: "cm"}].Missing
	if missing {
		return // the pod waits for the ConfigMap
	}
	for _, k := range s.containers {
		c := podspec.FindContainer(s.pod, k.Name)
		if k.State != plan.Running || c.Lifecycle == nil {
			continue
		}
		if c.Lifecycle.PostStart != nil && s.hookRuns[plan.PostStart{ID: k.ID}.Key()].succeeded == 0 {
			s.violated("I9 idle, but the postStart hook of running container %s has not succeeded", k.Name)
		}
		if s.hookRuns[plan.PreStop{ID: k.ID}.Key()].started > 0 {
			s.violated("I10 idle, but %s is running after its preStop hook", k.Name)
		}
	}
	s.checkRestartAll()
	s.checkSizes()
	for i := range s.pod.Spec.Containers {
		c := &s.pod.Spec.Containers[i]
		running := slices.ContainsFunc(
			s.containers, func(k plan.Container) bool { return k.Name == c.Name && k.State == plan.Running },
		)
		exited := slices.ContainsFunc(
			s.containers, func(k plan.Container) bool { return k.Name == c.Name && k.State == plan.Exited },
		) ||
			s.state.memory.Exits[c.Name].ID != ""
		always := s.pod.Spec.RestartPolicy == corev1.RestartPolicyAlways && c.RestartPolicy == nil
		if !running && (always || !exited) {
			s.violated("I5 idle, but %s is not running: %+v", c.Name, s.last.Reasons)
		}
	}
}

// differs reports whether the world differs from the observed state.
func (s *simulation) differs() bool {
	now := s.observation(0, false)
	return s.state.observed.Diff(now.sandboxes, now.containers) != ""
}
