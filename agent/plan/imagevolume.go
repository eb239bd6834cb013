package plan

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

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
