package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// imageState is the state of a container's image during one call of Decide.
type imageState struct {
	image        Image
	ok           bool
	pulling      bool
	code, detail string // waiting reason and message after a failure
}

// prePull pulls the images of containers that have never run while the sandbox and the volumes are
// prepared.
func (d *decider) prePull() {
	d.cancel(func(a Action) bool {
		p, ok := a.(PullImage)
		return ok && !d.stillWanted(p)
	})
	for _, c := range d.specs {
		if _, exists := d.newest(c.Name); !exists {
			d.image(c, d.mem.Restarts[c.Name].NextAttempt)
			d.volumeImages(c)
		}
	}
}

func (d *decider) stillWanted(p PullImage) bool { return d.wantedImage(p) == p.Image }

// image reports whether the image is present as the pull policy requires, and plans a pull
// otherwise.
func (d *decider) image(c spec, attempt uint32) imageState {
	if a, resolved := d.images[c.Name]; resolved {
		return a
	}
	a := d.resolveImage(c, attempt)
	d.images[c.Name] = a
	return a
}

func (d *decider) resolveImage(c spec, attempt uint32) imageState {
	if _, err := podspec.ParseImageName(c.Image); err != nil {
		msg := fmt.Sprintf("Failed to apply default image tag %q: %s", c.Image, err)
		d.report(warning("InspectFailed", c.Name, msg))
		return d.imageError(c, "InvalidImageName", msg)
	}
	have, present := d.Observed.Images[c.Image]
	pulled := d.Observed.PulledImages[c.Name]
	switch c.ImagePullPolicy {
	case corev1.PullNever:
		if present {
			return imageState{image: have, ok: true}
		}
		d.checkImage(c.Image)
		if why := d.Observed.ImageErrors[c.Image]; why != "" {
			d.report(warning("InspectFailed", c.Name, why))
			return d.imageError(c, "ImageInspectError", why)
		}
		msg := fmt.Sprintf("Container image %q is not present with pull policy of Never", c.Image)
		d.report(warning("ErrImageNeverPull", c.Name, msg))
		return d.imageError(c, "ErrImageNeverPull", msg)
	case corev1.PullAlways:
		if pulled.Image.ID != "" && pulled.Name == c.Image && pulled.Attempt == attempt {
			return imageState{image: pulled.Image, ok: true}
		}
	default:
		if present {
			return imageState{image: have, ok: true}
		}
	}
	return d.pull(c, attempt)
}

// imageCheckInterval is the interval of checks for an image that cannot be pulled and may be
// imported. No event reports an import.
const imageCheckInterval = 5 * time.Second

// checkImage plans a check for an image that may have been imported.
func (d *decider) checkImage(image string) {
	if due := d.ImagesCheckedAt.Add(imageCheckInterval); d.Now.Before(due) {
		d.wakeAt(due)
		return
	}
	if !slices.Contains(d.out.CheckImages, image) {
		d.out.CheckImages = append(d.out.CheckImages, image)
	}
}

// imageError reports an error that a retry does not resolve.
func (d *decider) imageError(c spec, code, msg string) imageState {
	d.report(warning("Failed", c.Name, "Error: "+code))
	return imageState{code: code, detail: msg}
}

// pull plans a pull unless one is in progress or backing off.
func (d *decider) pull(c spec, attempt uint32) imageState {
	a := PullImage{Container: c.Name, Image: c.Image, Policy: c.ImagePullPolicy, Attempt: attempt}
	f, failed := d.Failures[a.Key()]
	if old, ok := f.Action.(PullImage); failed && ok && old.Image != c.Image {
		failed = false
	}
	state := imageState{pulling: true}
	if failed && f.Kind != Canceled { // shown until the pull has succeeded
		state.code, state.detail = pullWaitingReason(c, f)
	}
	if _, busy := d.InProgress[a.Key()]; busy {
		if why := d.Observed.HeldPulls[c.Image]; why != "" {
			state.code, state.detail = "ImagePullNoSpace",
				fmt.Sprintf("the pull of image %q waits for disk space: %s", c.Image, why)
			d.report(warning(state.code, c.Name, state.detail))
		}
		return state
	}
	if failed && f.Kind != Canceled {
		until := f.At.Add(backoffDelay(d.Limits.PullBase, f.Count-1, d.Limits.PullMax))
		if d.Now.Before(until) {
			d.wakeAt(until)
			return d.pullBackedOff(c, f, until)
		}
	}
	d.out.BuildRun = append(d.out.BuildRun, a)
	return state
}

