package plan

import (
	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// ResourceState are what the pod's resources are, as far as it may differ from the spec.
type ResourceState struct {
	Allocated        Resources                    `json:"Allocated,omitzero"`   // what the room holds for the pod; nil: nothing is known
	Cgroup           Resources                    `json:"Pod,omitzero"`         // what the pod's cgroup was made for; nil: likewise
	PodLevel         *corev1.ResourceRequirements `json:"Whole,omitempty"`      // what the pod itself was last given; nil: it asks for nothing
	Containers       map[string]ActualResources   `json:"Containers,omitempty"` // by name: of the newest instance
	ResizeGeneration int64                        `json:"Resizing,omitempty"`   // generation of the resize under way
}

// ActualResources is what one instance was last given.
type ActualResources struct {
	Attempt uint32 `json:"Attempt"`
	ContainerResources
	Uncertain bool `json:"Unsure,omitempty"` // a change was begun, and may or may not have been carried out
}

// ContainerResources is what one container is given: its own CPU and memory, and the pod's limits
// where it has none.
type ContainerResources struct {
	Resources corev1.ResourceRequirements `json:"Resources"`
	Inherited corev1.ResourceList         `json:"Inherited,omitempty"`
}

// Equal reports whether a container that was given other has to be told nothing.
func (g ContainerResources) Equal(other ContainerResources) bool {
	inherited := func(g ContainerResources) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Limits: g.Inherited}
	}
	return sameResources(g.Resources, other.Resources) && sameResources(inherited(g), inherited(other))
}

// ForContainer is what a container is to be given of a pod that has these resources.
func (r Resources) ForContainer(name string) ContainerResources {
	whole := r[PodLevel]
	return ContainerResources{Resources: r[name], Inherited: podspec.InheritedLimits(&whole, r[name].Limits)}
}

func (s ResourceState) clone() ResourceState { return s } // its maps are replaced, never changed

// actualResourcesOf is what an instance was last given; one of which nothing is known was
// made with what is given as unknown.
func (d *decider) actualResourcesOf(k Container, unknown Resources) ActualResources {
	a, known := d.mem.Resources.Containers[k.Name]
	if !known || a.Attempt != k.Attempt {
		a = ActualResources{Attempt: k.Attempt, ContainerResources: unknown.ForContainer(k.Name)}
	}
	if r, seen := d.Observed.ResizedContainers[k.ID]; seen {
		a.ContainerResources, a.Uncertain = r, false
	}
	if _, busy := d.InProgress[ResizeContainer{ID: k.ID}.Key()]; busy {
		a.Uncertain = true
	}
	return a
}

// recordCgroup keeps what the pod's cgroup is known to have. One of an earlier life
// has what was allocated then.
func (d *decider) recordCgroup() {
	switch s := &d.mem.Resources; {
	case !d.Observed.HasCgroup:
	case d.Observed.CgroupResources != nil:
		s.Cgroup = d.Observed.CgroupResources
	case s.Cgroup == nil:
		s.Cgroup = d.previous
	}
}

// podLevelResources is what the pod itself was last given: the kernel may not have been asked
// since for more or less, or may have refused it.
func (d *decider) podLevelResources() *corev1.ResourceRequirements {
	s := &d.mem.Resources
	now, known := s.Cgroup[PodLevel]
	switch {
	case d.Pod.Spec.Resources == nil:
		return nil
	case !known && len(d.allocated[PodLevel].Requests)+len(d.allocated[PodLevel].Limits) > 0:
		return &corev1.ResourceRequirements{} // it is new to the cgroup
	case !known:
		return s.PodLevel
	case s.PodLevel != nil && sameResources(*s.PodLevel, now):
		return s.PodLevel // memory that stays as it is
	}
	return &now
}

// actualPodLevel is what the pod itself has, where that is not yet what is allocated.
func (d *decider) actualPodLevel(allocated *corev1.ResourceRequirements) *corev1.ResourceRequirements {
	own := d.mem.Resources.PodLevel
	if own == nil || sameResources(*own, d.allocated[PodLevel]) {
		return allocated
	}
	actual := allocated.DeepCopy()
	replaceCPUAndMemory(actual, *own)
	return actual
}

// recordResources keeps what is known of a container's size, if it is news.
func (d *decider) recordResources(name string, now ActualResources) {
	s := &d.mem.Resources
	was, known := s.Containers[name]
	if !known || was.Attempt != now.Attempt || was.Uncertain != now.Uncertain || !was.Equal(now.ContainerResources) {
		s.Containers = withKey(s.Containers, name, now)
	}
}
