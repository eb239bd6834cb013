package plan

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// The containers of a pod, and what each waits for:
//
//	ephemeral ── as soon as there is a sandbox; a volume that it alone mounts
//	             holds up nothing else
//	init 1 ─succeeded─► init 2 ─► … ─► mains, in spec order
//	sidecar ──started──► next init; restarted for as long as the pod lives
//
// At most one start is under way: a container's postStart has ended before the
// next one starts, as users of the field know it.

// containers keeps every container of the pod as it should be.
func (d *decider) containers(sb Sandbox) {
	for _, c := range d.specs {
		if c.kind == Ephemeral {
			d.run(c, sb)
		}
	}
	if !d.inits(sb) {
		return
	}
	inOrder := false
	for _, c := range d.specs {
		if c.kind != Main {
			continue
		}
		if _, seen := d.newest(c.Name); !seen && inOrder {
			continue // an earlier one's image is on its way
		}
		inOrder = d.run(c, sb) == awaits || inOrder
	}
}

// inits walks the init chain and reports whether the mains may run.
func (d *decider) inits(sb Sandbox) bool {
	through := d.initialized(sb)
	behind := d.behind(sb)
	for i, c := range d.specs {
		if c.kind != Init && c.kind != Sidecar {
			continue
		}
		k, seen := d.newest(c.Name)
		here := seen && d.here(k, sb)
		if c.kind == Init {
			if through || i < behind || here && k.State == Exited && k.ExitCode == 0 {
				continue
			}
			d.run(c, sb)
			return false
		}
		d.run(c, sb)
		if !through && i >= behind && !(here && d.started(c, k)) {
			return false
		}
	}
	return true
}

// behind is the position of the last init container or sidecar that was made in
// this sandbox. Those before it have succeeded or started once: an init
// container of theirs is done with, and a sidecar that has crashed meanwhile
// comes back without holding the others up.
func (d *decider) behind(sb Sandbox) int {
	for i, c := range slices.Backward(d.specs) {
		if c.kind != Init && c.kind != Sidecar {
			continue
		}
		if k, seen := d.newest(c.Name); seen && d.here(k, sb) {
			return i
		}
	}
	return 0
}

// initialized reports whether a main container was made in this sandbox: the
// init chain is then behind it, whatever became of the init containers.
func (d *decider) initialized(sb Sandbox) bool {
	for _, c := range d.specs {
		if c.kind != Main {
			continue
		}
		for _, k := range d.byName[c.Name] {
			if d.here(k, sb) {
				return true
			}
		}
	}
	return false
}

// verdictOnRun is what run found out about a container.
type verdictOnRun int

const (
	settled verdictOnRun = iota // nothing to do, or it is being done
	awaits                      // it would start if a pull under way had ended, or an answer had come
)

// run keeps one container as it should be.
func (d *decider) run(c spec, sb Sandbox) verdictOnRun {
	k, seen := d.newest(c.Name)
	switch {
	case !seen:
		return d.start(c, sb, d.mem.Restarts[c.Name].Next)
	case (k.State == Created || k.State == Running) && d.beingStarted(c.Name):
		// an event was faster than the call's own answer
	case k.State == Running && d.postStart(k):
		// its hook is part of its start
	case d.neverStarted(k): // left by an interrupted call
		d.cleanup(RemoveContainer{ID: k.ID, Name: k.Name})
	case k.State == Unknown:
		d.end(k, "ContainerStatusUnknown", d.Now.Add(d.grace()), d.grace())
	case k.State == Running:
		d.look(c, k)
	case c.kind == Init && k.ExitCode == 0: // of an older sandbox: runs again
		return d.start(c, sb, max(k.Attempt+1, d.mem.Restarts[c.Name].Next))
	case d.mayRestart(c, k) && (lost(k, sb) || d.past(k) && k.ID != d.mem.Renewal.By):
		d.start(c, sb, max(k.Attempt+1, d.mem.Restarts[c.Name].Next))
	case d.mayRestart(c, k):
		if until := d.backoff(c, k); d.Now.Before(until) {
			d.why(Reason{
				Code: "BackOff", On: c.Name, Until: until, Event: corev1.EventTypeWarning,
				Detail: fmt.Sprintf("Back-off restarting failed container %s in pod %s", c.Name, d.fullName()),
			})
			d.wakeAt(until)
			return settled
		}
		d.start(c, sb, max(k.Attempt+1, d.mem.Restarts[c.Name].Next))
	}
	return settled
}

