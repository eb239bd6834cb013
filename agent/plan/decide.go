package plan

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// Decide returns the next plan for the pod. It is the complete policy of the agent for one pod.
func Decide(in Input) Plan {
	d := newDecider(in)
	d.updateMemory()
	d.recordHookResults()
	switch {
	case d.mem.Termination != nil:
		if live := d.terminate(d.mem.Termination.RequestedAt.Add(d.mem.Termination.Grace), d.mem.Termination.Grace,
			d.mem.Termination.Reason); !live {
			d.recreate()
		}
	case d.terminal(): // completed, rejected or evicted while the pod is still desired
		d.terminate(in.Now.Add(d.grace()), d.grace(), string(d.mem.Phase))
	case d.finished(): // a completed pod needs no admission
		d.finish()
	case in.Verdict.State == Rejected:
		d.reject()
	case in.Verdict.State != Admitted: // not admitted yet: nothing starts and nothing stops
		d.report(Reason{Code: firstNonEmpty(in.Verdict.Reason, "NotAdmitted"), Message: in.Verdict.Message})
		if in.Verdict.Preempts != "" {
			d.report(Reason{Code: "Preempting", Message: "Preempts " + in.Verdict.Preempts + " in order to be admitted",
				EventType: corev1.EventTypeNormal})
		}
	default:
		d.start()
	}
	d.status()
	d.out.setDurability(in.Memory)
	return d.out
}

// decider is the state of one call of Decide.
type decider struct {
	Input                                 // Pod has the allocated resources
	desired        *corev1.Pod            // the desired pod, with the resources of the spec
	allocated      Resources              // allocated resources
	previous       Resources              // allocated resources when the call began
	specs          []spec                 // all containers, init containers first, in spec order
	byName         map[string][]Container // instances, newest first, including the last recorded exit
	images         map[string]imageState  // by container name, resolved once per call
	missingVolumes []string               // not mounted, used by ephemeral containers only
	mem            *Memory
	out            Plan
}

// spec is one container of the pod.
type spec struct {
	*corev1.Container
	kind ContainerKind
}

// resizable reports whether the CPU and memory of the container can change in place.
func (c spec) resizable() bool { return c.kind == Main || c.kind == Sidecar }

func newDecider(in Input) *decider {
	d := &decider{Input: in, desired: in.Pod, out: Plan{Memory: in.Memory.clone()}}
	d.mem = &d.out.Memory
	d.applyAllocation()
	ps := &d.Pod.Spec
	d.specs = make([]spec, 0, len(ps.InitContainers)+len(ps.Containers)+len(ps.EphemeralContainers))
	for i := range ps.InitContainers {
		c := &ps.InitContainers[i]
		kind := Init
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			kind = Sidecar
		}
		d.specs = append(d.specs, spec{c, kind})
	}
	for i := range ps.Containers {
		d.specs = append(d.specs, spec{&ps.Containers[i], Main})
	}
	for i := range ps.EphemeralContainers {
		// The API guarantees that both types have the same fields.
		c := corev1.Container(ps.EphemeralContainers[i].EphemeralContainerCommon)
		d.specs = append(d.specs, spec{&c, Ephemeral})
	}
	d.images = make(map[string]imageState, len(d.specs))
	d.byName = make(map[string][]Container, len(d.specs))
	d.groupContainers()
	return d
}

// groupContainers groups the observed instances by container name. All groups share one array.
func (d *decider) groupContainers() {
	all := make([]Container, 0, len(d.Observed.Containers))
	for _, c := range d.specs {
		from := len(all)
		for i := range d.Observed.Containers {
			if k := &d.Observed.Containers[i]; k.Name == c.Name {
				all = append(all, *k)
			}
		}
		if _, twice := d.byName[c.Name]; !twice && len(all) > from {
			d.byName[c.Name] = all[from:len(all):len(all)]
		}
	}
}

