package plan

import (
	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// Sizes are what the pod's resources are, as far as it may differ from the spec.
type Sizes struct {
	Allocated  Resources                    `json:"Allocated,omitzero"`   // what the room holds for the pod; nil: nothing is known
	Pod        Resources                    `json:"Pod,omitzero"`         // what the pod's cgroup was made for; nil: likewise
	Whole      *corev1.ResourceRequirements `json:"Whole,omitempty"`      // what the pod itself was last given; nil: it asks for nothing
	Containers map[string]Actual            `json:"Containers,omitempty"` // by name: of the newest instance
	Resizing   int64                        `json:"Resizing,omitempty"`   // generation of the resize under way
}

// Actual is what one instance was last given.
type Actual struct {
	Attempt uint32 `json:"Attempt"`
	Given
	Unsure bool `json:"Unsure,omitempty"` // a change was begun, and may or may not have been carried out
}

// Given is what one container is given: its own CPU and memory, and the pod's limits
// where it has none.
type Given struct {
	Resources corev1.ResourceRequirements `json:"Resources"`
	Inherited corev1.ResourceList         `json:"Inherited,omitempty"`
}

// Same reports whether a container that was given other has to be told nothing.
func (g Given) Same(other Given) bool {
	inherited := func(g Given) corev1.ResourceRequirements { return corev1.ResourceRequirements{Limits: g.Inherited} }
	return sameResources(g.Resources, other.Resources) && sameResources(inherited(g), inherited(other))
}

// For is what a container is to be given of a pod that has these resources.
func (r Resources) For(name string) Given {
	whole := r[WholePod]
	return Given{Resources: r[name], Inherited: podspec.InheritedLimits(&whole, r[name].Limits)}
}

func (s Sizes) clone() Sizes { return s } // its maps are replaced, never changed

// actual is what an instance was last given; one of which nothing is known was
// made with what is given as unknown.
func (d *decider) actual(k Container, unknown Resources) Actual {
	a, known := d.mem.Sizes.Containers[k.Name]
	if !known || a.Attempt != k.Attempt {
		a = Actual{Attempt: k.Attempt, Given: unknown.For(k.Name)}
	}
	if r, seen := d.Seen.Resized[k.ID]; seen {
		a.Given, a.Unsure = r, false
	}
	if _, busy := d.Busy[ResizeContainer{ID: k.ID}.Key()]; busy {
		a.Unsure = true
	}
	return a
}

// sizedCgroup keeps what the pod's cgroup is known to have. One of an earlier life
// has what was allocated then.
func (d *decider) sizedCgroup() {
	switch s := &d.mem.Sizes; {
	case !d.Seen.Cgroup:
	case d.Seen.Sized != nil:
		s.Pod = d.Seen.Sized
	case s.Pod == nil:
		s.Pod = d.before
	}
}

// whole is what the pod itself was last given: the kernel may not have been asked
// since for more or less, or may have refused it.
func (d *decider) whole() *corev1.ResourceRequirements {
	s := &d.mem.Sizes
	now, known := s.Pod[WholePod]
	switch {
	case d.Pod.Spec.Resources == nil:
		return nil
	case !known && len(d.want[WholePod].Requests)+len(d.want[WholePod].Limits) > 0:
		return &corev1.ResourceRequirements{} // it is new to the cgroup
	case !known:
		return s.Whole
	case s.Whole != nil && sameResources(*s.Whole, now):
		return s.Whole // memory that stays as it is
	}
	return &now
}

// actualWhole is what the pod itself has, where that is not yet what is allocated.
func (d *decider) actualWhole(allocated *corev1.ResourceRequirements) *corev1.ResourceRequirements {
	own := d.mem.Sizes.Whole
	if own == nil || sameResources(*own, d.want[WholePod]) {
		return allocated
	}
	actual := allocated.DeepCopy()
	exactly(actual, *own)
	return actual
}

// sized keeps what is known of a container's size, if it is news.
func (d *decider) sized(name string, now Actual) {
	s := &d.mem.Sizes
	was, known := s.Containers[name]
	if !known || was.Attempt != now.Attempt || was.Unsure != now.Unsure || !was.Same(now.Given) {
		s.Containers = set(s.Containers, name, now)
	}
}
