package podspec

import (
	"iter"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// IsSidecar reports whether an init container is a sidecar: restartPolicy Always. It is only
// meaningful for containers of spec.initContainers.
func IsSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// containerKind is the kind of a container.
type containerKind int

const (
	main containerKind = iota
	initial
	sidecar
	ephemeral
)

// containerPosition is the kind and the path of a container.
type containerPosition struct {
	kind containerKind
	path *field.Path
}

// containersOf iterates over init, main and ephemeral containers. Ephemeral containers are
// converted to containers. They have the same fields except for the target.
func containersOf(spec *corev1.PodSpec) iter.Seq2[*corev1.Container, containerPosition] {
	return func(yield func(*corev1.Container, containerPosition) bool) {
		root := field.NewPath("spec")
		for i := range spec.InitContainers {
			c, at := &spec.InitContainers[i], containerPosition{initial, root.Child("initContainers").Index(i)}
			if IsSidecar(c) {
				at.kind = sidecar
			}
			if !yield(c, at) {
				return
			}
		}
		for i := range spec.Containers {
			if !yield(&spec.Containers[i], containerPosition{main, root.Child("containers").Index(i)}) {
				return
			}
		}
		for i := range spec.EphemeralContainers {
			c := (*corev1.Container)(&spec.EphemeralContainers[i].EphemeralContainerCommon)
			if !yield(c, containerPosition{ephemeral, root.Child("ephemeralContainers").Index(i)}) {
				return
			}
		}
	}
}

// FindContainer returns the container of that name of any kind, or nil.
func FindContainer(pod *corev1.Pod, name string) *corev1.Container {
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; c.Name == name {
			return c
		}
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.Name == name {
			return c
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if e := &pod.Spec.EphemeralContainers[i]; e.Name == name {
			c := corev1.Container(e.EphemeralContainerCommon)
			return &c
		}
	}
	return nil
}

// Images returns the distinct images that the containers and volumes of the pod name.
func Images(pod *corev1.Pod) []string {
	var names []string
	add := func(image string) {
		if image != "" && !slices.Contains(names, image) {
			names = append(names, image)
		}
	}
	for i := range pod.Spec.InitContainers {
		add(pod.Spec.InitContainers[i].Image)
	}
	for i := range pod.Spec.Containers {
		add(pod.Spec.Containers[i].Image)
	}
	for i := range pod.Spec.EphemeralContainers {
		add(pod.Spec.EphemeralContainers[i].Image)
	}
	for i := range pod.Spec.Volumes {
		if v := pod.Spec.Volumes[i].Image; v != nil {
			add(v.Reference)
		}
	}
	return names
}
