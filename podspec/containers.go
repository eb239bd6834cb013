package podspec

import (
	"iter"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// IsSidecar reports whether an init container is a sidecar: restartPolicy
// Always. Only meaningful for a container of spec.initContainers.
func IsSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// place is where in a pod a container stands.
type place int

const (
	main place = iota
	initial
	sidecar
	ephemeral
)

// position is one container's place and path.
type position struct {
	place place
	path  *field.Path
}

// containersOf walks the containers of every kind: init, main, ephemeral.
// Ephemeral containers come as containers: their fields are the same but for
// the target.
func containersOf(spec *corev1.PodSpec) iter.Seq2[*corev1.Container, position] {
	return func(yield func(*corev1.Container, position) bool) {
		root := field.NewPath("spec")
		for i := range spec.InitContainers {
			c, at := &spec.InitContainers[i], position{initial, root.Child("initContainers").Index(i)}
			if IsSidecar(c) {
				at.place = sidecar
			}
			if !yield(c, at) {
				return
			}
		}
		for i := range spec.Containers {
			if !yield(&spec.Containers[i], position{main, root.Child("containers").Index(i)}) {
				return
			}
		}
		for i := range spec.EphemeralContainers {
			c := (*corev1.Container)(&spec.EphemeralContainers[i].EphemeralContainerCommon)
			if !yield(c, position{ephemeral, root.Child("ephemeralContainers").Index(i)}) {
				return
			}
		}
	}
}