// neverStarted reports whether the call that created or started an instance was interrupted before the
// runtime had confirmed the start. Such an instance is removed and its attempt is made again, which is
// not a restart.
//
// A runtime that dies during CreateContainer has no record of the creation afterwards and reports the
// state Unknown without a creation time. One that dies during StartContainer reports Unknown without a
// start time although the process may have run, so the attempt is repeated only where the restart policy
// allows a second run.
func (d *decider) neverStarted(k Container) bool {
	switch k.State {
	case Created:
		return true
	case Exited:
		return k.CutOff
	case Unknown:
		sb, ok := d.current()
		if !ok || k.SandboxID != sb.ID || !k.StartedAt.IsZero() || d.mem.Restarts[k.Name].Next > k.Attempt {
			return false
		}
		return k.CreatedAt.IsZero() || d.restartsAfterLoss(k)
	case Running:
	}
	return false
}

// lostExitCode is the exit code of a container whose end the runtime has lost, as containerd and the
// kubelet report it.
const lostExitCode = 255

// restartsAfterLoss reports whether a container runs again after an exit that the runtime has lost.
func (d *decider) restartsAfterLoss(k Container) bool {
	i := slices.IndexFunc(d.specs, func(c spec) bool { return c.Name == k.Name })
	if i < 0 || d.specs[i].kind == Ephemeral {
		return false
	}
	k.State, k.ExitCode = Exited, lostExitCode
	return d.mayRestart(d.specs[i], k)
}

// lost reports whether a container was lost with its sandbox, unseen by the
// runtime: the node lost its power. That is no crash of the container.
func lost(k Container, sb Sandbox) bool { return k.SandboxID != sb.ID && k.Reason == "Unknown" }

// look judges a running container.
func (d *decider) look(c spec, k Container) {
	h := d.mem.Health[k.ID]
	hook := d.hookOf(k)
	switch {
	case hook.PreStop != HookNone: // it was told to stop, maybe by an agent that died since
		d.end(k, hook.Why, hook.By, hook.Grace)
	case (c.kind == Main || c.kind == Sidecar) && k.SpecHash != "" && k.SpecHash != podspec.ContainerHash(c.Container):
		r := d.mem.Restarts[k.Name]
		r.Replaces = k.ID
		d.mem.Restarts[k.Name] = r
		d.end(k, whyChanged, d.Now.Add(d.grace()), d.grace())
	case c.kind != Ephemeral && d.mem.Restarts[k.Name].Asked == k.ID:
		d.end(k, "RestartAsked", d.Now.Add(d.grace()), d.grace())
	case d.Limits.Probing && h.Dead:
		g := d.probeGrace(c, h.Probe)
		d.end(k, "Unhealthy", d.Now.Add(g), g)
	case d.Limits.Probing:
		d.probe(c, k, Probes{Startup: !h.Started, Readiness: true, Liveness: true})
	}
}

// start asks for the container's image, then for the container.
func (d *decider) start(c spec, sb Sandbox, attempt uint32) verdictOnRun {
	if slices.ContainsFunc(d.byName[c.Name], Container.Live) {
		return settled // an older instance lives, see collectDead
	}
	img, volumes := d.image(c, attempt), d.volumeImages(c)
	if !img.ok || !volumes.ok {
		if img.underWay || volumes.underWay {
			return awaits
		}
		return settled
	}
	missing, late := d.missingEnv(c)
	if missing != "" {
		d.why(Reason{Code: "CreateContainerConfigError", On: c.Name, Detail: missing})
		d.why(warning("Failed", c.Name, "Error: "+missing))
		return settled
	}
	if late {
		return awaits
	}
	if waits := d.Seen.Devices[c.Name].Waits; waits != "" {
		d.why(warning(ReasonDevices, c.Name, waits))
		return settled
	}
	unmounted := slices.ContainsFunc(c.volumes(), func(name string) bool { return slices.Contains(d.lacks, name) })
	if unmounted || d.starting() {
		return settled
	}
	a := StartContainer{
		Name: c.Name, Kind: c.kind, SandboxID: sb.ID, Image: img.image, Attempt: attempt,
		Resolve: attempt > 0 || d.Now.Sub(img.image.At) > seekEvery,
	}
	if !d.free(a) {
		return settled
	}
	d.out.BuildRun = append(d.out.BuildRun, a)
	d.armed(c, attempt)
	if p, ok := d.Seen.Pulled[c.Name]; !ok || p.Attempt != attempt || p.Name != c.Image {
		d.why(Reason{
			Code: "Pulled", On: c.Name, Event: corev1.EventTypeNormal,
			Detail: fmt.Sprintf("Container image %q already present on machine and can be accessed by the pod", c.Image),
		})
	}
	return settled
}

