package plan

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/podspec"
)

// status writes the pod status. It runs after all decisions.
func (d *decider) status() {
	st := &d.out.Status
	st.ObservedGeneration = d.observedGeneration()
	st.QOSClass = podspec.QOSClass(d.Pod)
	st.StartTime = &metav1.Time{Time: d.mem.StartTime}
	if r := d.Pod.Spec.Resources; r != nil && d.Verdict.State == Admitted {
		st.Resources, st.AllocatedResources = d.actualPodLevel(r), r.Requests
	}
	d.addresses(st)
	d.phase(st)
	ps := &d.Pod.Spec
	specs := d.specs
	if d.Verdict.State == Rejected && len(d.byName) == 0 {
		specs = nil // only the rejection matters, no container ever existed
	} else { // remains nil without containers
		st.InitContainerStatuses = slices.Grow(st.InitContainerStatuses, len(ps.InitContainers))
		st.ContainerStatuses = slices.Grow(st.ContainerStatuses, len(ps.Containers))
	}
	for _, c := range specs {
		cs := d.containerStatus(c)
		switch c.kind {
		case Init, Sidecar:
			st.InitContainerStatuses = append(st.InitContainerStatuses, cs)
		case Ephemeral:
			st.EphemeralContainerStatuses = append(st.EphemeralContainerStatuses, cs)
		default:
			st.ContainerStatuses = append(st.ContainerStatuses, cs)
		}
	}
	d.conditions(st)
}

func (d *decider) addresses(st *corev1.PodStatus) {
	for i, ip := range d.Limits.HostIPs {
		if i == 0 {
			st.HostIP = ip
		}
		st.HostIPs = append(st.HostIPs, corev1.HostIP{IP: ip})
	}
	ips := d.mem.IPs
	if d.Pod.Spec.HostNetwork {
		ips = nil
		if len(d.Observed.Sandboxes) > 0 {
			ips = d.Limits.HostIPs
		}
	}
	for i, ip := range ips {
		if i == 0 {
			st.PodIP = ip
		}
		st.PodIPs = append(st.PodIPs, corev1.PodIP{IP: ip})
	}
}

// containerStatus returns the status of one container. The newest instance determines the state and
// the exit before it the last state.
func (d *decider) containerStatus(c spec) corev1.ContainerStatus {
	cs := corev1.ContainerStatus{Name: c.Name, Image: c.Image}
	ks := d.byName[c.Name]
	cs.VolumeMounts = d.mountStatuses(c.VolumeMounts, ks)
	cs.AllocatedResourcesStatus = d.Observed.Devices[c.Name].Allocated
	started := false
	if next := d.mem.Restarts[c.Name].NextAttempt; next > 0 {
		cs.RestartCount = int32(next - 1)
	}
	if len(ks) == 0 {
		cs.Started = &started
		if c.kind == Init && d.initsDone() { // proved by an app container
			cs.Ready = true
			cs.State.Terminated = &corev1.ContainerStateTerminated{Reason: "Completed",
				Message: "the exit was lost; containers that start after its success exist"}
			return cs
		}
		cs.State.Waiting = d.waiting(c)
		return cs
	}
	k := ks[0]
	cs.Image, cs.ImageID = firstNonEmpty(firstNonEmpty(k.ImageName, k.Image), c.Image), k.ImageID
	cs.Resources, cs.AllocatedResources = d.actualResources(c, k), c.Resources.Requests
	if k.User != nil {
		cs.User = &corev1.ContainerUser{Linux: k.User}
	}
	cs.ContainerID = d.containerID(k)
	if c.Lifecycle != nil && c.Lifecycle.StopSignal != nil && k.StopSignal != "" {
		cs.StopSignal = &k.StopSignal
	}
	again := d.neverStarted(k)
	if !again {
		cs.RestartCount = max(cs.RestartCount, int32(k.Attempt))
	}
	for _, older := range ks[1:] {
		if older.State == Exited {
			cs.LastTerminationState.Terminated = d.terminated(older)
			break
		}
	}
	switch {
	case again:
		cs.State.Waiting = d.waiting(c)
	case k.State == Running:
		if d.beingStarted(c.Name) || d.postStartUnfinished(k) {
			cs.State.Waiting = d.waiting(c)
			break
		}
		cs.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.Time{Time: k.StartedAt}}
		started = d.started(c, k)
		cs.Ready = d.ready(c, k)
	case k.State == Exited:
		cs.Ready = c.kind == Init && k.ExitCode == 0
		if wait := d.restartWaiting(c, k); wait != nil {
			cs.State.Waiting = wait
			cs.LastTerminationState.Terminated = d.terminated(k)
		} else {
			cs.State.Terminated = d.terminated(k)
		}
	default:
		cs.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerStatusUnknown",
			Message: "the state of the container is unknown to the runtime"}
	}
	cs.Started = &started
	return cs
}

