package plan

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// The order in which the containers of a pod start:
//
//	ephemeral ── as soon as there is a sandbox; a volume that only ephemeral
//	             containers mount does not delay other containers
//	init 1 ─succeeded─► init 2 ─► … ─► app containers, in spec order
//	sidecar ──started──► next init; restarted until the pod terminates
//
// At most one start is in progress. As in the kubelet, a container starts after the postStart hook
// of the previous one has returned.

// syncContainers starts, stops and restarts the containers of the pod.
func (d *decider) syncContainers(sb Sandbox) {
	for _, c := range d.specs {
		if c.kind == Ephemeral {
			d.syncContainer(c, sb)
		}
	}
	if !d.syncInitContainers(sb) {
		return
	}
	inOrder := false
	for _, c := range d.specs {
		if c.kind != Main {
			continue
		}
		if _, exists := d.newest(c.Name); !exists && inOrder {
			continue // the image of an earlier container is being pulled
		}
		inOrder = d.syncContainer(c, sb) == waitingForStart || inOrder
	}
}

// syncInitContainers runs the init containers in order and reports whether the app containers may
// start.
func (d *decider) syncInitContainers(sb Sandbox) bool {
	through := d.initialized(sb)
	behind := d.lastInitIndex(sb)
	for i, c := range d.specs {
		if c.kind != Init && c.kind != Sidecar {
			continue
		}
		k, exists := d.newest(c.Name)
		here := exists && d.isCurrent(k, sb)
		if c.kind == Init {
			if through || i < behind || here && k.State == Exited && k.ExitCode == 0 {
				continue
			}
			d.syncContainer(c, sb)
			return false
		}
		d.syncContainer(c, sb)
		if !through && i >= behind && !(here && d.started(c, k)) {
			return false
		}
	}
	return true
}

// lastInitIndex returns the position of the last init container or sidecar that was created in this
// sandbox. The init containers before it have succeeded and the sidecars before it have started, so
// a sidecar that has crashed since is restarted without delaying later containers.
func (d *decider) lastInitIndex(sb Sandbox) int {
	for i, c := range slices.Backward(d.specs) {
		if c.kind != Init && c.kind != Sidecar {
			continue
		}
		if k, exists := d.newest(c.Name); exists && d.isCurrent(k, sb) {
			return i
		}
	}
	return 0
}

// initialized reports whether an app container was created in this sandbox, which proves that all
// init containers have succeeded.
func (d *decider) initialized(sb Sandbox) bool {
	for _, c := range d.specs {
		if c.kind != Main {
			continue
		}
		for _, k := range d.byName[c.Name] {
			if d.isCurrent(k, sb) {
				return true
			}
		}
	}
	return false
}

// syncResult is the result of syncContainer.
type syncResult int

const (
	settled         syncResult = iota // nothing more to plan for the container
	waitingForStart                   // start delayed by an image pull or an object that is being fetched
)

// syncContainer plans the next action for one container.
func (d *decider) syncContainer(c spec, sb Sandbox) syncResult {
	k, exists := d.newest(c.Name)
	switch {
	case !exists:
		return d.startContainer(c, sb, d.mem.Restarts[c.Name].NextAttempt)
	case (k.State == Created || k.State == Running) && d.beingStarted(c.Name):
		// The event arrived before the response to StartContainer.
	case k.State == Running && d.postStart(k):
		// The start includes the postStart hook.
	case d.neverStarted(k): // left by an interrupted call
		d.addCleanup(RemoveContainer{ID: k.ID, Name: k.Name})
	case k.State == Unknown:
		d.stop(k, "ContainerStatusUnknown", d.Now.Add(d.grace()), d.grace())
	case k.State == Running:
		d.checkRunning(c, k)
	case c.kind == Init && k.ExitCode == 0: // ran in an older sandbox
		return d.startContainer(c, sb, max(k.Attempt+1, d.mem.Restarts[c.Name].NextAttempt))
	case d.mayRestart(c, k) && (lost(k, sb) || d.fromEarlierRound(k) && k.ID != d.mem.RestartAll.TriggeredBy):
		d.startContainer(c, sb, max(k.Attempt+1, d.mem.Restarts[c.Name].NextAttempt))
	case d.mayRestart(c, k):
		if until := d.nextStart(c, k); d.Now.Before(until) {
			d.report(Reason{
				Code: "BackOff", Target: c.Name, Until: until, EventType: corev1.EventTypeWarning,
				Message: fmt.Sprintf("Back-off restarting failed container %s in pod %s", c.Name, d.fullName()),
			})
			d.wakeAt(until)
			return settled
		}
		d.startContainer(c, sb, max(k.Attempt+1, d.mem.Restarts[c.Name].NextAttempt))
	}
	return settled
}