// updateMemory records what the observation adds to Memory: the termination, exits that the runtime
// may lose, the pod IPs and the start time.
func (d *decider) updateMemory() {
	m := d.mem
	d.recallStatus()
	d.recordHealth()
	d.recordTermination()
	d.checkActiveDeadline()
	if sb, ok := d.currentSandbox(); ok && len(sb.IPs) > 0 {
		m.IPs = sb.IPs
	}
	for name, ks := range d.byName {
		k := ks[0]
		next := k.Attempt + 1
		if d.neverStarted(k) { // the same attempt is repeated
			next = k.Attempt
		} else if was, known := m.Exits[name]; k.State == Exited && (!known || was.Attempt <= k.Attempt) {
			m.Exits[name] = k
		}
		if r := m.Restarts[name]; r.NextAttempt < next {
			r.NextAttempt = next
			m.Restarts[name] = r
		}
	}
	for name, k := range m.Exits {
		if k.Interrupted { // recorded by an earlier release
			delete(m.Exits, name)
			continue
		}
		ks := d.byName[name]
		missing := !slices.ContainsFunc(ks, func(x Container) bool { return x.ID == k.ID })
		if missing && (len(ks) == 0 || ks[0].Attempt < k.Attempt) {
			d.byName[name] = append([]Container{k}, ks...)
		} else if missing {
			d.byName[name] = append(slices.Clip(ks), k)
		}
	}
}

// recallStatus fills gaps in Memory from the status on the control server, for example after the
// local store was lost. A pod that is terminal there never runs again.
func (d *decider) recallStatus() {
	m, was := d.mem, &d.Pod.Status
	if m.StartTime.IsZero() {
		m.StartTime = d.oldestCreation()
		if was.StartTime != nil {
			m.StartTime = was.StartTime.Time
		}
	}
	if !d.terminal() && (was.Phase == corev1.PodSucceeded || was.Phase == corev1.PodFailed) {
		m.Phase, m.Reason, m.Message = was.Phase, was.Reason, was.Message
	}
	for _, list := range [...][]corev1.ContainerStatus{was.InitContainerStatuses, was.ContainerStatuses,
		was.EphemeralContainerStatuses} {
		for i := range list {
			c := &list[i]
			hasRun := c.State.Running != nil || c.State.Terminated != nil || c.LastTerminationState.Terminated != nil
			if c.RestartCount == 0 && (c.ContainerID == "" || !hasRun) {
				continue
			}
			if r := m.Restarts[c.Name]; int64(r.NextAttempt) <= int64(c.RestartCount) {
				r.NextAttempt = uint32(c.RestartCount) + 1
				m.Restarts[c.Name] = r
			}
		}
	}
	if m.Conditions == nil {
		m.Conditions = slices.Clone(was.Conditions)
	}
}

// recordTermination keeps the first reason and the earliest deadline of all termination requests.
func (d *decider) recordTermination() {
	if d.Termination == nil {
		return
	}
	requested := *d.Termination
	if requested.RequestedAt.IsZero() {
		requested.RequestedAt = d.Now
		if d.mem.Termination != nil {
			requested.RequestedAt = d.mem.Termination.RequestedAt
		}
	}
	if d.mem.Termination == nil {
		d.mem.Termination = &requested
		if (requested.Reason == "Evicted" || requested.Reason == "Preempting") && !d.terminal() {
			d.report(Reason{Code: requested.Reason, Message: requested.Message + requested.EventDetail,
				EventType: corev1.EventTypeWarning})
		}
		return
	}
	previous := *d.mem.Termination
	previous.Grace = max(0, min(previous.Grace, requested.RequestedAt.Add(requested.Grace).Sub(previous.RequestedAt)))
	previous.RemovePod = previous.RemovePod || requested.RemovePod
	d.mem.Termination = &previous
}

// checkActiveDeadline terminates a pod that has exceeded activeDeadlineSeconds.
func (d *decider) checkActiveDeadline() {
	s := d.Pod.Spec.ActiveDeadlineSeconds
	if s == nil || d.mem.Termination != nil || d.terminal() || !d.mem.FinishedAt.IsZero() ||
		d.Verdict.State == Rejected {
		return
	}
	at := d.mem.StartTime.Add(seconds(*s))
	if d.Now.Before(at) {
		d.wakeAt(at)
		return
	}
	d.mem.Termination = &Termination{
		Reason: "DeadlineExceeded", Message: "Pod was active on the node longer than the specified deadline",
		Grace: d.grace(), RequestedAt: d.Now,
	}
	d.report(Reason{Code: "DeadlineExceeded", Message: d.mem.Termination.Message, EventType: corev1.EventTypeNormal})
}

