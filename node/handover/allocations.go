package handover

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/dump"
)

// Allocation is what allocated_pods_state or actuated_pods_state has of a pod.
type Allocation struct {
	ContainerResources   map[string]corev1.ResourceRequirements
	PodLevelResources    *corev1.ResourceRequirements  // nil: the pod has none, or the kubelet does not resize them
	EmptyDirVolumeLimits map[string]*resource.Quantity // of volumes in memory, from Kubernetes 1.37 on
}

// parseAllocations returns the content of allocated_pods_state or actuated_pods_state. An empty content has no
// pods.
func parseAllocations(content string) (map[types.UID]Allocation, error) {
	if content == "" {
		return nil, nil
	}
	var outer struct {
		Data string `json:"data"`
	}
	var inner struct {
		Entries map[types.UID]Allocation `json:"entries"`
	}
	err := json.Unmarshal([]byte(content), &outer)
	if err == nil {
		err = json.Unmarshal([]byte(outer.Data), &inner)
	}
	return inner.Entries, err
}

// unappliedFields returns the fields of a pod whose allocated amounts have not been applied. p is nil if the
// pod is unknown.
func (a Allocation) unappliedFields(p *corev1.Pod, actuated Allocation) (fields []string) {
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
func (a Allocation) withPodLimits(limits corev1.ResourceList) corev1.ResourceList {
	if a.PodLevelResources == nil {
		return limits
	}
	all := corev1.ResourceList{}
	maps.Copy(all, a.PodLevelResources.Limits)
	maps.Copy(all, limits)
	return all
}

// changedFields returns the fields of a pod whose amounts differ from the allocated ones.
func (a Allocation) changedFields(p *corev1.Pod) (fields []string) {
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
	return append(fields, a.changedVolumes(p)...)
}

// changedVolumes returns the fields of volumes in memory whose size differs from the allocated one.
func (a Allocation) changedVolumes(p *corev1.Pod) (fields []string) {
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		was := a.EmptyDirVolumeLimits[v.Name]
		if was != nil && v.EmptyDir != nil && v.EmptyDir.SizeLimit != nil && was.Cmp(*v.EmptyDir.SizeLimit) != 0 {
			fields = append(fields, "spec.volumes["+v.Name+"].emptyDir.sizeLimit")
		}
	}
	return fields
}

// resized returns the allocation with the amounts of a pod, for the containers that it has.
func (a Allocation) resized(p *corev1.Pod) Allocation {
	out := Allocation{ContainerResources: map[string]corev1.ResourceRequirements{},
		EmptyDirVolumeLimits: a.EmptyDirVolumeLimits}
	maps.Copy(out.ContainerResources, a.ContainerResources)
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			if _, known := out.ContainerResources[list[i].Name]; known {
				out.ContainerResources[list[i].Name] = list[i].Resources
			}
		}
	}
	if a.PodLevelResources != nil {
		out.PodLevelResources = p.Spec.Resources
	}
	return out
}

// WithResized returns the content of the checkpoint allocated_pods_state or actuated_pods_state with other amounts
// of the containers and pods that it has.
func WithResized(name, content string, resized map[types.UID]Allocation) (string, error) {
	var outer map[string]any
	var inner struct {
		Entries map[types.UID]map[string]json.RawMessage `json:"entries,omitempty"`
	}
	data := ""
	err := json.Unmarshal([]byte(content), &outer)
	if err == nil {
		data, _ = outer["data"].(string)
		err = json.Unmarshal([]byte(data), &inner)
	}
	if err != nil {
		return "", fmt.Errorf("decode %s: %w", name, err)
	}
	was, err := parseAllocations(content)
	if err != nil {
		return "", fmt.Errorf("decode %s: %w", name, err)
	}
	for uid, now := range resized {
		entry, known := inner.Entries[uid]
		if !known {
			continue
		}
		containers := was[uid].ContainerResources
		for _, container := range sortedKeys(containers) {
			c, isResized := now.ContainerResources[container]
			if !isResized {
				continue
			}
			if name == actuatedPods { // these include the limits of the pod
				c.Limits = now.withPodLimits(c.Limits)
			}
			containers[container] = c
		}
		if entry["ContainerResources"], err = json.Marshal(containers); err != nil {
			return "", err
		}
		if was[uid].PodLevelResources != nil {
			if entry["PodLevelResources"], err = json.Marshal(now.PodLevelResources); err != nil {
				return "", err
			}
		}
	}
	text, err := json.Marshal(inner)
	if err != nil {
		return "", err
	}
	outer["data"], outer["checksum"] = string(text), checksum(string(text))
	text, err = json.Marshal(outer)
	return string(text), err
}

// checksum returns the checksum that the kubelet expects for the data of a checkpoint.
func checksum(data string) uint32 {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(dump.ForHash(data))) // never fails
	return hash.Sum32()
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