// neverStarted reports whether the call that created or started an instance was interrupted before
// the runtime had confirmed the start. The instance is removed and its attempt is repeated, which
// does not count as a restart.
//
// A runtime that dies during CreateContainer has no record of the creation afterwards and reports
// the state Unknown without a creation time. One that dies during StartContainer reports Unknown
// without a start time although the process may have run, so the attempt is repeated only where the
// restart policy allows a second run.
func (d *decider) neverStarted(k Container) bool {
	switch k.State {
	case Created:
		return true
	case Exited:
		return k.Interrupted
	case Unknown:
		sb, ok := d.currentSandbox()
		if !ok || k.SandboxID != sb.ID || !k.StartedAt.IsZero() || d.mem.Restarts[k.Name].NextAttempt > k.Attempt {
			return false
		}
		return k.CreatedAt.IsZero() || d.restartsAfterLoss(k)
	case Running:
	}
	return false
}

// lostExitCode is the exit code of a container whose exit the runtime did not observe, as containerd
// and the kubelet report it.
const lostExitCode = 255

// restartsAfterLoss reports whether a container runs again after an exit that the runtime did not
// observe.
func (d *decider) restartsAfterLoss(k Container) bool {
	i := slices.IndexFunc(d.specs, func(s spec) bool { return s.Name == k.Name })
	if i < 0 || d.specs[i].kind == Ephemeral {
		return false
	}
	k.State, k.ExitCode = Exited, lostExitCode
	return d.mayRestart(d.specs[i], k)
}

// lost reports whether a container was lost together with its sandbox, for example in a power
// failure. This does not count as a crash.
func lost(k Container, sb Sandbox) bool { return k.SandboxID != sb.ID && k.Reason == "Unknown" }

// checkRunning stops a running container that must be restarted, otherwise probes it.
func (d *decider) checkRunning(c spec, k Container) {
	h := d.mem.Health[k.ID]
	hook := d.hookOf(k)
	switch {
	case hook.PreStop != HookNone: // already stopping, maybe since before a restart of the agent
		d.stop(k, hook.Reason, hook.Deadline, hook.Grace)
	case (c.kind == Main || c.kind == Sidecar) && k.SpecHash != "" && k.SpecHash != podspec.ContainerHash(c.Container):
		r := d.mem.Restarts[k.Name]
		r.Replacing = k.ID
		d.mem.Restarts[k.Name] = r
		d.stop(k, stopReasonSpecChanged, d.Now.Add(d.grace()), d.grace())
	case c.kind != Ephemeral && d.mem.Restarts[k.Name].RequestedFor == k.ID:
		d.stop(k, stopReasonRestartRequested, d.Now.Add(d.grace()), d.grace())
	case d.Limits.Probing && h.Failed:
		grace := d.probeGrace(c, h.FailedProbe)
		d.stop(k, "Unhealthy", d.Now.Add(grace), grace)
	case d.Limits.Probing:
		d.probe(c, k, Probes{Startup: !h.Started, Readiness: true, Liveness: true})
	}
}