// reject fails a pod that was rejected, after stopping its containers.
func (d *decider) reject() {
	d.mem.Reason, d.mem.Message = d.Verdict.Reason, "Pod was rejected: "+d.Verdict.Message
	d.report(Reason{Code: d.Verdict.Reason, Message: d.Verdict.Message, EventType: corev1.EventTypeWarning})
	if !d.terminate(d.Now.Add(d.grace()), d.grace(), d.Verdict.Reason) {
		d.mem.Phase = corev1.PodFailed
	}
}

// start prepares the host, sandbox and images in parallel, then starts the containers.
func (d *decider) start() {
	d.recordCgroup()
	ready := d.configureHost()
	d.prePull()
	d.removeDeadContainers()
	sb, ok := d.sandbox()
	if !ok || d.restartAll() || !ready {
		return
	}
	d.resize()
	d.syncContainers(sb)
}

// currentSandbox returns the newest sandbox if it is ready.
func (d *decider) currentSandbox() (Sandbox, bool) {
	if len(d.Observed.Sandboxes) > 0 && d.Observed.Sandboxes[0].Ready {
		return d.Observed.Sandboxes[0], true
	}
	return Sandbox{}, false
}

// sandbox returns the ready sandbox. Without one, it removes the old sandboxes and then plans a new
// one.
func (d *decider) sandbox() (Sandbox, bool) {
	sb, ok := d.currentSandbox()
	// Without a ready sandbox all containers are stopped, even if their sandbox is not listed.
	empty := ok || !d.stopContainers(d.Now.Add(d.grace()), d.grace(), "SandboxChanged")
	for i, s := range d.Observed.Sandboxes {
		if ok && i == 0 {
			continue
		}
		empty = d.removeOldSandbox(s, ok) && empty
	}
	if ok {
		return sb, d.hasAddress(sb)
	}
	if len(d.Observed.Sandboxes) > 0 {
		d.report(Reason{Code: "SandboxChanged", Message: "Pod sandbox changed, it will be killed and re-created.",
			EventType: corev1.EventTypeNormal})
	}
	switch {
	case !empty || !d.Observed.HasDirs || !d.Observed.HasCgroup:
		return sb, false
	case !d.Observed.Network.Ready && !d.Pod.Spec.HostNetwork:
		d.report(Reason{Code: "NetworkNotReady", Message: "network is not ready: " + d.Observed.Network.Message,
			EventType: corev1.EventTypeWarning})
		return sb, false
	}
	next := uint32(0)
	for _, s := range d.Observed.Sandboxes {
		next = max(next, s.Attempt+1)
	}
	d.addBuildRun(RunSandbox{Attempt: next})
	return sb, false
}

// hasAddress reports whether the sandbox has its pod IP. An event can report a new sandbox before
// RunPodSandbox has returned. Containers must not start then because their environment and hosts
// file need the IP.
func (d *decider) hasAddress(sb Sandbox) bool {
	if d.Pod.Spec.HostNetwork || len(sb.IPs) > 0 {
		return true
	}
	_, making := d.InProgress[RunSandbox{}.Key()]
	return !making
}

// removeOldSandbox stops and removes a sandbox other than the current one and reports whether it is
// stopped and has no live containers. Its network is released before a new sandbox is created, so
// that replaced sandboxes do not exhaust the pod CIDR.
func (d *decider) removeOldSandbox(s Sandbox, current bool) (empty bool) {
	empty = true
	hasContainers := false
	for _, k := range d.Observed.Containers {
		if k.SandboxID != s.ID {
			continue
		}
		hasContainers = true
		if k.Live() {
			empty = false
			if current { // otherwise stopContainers stops all of them in order
				d.stop(k, "SandboxChanged", d.Now.Add(d.grace()), d.grace())
			}
		}
	}
	switch {
	case !empty:
	case !s.Stopped:
		empty = false
		d.addCleanup(StopSandbox{s.ID})
	case !hasContainers:
		d.addCleanup(RemoveSandbox{s.ID, true})
	}
	return empty
}

// grace is the default termination grace period of the pod.
func (d *decider) grace() time.Duration { return podspec.GracePeriod(d.Pod) }

// seconds converts n to a duration and saturates at the longest possible one.
func seconds(n int64) time.Duration {
	return time.Duration(min(n, math.MaxInt64/int64(time.Second))) * time.Second
}

