package handover

import (
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// allocation is what allocated_pods_state or actuated_pods_state has of a pod.
type allocation struct {
	ContainerResources   map[string]corev1.ResourceRequirements
	PodLevelResources    *corev1.ResourceRequirements  // nil: the pod has none, or the kubelet does not resize them
	EmptyDirVolumeLimits map[string]*resource.Quantity // of volumes in memory, from Kubernetes 1.37 on
}

// parseAllocations returns the content of allocated_pods_state or actuated_pods_state. An empty content has no
// pods.
func parseAllocations(content string) (map[types.UID]allocation, error) {
	if content == "" {
		return nil, nil
	}
	var outer struct {
		Data string `json:"data"`
	}
	var inner struct {
		Entries map[types.UID]allocation `json:"entries"`
	}
	err := json.Unmarshal([]byte(content), &outer)
	if err == nil {
		err = json.Unmarshal([]byte(outer.Data), &inner)
	}
	return inner.Entries, err
}

// unappliedFields returns the fields of a pod whose allocated amounts have not been applied. p is nil if the
// pod is unknown.
func (a allocation) unappliedFields(p *corev1.Pod, actuated allocation) (fields []string) {
	for _, name := range sortedKeys(a.ContainerResources) {
		c := a.ContainerResources[name]
		now, started := actuated.ContainerResources[name]
		if !started {
			continue // it has no amounts before its first start
		}
		field := containerField(p, name) + ".resources."
		if !sameAmounts(c.Requests, now.Requests) {
			fields = append(fields, field+"requests")
		}
		// From Kubernetes 1.36 on, the actuated limits include those of the pod.
		if !sameAmounts(c.Limits, now.Limits) && !sameAmounts(a.withPodLimits(c.Limits), now.Limits) {
			fields = append(fields, field+"limits")
		}
	}
	if a.PodLevelResources != nil && actuated.PodLevelResources != nil {
		fields = append(fields, differentFields("spec.resources", *a.PodLevelResources, *actuated.PodLevelResources)...)
	}
	for _, name := range sortedKeys(a.EmptyDirVolumeLimits) {
		limit, now := a.EmptyDirVolumeLimits[name], actuated.EmptyDirVolumeLimits[name]
		if limit != nil && now != nil && limit.Cmp(*now) != 0 {
			fields = append(fields, "spec.volumes["+name+"].emptyDir.sizeLimit")
		}
	}
	return fields
}

// withPodLimits adds the limits of the pod to those of a container.
func (a allocation) withPodLimits(limits corev1.ResourceList) corev1.ResourceList {
	if a.PodLevelResources == nil {
		return limits
	}
	all := a.PodLevelResources.Limits.DeepCopy()
	for name, limit := range limits {
		all[name] = limit
	}
	return all
}

// changedFields returns the fields of a pod whose amounts differ from the allocated ones.
func (a allocation) changedFields(p *corev1.Pod) (fields []string) {
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			if was, known := a.ContainerResources[list[i].Name]; known { // otherwise the kubelet takes the spec
				field := containerField(p, list[i].Name) + ".resources"
				fields = append(fields, differentFields(field, was, list[i].Resources)...)
			}
		}
	}
	if a.PodLevelResources != nil {
		now := corev1.ResourceRequirements{}
		if p.Spec.Resources != nil {
			now = *p.Spec.Resources
		}
		fields = append(fields, differentFields("spec.resources", *a.PodLevelResources, now)...)
	}
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		was := a.EmptyDirVolumeLimits[v.Name]
		if was != nil && v.EmptyDir != nil && v.EmptyDir.SizeLimit != nil && was.Cmp(*v.EmptyDir.SizeLimit) != 0 {
			fields = append(fields, "spec.volumes["+v.Name+"].emptyDir.sizeLimit")
		}
	}
	return fields
}

func differentFields(field string, a, b corev1.ResourceRequirements) (fields []string) {
	if !sameAmounts(a.Requests, b.Requests) {
		fields = append(fields, field+".requests")
	}
	if !sameAmounts(a.Limits, b.Limits) {
		fields = append(fields, field+".limits")
	}
	return fields
}

// sameAmounts compares the resources that a resize can change.
func sameAmounts(a, b corev1.ResourceList) bool {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		x, inA := a[name]
		y, inB := b[name]
		if inA != inB || x.Cmp(y) != 0 {
			return false
		}
	}
	return true
}

// containerField returns the field of a container. The pod is nil if it is unknown.
func containerField(p *corev1.Pod, name string) string {
	isInit := p != nil && slices.ContainsFunc(p.Spec.InitContainers, func(c corev1.Container) bool {
		return c.Name == name
	})
	if isInit {
		return "spec.initContainers[" + name + "]"
	}
	return "spec.containers[" + name + "]"
}