// startContainer plans the image pull if necessary, then the start of the container.
func (d *decider) startContainer(c spec, sb Sandbox, attempt uint32) syncResult {
	if slices.ContainsFunc(d.byName[c.Name], Container.Live) {
		return settled // an older instance is still live, see removeDeadContainers
	}
	img, volumes := d.image(c, attempt), d.volumeImages(c)
	if !img.ok || !volumes.ok {
		if img.pulling || volumes.pulling {
			return waitingForStart
		}
		return settled
	}
	missing, pending := d.missingEnv(c)
	if missing != "" {
		d.report(Reason{Code: "CreateContainerConfigError", Target: c.Name, Message: missing})
		d.report(warning("Failed", c.Name, "Error: "+missing))
		return settled
	}
	if pending {
		return waitingForStart
	}
	if waits := d.Observed.Devices[c.Name].Pending; waits != "" {
		d.report(warning(ReasonDevices, c.Name, waits))
		return settled
	}
	unmounted := slices.ContainsFunc(c.volumes(),
		func(name string) bool { return slices.Contains(d.missingVolumes, name) })
	if unmounted || d.startPlanned() {
		return settled
	}
	a := StartContainer{
		Name: c.Name, Kind: c.kind, SandboxID: sb.ID, Image: img.image, Attempt: attempt,
		ResolveImage: attempt > 0 || d.Now.Sub(img.image.InspectedAt) > imageCheckInterval,
	}
	if !d.available(a) {
		return settled
	}
	d.out.BuildRun = append(d.out.BuildRun, a)
	d.recordStart(c, attempt)
	if p, ok := d.Observed.PulledImages[c.Name]; !ok || p.Attempt != attempt || p.Name != c.Image {
		d.report(Reason{
			Code: "Pulled", Target: c.Name, EventType: corev1.EventTypeNormal,
			Message: fmt.Sprintf("Container image %q already present on machine and can be accessed by the pod",
				c.Image),
		})
	}
	return settled
}

// startPlanned reports whether a start is in progress or planned.
func (d *decider) startPlanned() bool {
	if d.postStartInProgress() {
		return true
	}
	for _, a := range d.InProgress {
		if _, ok := a.(StartContainer); ok {
			return true
		}
	}
	for _, a := range d.out.BuildRun {
		if _, ok := a.(StartContainer); ok {
			return true
		}
	}
	return false
}

// beingStarted reports whether the start of the named container is in progress.
func (d *decider) beingStarted(name string) bool {
	_, busy := d.InProgress[StartContainer{Name: name}.Key()]
	return busy
}

// newest returns the newest instance of a container, including recorded exits.
func (d *decider) newest(name string) (Container, bool) {
	if ks := d.byName[name]; len(ks) > 0 {
		return ks[0], true
	}
	return Container{}, false
}

// removeDeadContainers removes old dead instances. For each container name it keeps the newest
// instance and MaxDeadContainers dead ones before it (at least one, for kubectl logs -p), or only
// the newest one under disk pressure. An older instance that is still live is stopped.
func (d *decider) removeDeadContainers() {
	rank := make(map[string]int, len(d.specs))
	for _, k := range d.Observed.Containers {
		n := rank[k.Name]
		rank[k.Name]++
		switch {
		case n == 0:
		case k.Live():
			d.stop(k, "Duplicate", d.Now.Add(d.grace()), d.grace())
		case d.Observed.DiskPressure:
			d.addCleanup(RemoveContainer{k.ID, k.Name, true})
		case n > max(d.Limits.MaxDeadContainers, 1):
			if old := k.FinishedAt.Add(d.Limits.DeadContainerMinAge); !k.FinishedAt.IsZero() && d.Now.Before(old) {
				d.wakeAt(old)
				continue
			}
			d.addCleanup(RemoveContainer{k.ID, k.Name, true})
		}
	}
}