func (d *decider) terminal() bool {
	return d.mem.Phase == corev1.PodSucceeded || d.mem.Phase == corev1.PodFailed
}

// addConfigure, addCleanup and addBuildRun plan an action unless it is in progress, already planned
// or backing off.

func (d *decider) addConfigure(a ConfigureAction) {
	if d.available(a) {
		d.out.Configure = append(d.out.Configure, a)
	}
}

func (d *decider) addCleanup(a CleanupAction) {
	if d.available(a) {
		d.out.Cleanup = append(d.out.Cleanup, a)
	}
}

func (d *decider) addBuildRun(a BuildRunAction) {
	if d.available(a) {
		d.out.BuildRun = append(d.out.BuildRun, a)
	}
}

func (d *decider) available(a Action) bool {
	key := a.Key()
	if old, busy := d.InProgress[key]; busy {
		s, ok := a.(StopContainer)
		t, ok2 := old.(StopContainer)
		// the stop is repeated with the new deadline once it has returned
		if ok && ok2 && s.Deadline.Before(t.Deadline) {
			d.out.Cancel = append(d.out.Cancel, key)
		}
		return false
	}
	if d.planned(key) {
		return false
	}
	f, failed := d.Failures[key]
	if !failed {
		return true
	}
	if until := f.At.Add(d.Limits.retryDelay(f)); d.Now.Before(until) {
		d.report(Reason{Code: firstNonEmpty(f.Reason, "Failed"), Target: key.String(), Message: f.Message,
			Until: until})
		d.wakeAt(until)
		return false
	}
	return true
}

// planned reports whether the plan already contains the action.
func (d *decider) planned(key ActionKey) bool {
	for _, a := range d.out.Configure {
		if a.Key() == key {
			return true
		}
	}
	for _, a := range d.out.Cleanup {
		if a.Key() == key {
			return true
		}
	}
	for _, a := range d.out.BuildRun {
		if a.Key() == key {
			return true
		}
	}
	return false
}

// retryDelay returns how long a failed action is delayed.
func (l Limits) retryDelay(f Failure) time.Duration {
	switch f.Kind {
	case Canceled:
		return 0
	case Unavailable: // nothing was done, and the runtime may return at any time
		return l.RetryBase
	default:
		return backoffDelay(l.RetryBase, f.Count-1, l.RetryMax)
	}
}

// backoffDelay returns base × 2^n, at most limit.
func backoffDelay(base time.Duration, n int, limit time.Duration) time.Duration {
	return min(base<<min(max(n, 0), 20), limit)
}

// cancel cancels the actions in progress for which unwanted returns true.
func (d *decider) cancel(unwanted func(Action) bool) {
	for key, a := range d.InProgress {
		if unwanted(a) {
			d.out.Cancel = append(d.out.Cancel, key)
		}
	}
	slices.SortFunc(d.out.Cancel, func(a, b ActionKey) int { return strings.Compare(a.String(), b.String()) })
	d.out.Cancel = slices.Compact(d.out.Cancel)
}

func (d *decider) report(r Reason) { d.out.Reasons = append(d.out.Reasons, r) }

func (d *decider) wakeAt(t time.Time) {
	if d.out.Wake.IsZero() || t.Before(d.out.Wake) {
		d.out.Wake = t
	}
}

// clone copies everything that Decide may modify.
func (m Memory) clone() Memory {
	m.Restarts = maps.Clone(m.Restarts)
	if m.Restarts == nil {
		m.Restarts = map[string]RestartState{}
	}
	m.Hooks = maps.Clone(m.Hooks)
	if m.Hooks == nil {
		m.Hooks = map[string]HookStatus{}
	}
	m.RestartAll = m.RestartAll.clone()
	m.Resources = m.Resources.clone()
	m.Exits = maps.Clone(m.Exits)
	if m.Exits == nil {
		m.Exits = map[string]Container{}
	}
	return m
}

func firstNonEmpty(s, other string) string {
	if s != "" {
		return s
	}
	return other
}

// fullName returns the pod name in the format used in events.
func (d *decider) fullName() string {
	return fmt.Sprintf("%s_%s(%s)", d.Pod.Name, d.Pod.Namespace, d.Pod.UID)
}