// actualResources returns the resources of the instance: those of the spec, with the CPU and memory
// last applied to it.
func (d *decider) actualResources(c spec, k Container) *corev1.ResourceRequirements {
	if !c.resizable() {
		return &c.Resources
	}
	now := d.actualResourcesOf(k, d.allocated).Resources
	if sameResources(now, d.allocated[c.Name]) {
		return &c.Resources
	}
	r := c.Resources.DeepCopy()
	replaceCPUAndMemory(r, now)
	return r
}

// mountStatuses returns the mounts with their names in the spec, which the runtime does not know.
// Recursive read-only is reported as the container was created, or for a container that does not
// exist yet as the runtime supports it.
func (d *decider) mountStatuses(mounts []corev1.VolumeMount, ks []Container) []corev1.VolumeMountStatus {
	if len(mounts) == 0 {
		return nil
	}
	all := make([]corev1.VolumeMountStatus, len(mounts))
	for i, m := range mounts {
		all[i] = corev1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if !m.ReadOnly {
			continue
		}
		requested := m.RecursiveReadOnly != nil && *m.RecursiveReadOnly != corev1.RecursiveReadOnlyDisabled
		supported := d.Observed.RecursiveReadOnly
		if len(ks) > 0 {
			supported = slices.ContainsFunc(ks[0].RecursiveReadOnly,
				func(p string) bool { return inContainer(p) == inContainer(m.MountPath) })
		}
		mode := corev1.RecursiveReadOnlyDisabled
		if requested && supported {
			mode = corev1.RecursiveReadOnlyEnabled
		}
		all[i].RecursiveReadOnly = &mode
	}
	return all
}

// inContainer normalizes a path in a container.
func inContainer(p string) string { return path.Clean("/" + p) }

func (d *decider) containerID(k Container) string {
	return firstNonEmpty(d.Limits.RuntimeName, "containerd") + "://" + k.ID
}

func (d *decider) terminated(k Container) *corev1.ContainerStateTerminated {
	reason := k.Reason
	if reason == "" {
		reason = "Error"
		if k.ExitCode == 0 {
			reason = "Completed"
		}
	}
	return &corev1.ContainerStateTerminated{
		ExitCode: k.ExitCode, Reason: reason, Message: d.limitMessage(k.Message), ContainerID: d.containerID(k),
		StartedAt: metav1.Time{Time: k.StartedAt}, FinishedAt: metav1.Time{Time: k.FinishedAt},
	}
}

// maxPodMessages is the documented limit for all termination messages of a pod, in bytes. Each
// container gets an equal share.
const maxPodMessages = 12 << 10

func (d *decider) limitMessage(text string) string {
	share := maxPodMessages / max(len(d.specs), 1)
	if len(text) <= share {
		return text
	}
	return strings.ToValidUTF8(text[:share], "") // removes a character that was cut
}

// restartWaiting returns the waiting state of an exited container that will run again, or nil.
func (d *decider) restartWaiting(c spec, k Container) *corev1.ContainerStateWaiting {
	if !d.mayRestart(c, k) || d.terminal() || d.Verdict.State == Rejected {
		return nil
	}
	if r := d.mem.Restarts[c.Name]; r.CountedID == k.ID && d.Now.Before(r.NotBefore) {
		d.wakeAt(r.NotBefore)
		return &corev1.ContainerStateWaiting{
			Reason: "CrashLoopBackOff",
			Message: fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", d.Limits.crashDelay(r), c.Name,
				d.fullName()),
		}
	}
	return d.startFailure(c)
}

// Waiting reasons of a container that has never run.
const (
	ReasonCreating     = "ContainerCreating"
	ReasonInitializing = "PodInitializing"
	ReasonDevices      = "DevicesNotReady" // the container waits for its devices
)

// waiting returns the waiting state of a container that has never run.
func (d *decider) waiting(c spec) *corev1.ContainerStateWaiting {
	if k, exists := d.newest(c.Name); exists && k.State == Running && d.hookOf(k).PostStart == HookFailed {
		return &corev1.ContainerStateWaiting{Reason: "PostStartHookError", Message: d.hookOf(k).Message}
	}
	initializing := len(d.Pod.Spec.InitContainers) > 0
	if c.kind == Main && initializing && !d.initsDone() {
		return &corev1.ContainerStateWaiting{Reason: ReasonInitializing}
	}
	if w := d.startFailure(c); w != nil {
		return w
	}
	switch {
	case d.terminal() && (c.kind == Main || c.kind == Ephemeral):
		return &corev1.ContainerStateWaiting{} // nothing is created any more
	case initializing:
		return &corev1.ContainerStateWaiting{Reason: ReasonInitializing}
	}
	return &corev1.ContainerStateWaiting{Reason: ReasonCreating}
}

