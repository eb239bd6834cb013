package explain

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/agent/source"
	"berth/nodeapi"
)

// ChangeOf returns the effect of a manifest's pod on the existing pod of the same name. was is nil
// if there is none. finished reports that the existing pod has terminated for good. The UID of a
// pod is derived from its manifest, so a different UID means a different pod. With the same UID
// only images, and the CPU and memory of running containers, can change.
func ChangeOf(old, pod *corev1.Pod, terminated bool) nodeapi.Change {
	switch {
	case old == nil:
		return nodeapi.Create
	case old.UID != pod.UID, terminated && source.ManifestChanged(old, pod):
		return nodeapi.Replace
	case !slices.Equal(images(old), images(pod)):
		return nodeapi.Update
	case resized(old, pod):
		return nodeapi.Resize
	}
	return nodeapi.Unchanged
}

// resized reports whether the CPU or memory of the two versions differ.
func resized(old, pod *corev1.Pod) bool {
	return !plan.ResourcesOf(old).Equal(plan.ResourcesOf(pod))
}

// volumeImages are the images of the pod's volumes, in order.
func volumeImages(pod *corev1.Pod) (out []string) {
	for i := range pod.Spec.Volumes {
		if v := pod.Spec.Volumes[i].Image; v != nil && v.Reference != "" {
			out = append(out, v.Reference)
		}
	}
	return out
}

// images are the images of the pod's init containers and containers, in order.
func images(pod *corev1.Pod) (out []string) {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			out = append(out, list[i].Image)
		}
	}
	return out
}
