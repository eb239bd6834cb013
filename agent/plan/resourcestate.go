package plan

import (
	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// ResourceState is the state of the pod's resources, which may differ from the spec.
type ResourceState struct {
	Allocated Resources `json:"Allocated,omitzero"` // reserved by the allocator, nil: unknown
	Cgroup    Resources `json:"Pod,omitzero"`       // applied to the pod cgroup, nil: unknown
	// last applied at pod level, nil: the pod has no pod-level resources
	PodLevel         *corev1.ResourceRequirements `json:"Whole,omitempty"`
	Containers       map[string]ActualResources   `json:"Containers,omitempty"` // by name: of the newest instance
	ResizeGeneration int64                        `json:"Resizing,omitempty"`   // generation of the resize in progress
}

// ActualResources are the resources last applied to one container instance.
type ActualResources struct {
	Attempt uint32 `json:"Attempt"`
	ContainerResources
	Uncertain bool `json:"Unsure,omitempty"` // a change may or may not have taken effect
}

// ContainerResources are the resources of one container: its own CPU and memory, and the pod's
// limits that it inherits.
type ContainerResources struct {
	Resources corev1.ResourceRequirements `json:"Resources"`
	Inherited corev1.ResourceList         `json:"Inherited,omitempty"`
}

// Equal reports whether both require the same settings of a container.
func (r ContainerResources) Equal(other ContainerResources) bool {
	inherited := func(r ContainerResources) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Limits: r.Inherited}
	}
	return sameResources(r.Resources, other.Resources) && sameResources(inherited(r), inherited(other))
}

// ForContainer returns the resources of one container.
func (r Resources) ForContainer(name string) ContainerResources {
	whole := r[PodLevel]
	return ContainerResources{Resources: r[name], Inherited: podspec.InheritedLimits(&whole, r[name].Limits)}
}

func (s ResourceState) clone() ResourceState { return s } // its maps are replaced, never modified

// actualResourcesOf returns the resources last applied to an instance. If nothing is recorded, the
// instance was created with unknown.
func (d *decider) actualResourcesOf(k Container, unknown Resources) ActualResources {
	a, known := d.mem.Resources.Containers[k.Name]
	if !known || a.Attempt != k.Attempt {
		a = ActualResources{Attempt: k.Attempt, ContainerResources: unknown.ForContainer(k.Name)}
	}
	if r, exists := d.Observed.ResizedContainers[k.ID]; exists {
		a.ContainerResources, a.Uncertain = r, false
	}
	if _, busy := d.InProgress[ResizeContainer{ID: k.ID}.Key()]; busy {
		a.Uncertain = true
	}
	return a
}

// recordCgroup records the resources of the pod cgroup. A cgroup from an earlier run of the agent
// has the resources allocated then.
func (d *decider) recordCgroup() {
	switch s := &d.mem.Resources; {
	case !d.Observed.HasCgroup:
	case d.Observed.CgroupResources != nil:
		s.Cgroup = d.Observed.CgroupResources
	case s.Cgroup == nil:
		s.Cgroup = d.previous
	}
}

// podLevelResources returns the resources last applied at pod level. They differ from the allocated
// ones while a change is pending or after it has failed.
func (d *decider) podLevelResources() *corev1.ResourceRequirements {
	s := &d.mem.Resources
	now, known := s.Cgroup[PodLevel]
	switch {
	case d.Pod.Spec.Resources == nil:
		return nil
	case !known && len(d.allocated[PodLevel].Requests)+len(d.allocated[PodLevel].Limits) > 0:
		return &corev1.ResourceRequirements{} // added, and not yet applied
	case !known:
		return s.PodLevel
	case s.PodLevel != nil && sameResources(*s.PodLevel, now):
		return s.PodLevel // avoids a change that is not needed
	}
	return &now
}

// actualPodLevel returns the actual pod-level resources.
func (d *decider) actualPodLevel(allocated *corev1.ResourceRequirements) *corev1.ResourceRequirements {
	own := d.mem.Resources.PodLevel
	if own == nil || sameResources(*own, d.allocated[PodLevel]) {
		return allocated
	}
	actual := allocated.DeepCopy()
	replaceCPUAndMemory(actual, *own)
	return actual
}

// recordResources records the resources of a container if they have changed.
func (d *decider) recordResources(name string, now ActualResources) {
	s := &d.mem.Resources
	was, known := s.Containers[name]
	if !known || was.Attempt != now.Attempt || was.Uncertain != now.Uncertain || !was.Equal(now.ContainerResources) {
		s.Containers = withKey(s.Containers, name, now)
	}
}