// startFailure returns why a container cannot start, or nil.
func (d *decider) startFailure(c spec) *corev1.ContainerStateWaiting {
	for _, x := range append([]spec{c}, d.imageVolumes(c)...) {
		if img := d.images[x.Name]; img.code != "" {
			return &corev1.ContainerStateWaiting{Reason: img.code, Message: img.detail}
		}
	}
	for _, r := range d.out.Reasons {
		if (r.Code == "CreateContainerConfigError" || r.Code == ReasonDevices) && r.Target == c.Name {
			return &corev1.ContainerStateWaiting{Reason: r.Code, Message: r.Message}
		}
	}
	if f, failed := d.Failures[(StartContainer{Name: c.Name}).Key()]; failed && f.Kind != Canceled {
		return &corev1.ContainerStateWaiting{Reason: firstNonEmpty(f.Reason, "CreateContainerError"),
			Message: f.Message}
	}
	return nil
}

// initsDone reports whether all init containers are done.
func (d *decider) initsDone() bool {
	if len(d.Observed.Sandboxes) > 0 && d.initialized(d.Observed.Sandboxes[0]) {
		return true
	}
	for _, c := range d.specs {
		if (c.kind == Init || c.kind == Sidecar) && !d.initContainerDone(c) {
			return false
		}
	}
	return true
}

// initContainerDone reports whether an init container has succeeded or a sidecar has started in the
// current sandbox.
func (d *decider) initContainerDone(c spec) bool {
	k, exists := d.newest(c.Name)
	sb, ok := d.currentSandbox()
	switch {
	case !exists || ok && !d.isCurrent(k, sb):
		return false
	case c.kind == Init:
		return k.State == Exited && k.ExitCode == 0
	default: // a sidecar that stopped with the pod had started
		return d.started(c, k) || !d.mem.FinishedAt.IsZero() || d.mem.Termination != nil
	}
}

// phase computes the pod phase. Succeeded and Failed require that no container can still run, and
// they are final.
func (d *decider) phase(st *corev1.PodStatus) {
	if !d.terminal() {
		d.mem.Phase = d.computePhase()
		if termination := d.mem.Termination; termination != nil && termination.failsPod() && d.terminal() {
			d.mem.Reason, d.mem.Message = termination.Reason, termination.Message
		}
	}
	st.Phase, st.Reason, st.Message = d.mem.Phase, d.mem.Reason, d.mem.Message
}

func (d *decider) computePhase() corev1.PodPhase {
	finished := !d.mem.FinishedAt.IsZero() || d.mem.Termination != nil || d.finished()
	live := slices.ContainsFunc(d.Observed.Containers, Container.Live)
	if finished && !live && !d.nonCleanupInProgress() {
		return d.outcome()
	}
	started, waiting := false, false
	for _, c := range d.specs {
		if c.kind != Main {
			continue
		}
		k, exists := d.newest(c.Name)
		if !exists || k.State == Created || k.State == Running && (d.beingStarted(c.Name) || d.postStartUnfinished(k)) {
			waiting = true
			continue
		}
		started = true
	}
	if started && !waiting {
		return corev1.PodRunning
	}
	if d.mem.Phase == corev1.PodRunning {
		return corev1.PodRunning
	}
	return corev1.PodPending
}

// outcome returns the phase of a terminated pod.
func (d *decider) outcome() corev1.PodPhase {
	if e := d.mem.Termination; e != nil && e.failsPod() {
		return corev1.PodFailed
	}
	if d.initFailed() {
		return corev1.PodFailed
	}
	for _, c := range d.specs {
		if k, exists := d.newest(c.Name); c.kind == Main && (!exists || k.ExitCode != 0) {
			return corev1.PodFailed
		}
	}
	return corev1.PodSucceeded
}

// OwnsCondition reports whether the agent owns a condition type.
func OwnsCondition(t corev1.PodConditionType) bool {
	switch t {
	case corev1.PodScheduled, corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.ContainersReady,
		corev1.PodReady,
		corev1.PodResizePending, corev1.PodResizeInProgress, corev1.AllContainersRestarting, TeardownIncomplete:
		return true
	}
	return false
}