// pullBackedOff returns the state during the back-off of a failed pull. The error is shown first,
// then the back-off, so that both are visible.
func (d *decider) pullBackedOff(c spec, f Failure, until time.Time) imageState {
	if shown := f.At.Add(d.Limits.PullBase / 5); d.Now.Before(shown) {
		d.wakeAt(shown)
		return imageState{code: firstNonEmpty(f.Reason, "ErrImagePull"), detail: f.Message}
	}
	code, detail := pullWaitingReason(c, f)
	if code == "ImagePullBackOff" {
		d.report(Reason{Code: "BackOff", Target: c.Name, Message: pullBackOffMessage(c),
			EventType: corev1.EventTypeNormal,
			Until:     until})
		d.report(warning("Failed", c.Name, "Error: "+code))
	}
	return imageState{code: code, detail: detail}
}

func pullBackOffMessage(c spec) string { return fmt.Sprintf("Back-off pulling image %q", c.Image) }

// pullWaitingReason returns the waiting reason and message between two pulls. An image that the
// runtime could not inspect was never pulled, so that error is not reported as a back-off.
func pullWaitingReason(c spec, f Failure) (code, detail string) {
	reason := firstNonEmpty(f.Reason, "ErrImagePull")
	if reason == "InvalidImageName" || reason == "ImageInspectError" {
		return reason, f.Message
	}
	return "ImagePullBackOff", fmt.Sprintf("%s: %s: %s", pullBackOffMessage(c), reason, f.Message)
}

// The runtime mounts an image volume itself. The agent only ensures that the image is present
// before a container that mounts the volume starts. The pull uses a name that no container can
// have.
const volumePullPrefix = "volume/"

// VolumePull returns the name under which the image of a volume is pulled, see PullImage.Container.
func VolumePull(volume string) string { return volumePullPrefix + volume }

// imageVolumes returns the image volumes that a container mounts, as containers with these images.
func (d *decider) imageVolumes(c spec) (out []spec) {
	for i := range d.Pod.Spec.Volumes {
		v := &d.Pod.Spec.Volumes[i]
		if v.Image == nil || v.Image.Reference == "" { // the API allows an empty reference: no volume
			continue
		}
		if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == v.Name }) {
			out = append(out, spec{&corev1.Container{
				Name: VolumePull(v.Name), Image: v.Image.Reference, ImagePullPolicy: v.Image.PullPolicy,
			}, c.kind})
		}
	}
	return out
}

// volumeImages reports whether the images of all volumes that a container mounts are present, and
// plans pulls otherwise.
func (d *decider) volumeImages(c spec) imageState {
	all := imageState{ok: true}
	for _, v := range d.imageVolumes(c) {
		a := d.image(v, 0)
		all.ok = all.ok && a.ok
		all.pulling = all.pulling || a.pulling
		if all.code == "" {
			all.code, all.detail = a.code, a.detail
		}
	}
	return all
}

// wantedImage returns the image now required under the name of a pull, or "" if there is none.
func (d *decider) wantedImage(p PullImage) string {
	if volume, ok := strings.CutPrefix(p.Container, volumePullPrefix); ok {
		for i := range d.Pod.Spec.Volumes {
			if v := &d.Pod.Spec.Volumes[i]; v.Name == volume && v.Image != nil {
				return v.Image.Reference
			}
		}
		return ""
	}
	for _, c := range d.specs {
		if c.Name == p.Container {
			return c.Image
		}
	}
	return ""
}
