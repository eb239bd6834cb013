package criconfig

import (
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/podspec"
)

// Adoption is what berth's own annotations would say about the sandboxes and containers of a pod that
// the kubelet created. The labels and annotations of an object cannot be changed, so that berth records
// this at the adoption and adds it to what the runtime reports.
type Adoption struct {
	HostNetwork bool                        `json:"hostNetwork,omitempty"`
	Meta        string                      `json:"meta,omitempty"` // value of annotationPodMeta
	Containers  map[string]AdoptedContainer `json:"containers,omitempty"`
}

// AdoptedContainer is the part of an Adoption about one container of the pod.
type AdoptedContainer struct {
	Kind     string `json:"kind"`
	Position int    `json:"position,omitempty"`
	Image    string `json:"image"`
	// Hash is that of the spec at the adoption. The kubelet's own hash depends on its version, so an
	// adopted container counts as created from this spec.
	Hash       string `json:"hash"`
	StopSignal string `json:"stopSignal,omitempty"`
}

// AdoptionOf returns the adoption of a pod with this spec.
func AdoptionOf(pod *corev1.Pod) Adoption {
	a := Adoption{
		HostNetwork: pod.Spec.HostNetwork, Meta: encodeJSON(podMetaOf(pod)),
		Containers: map[string]AdoptedContainer{},
	}
	add := func(c *corev1.Container, kind plan.ContainerKind) {
		k := AdoptedContainer{
			Kind: kind.String(), Position: position(pod, c.Name, kind), Image: c.Image, Hash: podspec.ContainerHash(c),
		}
		if c.Lifecycle != nil && c.Lifecycle.StopSignal != nil {
			k.StopSignal = string(*c.Lifecycle.StopSignal)
		}
		a.Containers[c.Name] = k
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		kind := plan.Init
		if podspec.IsSidecar(c) {
			kind = plan.Sidecar
		}
		add(c, kind)
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i], plan.Main)
	}
	for i := range pod.Spec.EphemeralContainers {
		c := corev1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		add(&c, plan.Ephemeral)
	}
	return a
}

// Foreign reports whether an object has the labels of a pod, but not those of a berth: the kubelet has
// created it.
func Foreign(labels map[string]string) bool {
	_, berth := labels[OwnerLabel]
	return !berth && labels[labelPodUID] != ""
}

// Sandbox returns the labels and annotations that berth would have set on a sandbox of the adopted pod,
// in addition to those that it has. attempt is that of its metadata.
func (a Adoption) Sandbox(instance string, labels, annotations map[string]string,
	attempt uint32) (l, an map[string]string) {
	l, an = a.owned(instance, labels, annotations)
	an[annotationAttempt] = strconv.FormatUint(uint64(attempt), 10)
	an[annotationHostNetwork] = strconv.FormatBool(a.HostNetwork)
	an[annotationPodMeta] = a.Meta
	return l, an
}

// Container is Sandbox for a container. One that the pod did not have at its adoption counts as an
// ephemeral container: it is neither compared with the spec nor restarted.
func (a Adoption) Container(instance string, labels, annotations map[string]string) (l, an map[string]string) {
	l, an = a.owned(instance, labels, annotations)
	k, known := a.Containers[labels[labelContainerName]]
	if !known {
		k.Kind = plan.Ephemeral.String()
	}
	an[annotationKind], an[annotationPosition] = k.Kind, strconv.Itoa(k.Position)
	an[annotationImage], an[annotationHash] = k.Image, k.Hash
	delete(an, annotationSpecHash)
	if k.StopSignal != "" {
		an[annotationStopSignal] = k.StopSignal
	}
	return l, an
}

func (a Adoption) owned(instance string, labels, annotations map[string]string) (l, an map[string]string) {
	l, an = maps.Clone(labels), maps.Clone(annotations)
	if an == nil {
		an = map[string]string{}
	}
	l[OwnerLabel] = OwnerVersion
	if instance != "" {
		l[InstanceLabel] = instance
	}
	return l, an
}
