package explain

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/agent/source"
	"berth/nodeapi"
)

// ChangeOf is what a manifest's pod would do to the one of its name that is here;
// was is nil if there is none, and over says that what has become of it is for good.
// A pod's UID comes from its manifest, so another UID is another pod; what may
// change beneath one UID is the images, and the CPU and memory of what runs.
func ChangeOf(was, pod *corev1.Pod, over bool) nodeapi.Change {
	switch {
	case was == nil:
		return nodeapi.Create
	case was.UID != pod.UID, over && source.ManifestChanged(was, pod):
		return nodeapi.Replace
	case !slices.Equal(images(was), images(pod)):
		return nodeapi.Update
	case resized(was, pod):
		return nodeapi.Resize
	}
	return nodeapi.Unchanged
}

// resized reports whether another form of a pod has other CPU or memory.
func resized(was, pod *corev1.Pod) bool {
	return !plan.ResourcesOf(was).Equal(plan.ResourcesOf(pod))
}

// volumeImages are the images that the pod's volumes name, in order.
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
