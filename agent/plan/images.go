package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// imageState is what is known of a container's image in this call.
type imageState struct {
	image        Image
	ok           bool
	pulling      bool   // being pulled
	code, detail string // waiting reason when it failed
}

// prePull asks for the images of containers that never ran, beside the
// sandbox and the volumes.
func (d *decider) prePull() {
	d.cancel(func(a Action) bool {
		p, ok := a.(PullImage)
		return ok && !d.stillWanted(p)
	})
	for _, c := range d.specs {
		if _, seen := d.newest(c.Name); !seen {
			d.image(c, d.mem.Restarts[c.Name].NextAttempt)
			d.volumeImages(c)
		}
	}
}

func (d *decider) stillWanted(p PullImage) bool { return d.wantedImage(p) == p.Image }

// image tells whether the container's image is there as its policy demands,
// and asks for it otherwise.
func (d *decider) image(c spec, attempt uint32) imageState {
	if a, asked := d.images[c.Name]; asked {
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

// imageCheckInterval is how long an image that is brought by hand may be there unnoticed,
// for the first time or in place of another: nobody tells.
const imageCheckInterval = 5 * time.Second

// checkImage has the node asked for an image again after a while.
func (d *decider) checkImage(image string) {
	if due := d.ImagesCheckedAt.Add(imageCheckInterval); d.Now.Before(due) {
		d.wakeAt(due)
		return
	}
	if !slices.Contains(d.out.CheckImages, image) {
		d.out.CheckImages = append(d.out.CheckImages, image)
	}
}

// imageError is the answer where trying again would not help.
func (d *decider) imageError(c spec, code, msg string) imageState {
	d.report(warning("Failed", c.Name, "Error: "+code))
	return imageState{code: code, detail: msg}
}

// pull asks for a pull, unless one is under way or has failed a moment ago.
func (d *decider) pull(c spec, attempt uint32) imageState {
	a := PullImage{Container: c.Name, Image: c.Image, Policy: c.ImagePullPolicy, Attempt: attempt}
	f, failed := d.Failures[a.Key()]
	if old, ok := f.Action.(PullImage); failed && ok && old.Image != c.Image {
		failed = false
	}
	answer := imageState{pulling: true}
	if failed && f.Kind != Canceled { // it shows until the pull has ended
		answer.code, answer.detail = pullWaitingReason(c, f)
	}
	if _, busy := d.InProgress[a.Key()]; busy {
		if why := d.Observed.HeldPulls[c.Image]; why != "" {
			answer.code, answer.detail = "ImagePullNoSpace", fmt.Sprintf("the pull of image %q waits for room on the disk: %s", c.Image, why)
			d.report(warning(answer.code, c.Name, answer.detail))
		}
		return answer
	}
	if failed && f.Kind != Canceled {
		until := f.At.Add(backoffDelay(d.Limits.PullBase, f.Count-1, d.Limits.PullMax))
		if d.Now.Before(until) {
			d.wakeAt(until)
			return d.pullBackedOff(c, f, until)
		}
	}
	d.out.BuildRun = append(d.out.BuildRun, a)
	return answer
}

// pullBackedOff is the answer while a failed pull is held back: the error itself at
// first, then the back-off, so that both can be seen.
func (d *decider) pullBackedOff(c spec, f Failure, until time.Time) imageState {
	if shown := f.At.Add(d.Limits.PullBase / 5); d.Now.Before(shown) {
		d.wakeAt(shown)
		return imageState{code: firstNonEmpty(f.Reason, "ErrImagePull"), detail: f.Message}
	}
	code, detail := pullWaitingReason(c, f)
	if code == "ImagePullBackOff" {
		d.report(Reason{Code: "BackOff", Target: c.Name, Message: pullBackOffMessage(c), EventType: corev1.EventTypeNormal, Until: until})
		d.report(warning("Failed", c.Name, "Error: "+code))
	}
	return imageState{code: code, detail: detail}
}

func pullBackOffMessage(c spec) string { return fmt.Sprintf("Back-off pulling image %q", c.Image) }

// pullWaitingReason is the waiting reason and message between two pulls. What the
// runtime could not even look at was not pulled: that is no back-off to users.
func pullWaitingReason(c spec, f Failure) (code, detail string) {
	reason := firstNonEmpty(f.Reason, "ErrImagePull")
	if reason == "InvalidImageName" || reason == "ImageInspectError" {
		return reason, f.Message
	}
	return "ImagePullBackOff", fmt.Sprintf("%s: %s: %s", pullBackOffMessage(c), reason, f.Message)
}

// An image volume is nothing on the host: the runtime mounts the image itself.
// What is to be done for it is to have its image here before a container that
// mounts it starts. That is a pull like any other, under a name that no
// container can have.
const volumePullPrefix = "volume/"

// VolumePull is the name under which the image of a volume is pulled.
func VolumePull(volume string) string { return volumePullPrefix + volume }

// imageVolumes lists the image volumes that a container mounts, as containers
// whose images are wanted.
func (d *decider) imageVolumes(c spec) (out []spec) {
	for i := range d.Pod.Spec.Volumes {
		v := &d.Pod.Spec.Volumes[i]
		if v.Image == nil || v.Image.Reference == "" { // without one it is left out
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

// volumeImages tells whether the images of all volumes that a container mounts
// are there, and asks for those that are not.
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

// wantedImage is the image that is wanted under the name of a pull, a container's
// or a volume's; empty: none any more.
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