// starting reports whether a start is under way or just asked for.
func (d *decider) starting() bool {
	if d.hooking() {
		return true
	}
	for _, a := range d.Busy {
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

// beingStarted reports whether the start of the named container is under way.
func (d *decider) beingStarted(name string) bool {
	_, busy := d.Busy[StartContainer{Name: name}.Key()]
	return busy
}

// imageAnswer is what is known of a container's image in this call.
type imageAnswer struct {
	image        Image
	ok           bool
	underWay     bool   // being pulled
	code, detail string // waiting reason when it failed
}

// pullAhead asks for the images of containers that never ran, beside the
// sandbox and the volumes.
func (d *decider) pullAhead() {
	d.cancel(func(a Action) bool {
		p, ok := a.(PullImage)
		return ok && !d.wants(p)
	})
	for _, c := range d.specs {
		if _, seen := d.newest(c.Name); !seen {
			d.image(c, d.mem.Restarts[c.Name].Next)
			d.volumeImages(c)
		}
	}
}

func (d *decider) wants(p PullImage) bool { return d.pullWanted(p) == p.Image }

// image tells whether the container's image is there as its policy demands,
// and asks for it otherwise.
func (d *decider) image(c spec, attempt uint32) imageAnswer {
	if a, asked := d.images[c.Name]; asked {
		return a
	}
	a := d.askImage(c, attempt)
	d.images[c.Name] = a
	return a
}

func (d *decider) askImage(c spec, attempt uint32) imageAnswer {
	if _, err := podspec.ParseImageName(c.Image); err != nil {
		msg := fmt.Sprintf("Failed to apply default image tag %q: %s", c.Image, err)
		d.why(warning("InspectFailed", c.Name, msg))
		return d.noImage(c, "InvalidImageName", msg)
	}
	have, present := d.Seen.Images[c.Image]
	pulled := d.Seen.Pulled[c.Name]
	switch c.ImagePullPolicy {
	case corev1.PullNever:
		if present {
			return imageAnswer{image: have, ok: true}
		}
		d.seek(c.Image)
		if why := d.Seen.Unclear[c.Image]; why != "" {
			d.why(warning("InspectFailed", c.Name, why))
			return d.noImage(c, "ImageInspectError", why)
		}
		msg := fmt.Sprintf("Container image %q is not present with pull policy of Never", c.Image)
		d.why(warning("ErrImageNeverPull", c.Name, msg))
		return d.noImage(c, "ErrImageNeverPull", msg)
	case corev1.PullAlways:
		if pulled.Image.ID != "" && pulled.Name == c.Image && pulled.Attempt == attempt {
			return imageAnswer{image: pulled.Image, ok: true}
		}
	default:
		if present {
			return imageAnswer{image: have, ok: true}
		}
	}
	return d.pull(c, attempt)
}

// seekEvery is how long an image that is brought by hand may be there unnoticed,
// for the first time or in place of another: nobody tells.
const seekEvery = 5 * time.Second

// seek has the node asked for an image again after a while.
func (d *decider) seek(image string) {
	if due := d.Sought.Add(seekEvery); d.Now.Before(due) {
		d.wakeAt(due)
		return
	}
	if !slices.Contains(d.out.Seek, image) {
		d.out.Seek = append(d.out.Seek, image)
	}
}

// noImage is the answer where trying again would not help.
func (d *decider) noImage(c spec, code, msg string) imageAnswer {
	d.why(warning("Failed", c.Name, "Error: "+code))
	return imageAnswer{code: code, detail: msg}
}

// pull asks for a pull, unless one is under way or has failed a moment ago.
func (d *decider) pull(c spec, attempt uint32) imageAnswer {
	a := PullImage{Container: c.Name, Image: c.Image, Policy: c.ImagePullPolicy, Attempt: attempt}
	f, failed := d.Failed[a.Key()]
	if old, ok := f.Action.(PullImage); failed && ok && old.Image != c.Image {
		failed = false
	}
	answer := imageAnswer{underWay: true}
	if failed && f.Kind != Canceled { // it shows until the pull has ended
		answer.code, answer.detail = backingOff(c, f)
	}
	if _, busy := d.Busy[a.Key()]; busy {
		if why := d.Seen.Held[c.Image]; why != "" {
			answer.code, answer.detail = "ImagePullNoSpace", fmt.Sprintf("the pull of image %q waits for room on the disk: %s", c.Image, why)
			d.why(warning(answer.code, c.Name, answer.detail))
		}
		return answer
	}
	if failed && f.Kind != Canceled {
		until := f.At.Add(doubled(d.Limits.PullBase, f.Count-1, d.Limits.PullMax))
		if d.Now.Before(until) {
			d.wakeAt(until)
			return d.pullHeld(c, f, until)
		}
	}
	d.out.BuildRun = append(d.out.BuildRun, a)
	return answer
}

// pullHeld is the answer while a failed pull is held back: the error itself at
// first, then the back-off, so that both can be seen.
func (d *decider) pullHeld(c spec, f Failure, until time.Time) imageAnswer {
	if shown := f.At.Add(d.Limits.PullBase / 5); d.Now.Before(shown) {
		d.wakeAt(shown)
		return imageAnswer{code: cmpOr(f.Reason, "ErrImagePull"), detail: f.Message}
	}
	code, detail := backingOff(c, f)
	if code == "ImagePullBackOff" {
		d.why(Reason{Code: "BackOff", On: c.Name, Detail: pullBackOff(c), Event: corev1.EventTypeNormal, Until: until})
		d.why(warning("Failed", c.Name, "Error: "+code))
	}
	return imageAnswer{code: code, detail: detail}
}

func pullBackOff(c spec) string { return fmt.Sprintf("Back-off pulling image %q", c.Image) }

// backingOff is the waiting reason and message between two pulls. What the
// runtime could not even look at was not pulled: that is no back-off to users.
func backingOff(c spec, f Failure) (code, detail string) {
	reason := cmpOr(f.Reason, "ErrImagePull")
	if reason == "InvalidImageName" || reason == "ImageInspectError" {
		return reason, f.Message
	}
	return "ImagePullBackOff", fmt.Sprintf("%s: %s: %s", pullBackOff(c), reason, f.Message)
}

// newest returns the newest instance of a container, a forgotten exit included.
func (d *decider) newest(name string) (Container, bool) {
	if ks := d.byName[name]; len(ks) > 0 {
		return ks[0], true
	}
	return Container{}, false
}

// collectDead removes what nobody will look at again: per container name the
// newest instance and so many dead ones before it (one, for logs -p) are kept; on a
// node that is short of disk the newest only. An
// older instance that lives is a double and is ended.
func (d *decider) collectDead() {
	rank := make(map[string]int, len(d.specs))
	for _, k := range d.Seen.Containers {
		n := rank[k.Name]
		rank[k.Name]++
		switch {
		case n == 0:
		case k.Live():
			d.end(k, "Duplicate", d.Now.Add(d.grace()), d.grace())
		case d.Seen.Short:
			d.cleanup(RemoveContainer{k.ID, k.Name, true})
		case n > max(d.Limits.DeadKept, 1):
			if old := k.FinishedAt.Add(d.Limits.DeadMinAge); !k.FinishedAt.IsZero() && d.Now.Before(old) {
				d.wakeAt(old)
				continue
			}
			d.cleanup(RemoveContainer{k.ID, k.Name, true})
		}
	}
}