// conditions writes the conditions that the agent owns and preserves all others.
func (d *decider) conditions(st *corev1.PodStatus) {
	sb, hasSandbox := d.currentSandbox()
	network := hasSandbox && (d.Pod.Spec.HostNetwork || len(sb.IPs) > 0 || len(d.mem.IPs) > 0)
	containers := d.containersReady(st)
	ready := containers
	if ready.Status == corev1.ConditionTrue {
		if closed := d.falseReadinessGates(); closed != "" {
			ready.Status, ready.Reason, ready.Message = corev1.ConditionFalse, "ReadinessGatesNotReady", closed
		}
	}
	containers.Type, ready.Type = corev1.ContainersReady, corev1.PodReady
	all := []corev1.PodCondition{
		{Type: corev1.PodReadyToStartContainers, Status: conditionStatus(network)},
		d.initializedCondition(st),
		ready,
		containers,
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
	}
	all = append(all, d.resizeConditions()...)
	if d.canRestartAll() {
		all = append(all, d.restartAllCondition(st.Phase))
	}
	if e := d.mem.Termination; e != nil && e.isDisruption() && d.terminal() && d.mem.Reason == e.Reason {
		// otherwise it had terminated before
		all = append(all, e.disruptionCondition())
	}
	if c, found := d.teardownCondition(); found {
		all = append(all, c)
	}
	for i := range all {
		c := &all[i]
		// a resize in progress has the generation that started it
		c.ObservedGeneration = cmp.Or(c.ObservedGeneration, st.ObservedGeneration)
		c.LastTransitionTime = metav1.Time{Time: d.transitionTime(*c)}
	}
	d.mem.Conditions = all
	st.Conditions = slices.Clone(all)
	for _, c := range d.Pod.Status.Conditions {
		present := slices.ContainsFunc(all, func(x corev1.PodCondition) bool { return x.Type == c.Type })
		if !present && !OwnsCondition(c.Type) { // a missing condition of the agent's own is outdated
			st.Conditions = append(st.Conditions, c)
		}
	}
}

// containersReady returns the condition ContainersReady without its type.
func (d *decider) containersReady(st *corev1.PodStatus) corev1.PodCondition {
	switch st.Phase {
	case corev1.PodSucceeded:
		return corev1.PodCondition{Status: corev1.ConditionFalse, Reason: "PodCompleted"}
	case corev1.PodFailed:
		return corev1.PodCondition{Status: corev1.ConditionFalse, Reason: "PodFailed"}
	}
	var unready []string
	for _, cs := range st.InitContainerStatuses {
		if d.kindOf(cs.Name) == Sidecar && !cs.Ready {
			unready = append(unready, cs.Name)
		}
	}
	for _, cs := range st.ContainerStatuses {
		if !cs.Ready {
			unready = append(unready, cs.Name)
		}
	}
	if len(unready) > 0 {
		return corev1.PodCondition{
			Status: corev1.ConditionFalse, Reason: "ContainersNotReady",
			Message: fmt.Sprintf("containers with unready status: [%s]", strings.Join(unready, " ")),
		}
	}
	return corev1.PodCondition{Status: corev1.ConditionTrue}
}

func (d *decider) initializedCondition(st *corev1.PodStatus) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}
	switch {
	case st.Phase == corev1.PodSucceeded:
		c.Reason = "PodCompleted"
		return c
	case d.initsDone():
		return c
	}
	var left []string
	for _, x := range d.specs {
		if (x.kind == Init || x.kind == Sidecar) && !d.initContainerDone(x) {
			left = append(left, x.Name)
		}
	}
	c.Status, c.Reason = corev1.ConditionFalse, "ContainersNotInitialized"
	c.Message = fmt.Sprintf("containers with incomplete status: [%s]", strings.Join(left, " "))
	return c
}

// falseReadinessGates describes the readiness gates that are not True, or returns "".
func (d *decider) falseReadinessGates() string {
	var closed []string
	for _, g := range d.Pod.Spec.ReadinessGates {
		i := slices.IndexFunc(d.Pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == g.ConditionType
		})
		switch {
		case i < 0:
			closed = append(closed, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.",
				string(g.ConditionType)))
		case d.Pod.Status.Conditions[i].Status != corev1.ConditionTrue:
			closed = append(closed, fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %s",
				string(g.ConditionType), d.Pod.Status.Conditions[i].Status))
		}
	}
	return strings.Join(closed, ", ")
}

func (d *decider) kindOf(name string) ContainerKind {
	for _, c := range d.specs {
		if c.Name == name {
			return c.kind
		}
	}
	return Main
}

func conditionStatus(b bool) corev1.ConditionStatus {
	if b {
		return corev1.ConditionTrue
	}
	return corev1.ConditionFalse
}
