package plan

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/podspec"
)

// CPU and memory of containers change in place:
//
//	desired (the spec) ──the room has it──► allocated ──► pod's cgroup, as far as it grows
//	   └──no──► PodResizePending                          ──► containers, or their restart
//	                                                      ──► pod's cgroup, as far as it shrinks
//	                                                      ──► actual: the resize is over
//
// Everything but the room's question looks at the pod with what is allocated.

// Resources are the CPU and memory of containers, by name.
type Resources map[string]corev1.ResourceRequirements

// ResourcesOf returns what may change in place of a pod: the CPU and memory of
// its mains and sidecars. Other containers and resources are not in it.
func ResourcesOf(pod *corev1.Pod) (out Resources) {
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; podspec.IsSidecar(c) {
			out = taking(out, c)
		}
	}
	for i := range pod.Spec.Containers {
		out = taking(out, &pod.Spec.Containers[i])
	}
	return out
}

// taking is r with what the container has, if it has any.
func taking(r Resources, c *corev1.Container) Resources {
	if requests, limits := computing(c.Resources.Requests), computing(c.Resources.Limits); len(requests)+len(limits) > 0 {
		if r == nil {
			r = Resources{}
		}
		r[c.Name] = corev1.ResourceRequirements{Requests: requests, Limits: limits}
	}
	return r
}

func computing(list corev1.ResourceList) (out corev1.ResourceList) {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if q, ok := list[name]; ok {
			if out == nil {
				out = corev1.ResourceList{}
			}
			out[name] = q
		}
	}
	return out
}

// Equal compares by amount, however it is written.
func (r Resources) Equal(other Resources) bool { return maps.EqualFunc(r, other, sameResources) }

func sameResources(a, b corev1.ResourceRequirements) bool {
	same := func(x, y resource.Quantity) bool { return x.Cmp(y) == 0 }
	return maps.EqualFunc(a.Requests, b.Requests, same) && maps.EqualFunc(a.Limits, b.Limits, same)
}

// WithResources is the pod with other CPU and memory for the containers that r
// names: the pod itself if that changes nothing, else a copy.
func WithResources(pod *corev1.Pod, r Resources) *corev1.Pod {
	now := ResourcesOf(pod)
	if maps.EqualFunc(now, r, sameResources) || !slices.ContainsFunc(slices.Collect(maps.Keys(r)), func(name string) bool {
		own, ok := now[name]
		return ok && !sameResources(own, r[name])
	}) {
		return pod
	}
	pod = pod.DeepCopy()
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			own, ok := r[list[i].Name]
			if _, named := now[list[i].Name]; !ok || !named {
				continue
			}
			maps.Copy(list[i].Resources.Requests, own.Requests)
			maps.Copy(list[i].Resources.Limits, own.Limits)
		}
	}
	return pod
}

// most is for each amount the larger of the two.
func most(a, b Resources) Resources {
	out := maps.Clone(a)
	for name, y := range b {
		x := out[name]
		out[name] = corev1.ResourceRequirements{Requests: larger(x.Requests, y.Requests), Limits: larger(x.Limits, y.Limits)}
	}
	return out
}

func larger(a, b corev1.ResourceList) corev1.ResourceList {
	out := maps.Clone(b)
	for name, q := range a {
		if other, ok := b[name]; !ok || other.Cmp(q) < 0 {
			if out == nil {
				out = corev1.ResourceList{}
			}
			out[name] = q
		}
	}
	return out
}

// Resize is what the room says of resources that differ from the allocated.
type Resize struct{ Reason, Message string } // Deferred or Infeasible; zero: not asked, or granted

// Sizes are what the pod's resources are, as far as it may differ from the spec.
type Sizes struct {
	Allocated  Resources         `json:",omitempty"` // what the room holds for the pod
	Pod        Resources         `json:",omitempty"` // what the pod's cgroup was made for
	Containers map[string]Actual `json:",omitempty"` // by name: of the newest instance
	Resizing   int64             `json:",omitempty"` // generation of the resize under way
}

// Actual is what one instance was last given.
type Actual struct {
	Attempt   uint32
	Resources corev1.ResourceRequirements
	Unsure    bool `json:",omitempty"` // a change was begun, and may or may not have been carried out
}

func (s Sizes) clone() Sizes { return s } // its maps are replaced, never changed

// allocate makes what the room holds the truth for the rest of the call.
func (d *decider) allocate() {
	s := &d.mem.Sizes
	d.want = ResourcesOf(d.Pod)
	if d.Verdict.State != OK {
		return
	}
	was := s.Allocated
	switch {
	case d.Reserved != nil:
		s.Allocated = d.Reserved
	case was == nil:
		s.Allocated = d.want
	}
	if !d.want.Equal(s.Allocated) {
		d.Pod = WithResources(d.Pod, s.Allocated)
		d.want = ResourcesOf(d.Pod)
	}
	if was != nil && !was.Equal(s.Allocated) {
		s.Resizing = d.desired.Generation
		d.why(normal("ResizeStarted", "", d.resizeMessage("Pod resize started", "")))
	}
	if r := d.Input.Resize; r.Reason != "" && d.pending() {
		d.why(warning("Resize"+r.Reason, "", d.resizeMessage("Pod resize "+r.Reason, r.Message)))
	}
}

// pending reports whether more or less is desired than is allocated.
func (d *decider) pending() bool { return d.Pod != d.desired && d.mem.End == nil && !d.terminal() }

// resizeMessage is an event's text as upstream writes it: the resources as JSON.
func (d *decider) resizeMessage(what, problem string) string {
	type one struct {
		Name      string                      `json:"name"`
		Resources corev1.ResourceRequirements `json:"resources"`
	}
	var all struct {
		Init       []one  `json:"initContainers,omitempty"`
		Mains      []one  `json:"containers,omitempty"`
		Generation int64  `json:"generation"`
		Error      string `json:"error,omitempty"`
	}
	all.Generation, all.Error = d.desired.Generation, problem
	for i := range d.desired.Spec.InitContainers {
		if c := &d.desired.Spec.InitContainers[i]; podspec.IsSidecar(c) {
			all.Init = append(all.Init, one{c.Name, c.Resources})
		}
	}
	for i := range d.desired.Spec.Containers {
		c := &d.desired.Spec.Containers[i]
		all.Mains = append(all.Mains, one{c.Name, c.Resources})
	}
	text, err := json.Marshal(all)
	if err != nil {
		return what
	}
	return fmt.Sprintf("%s: %s", what, text)
}

// actual is what an instance was last given; one of which nothing is known was
// made with what is allocated.
func (d *decider) actual(k Container, want corev1.ResourceRequirements) Actual {
	a, known := d.mem.Sizes.Containers[k.Name]
	if !known || a.Attempt != k.Attempt {
		a = Actual{Attempt: k.Attempt, Resources: want}
	}
	if r, seen := d.Seen.Resized[k.ID]; seen {
		a.Resources, a.Unsure = r, false
	}
	if _, busy := d.Busy[ResizeContainer{ID: k.ID}.Key()]; busy {
		a.Unsure = true
	}
	return a
}

// resize brings the pod's cgroup and its running containers to what is
// allocated: what grows from the outside in, what shrinks from the inside out.
func (d *decider) resize() {
	s, want := &d.mem.Sizes, d.want
	switch {
	case !d.Seen.Cgroup:
		s.Pod = want // it is being made
	case d.Seen.Sized != nil:
		s.Pod = d.Seen.Sized
	case s.Pod == nil:
		s.Pod = want
	}
	pending, hold := d.unlike(want)
	switch {
	case len(pending) > 0 && !most(s.Pod, hold).Equal(s.Pod): // first the pod's cgroup holds both
		d.configure(ResizeCgroup{hold})
	case len(pending) > 0:
		for _, c := range pending {
			k, _ := d.newest(c.Name)
			d.resizeContainer(c, k, d.actual(k, want[c.Name]), want[c.Name])
		}
	case d.startUnderWay(): // maybe as it was to be before
	case !s.Pod.Equal(want):
		d.configure(ResizeCgroup{want})
	case s.Resizing != 0:
		s.Resizing = 0
		d.why(normal("ResizeCompleted", "", d.resizeMessage("Pod resize completed", "")))
	}
}

// unlike returns the running containers that have other resources than wanted,
// and what holds both.
func (d *decider) unlike(want Resources) (pending []spec, hold Resources) {
	hold = want
	for _, c := range d.specs {
		k, seen := d.newest(c.Name)
		r, sized := want[c.Name]
		if !sized || !seen || k.State != Running {
			continue
		}
		now := d.actual(k, r)
		if !now.Unsure && sameResources(now.Resources, r) {
			d.sized(c.Name, now)
			continue
		}
		pending = append(pending, c)
		hold = most(hold, Resources{c.Name: now.Resources})
	}
	return pending, hold
}

func (d *decider) startUnderWay() bool {
	for _, a := range d.Busy {
		if _, ok := a.(StartContainer); ok {
			return true
		}
	}
	return false
}

// resizeContainer changes a running container, or ends it if its policy asks
// for a restart.
func (d *decider) resizeContainer(c spec, k Container, now Actual, want corev1.ResourceRequirements) {
	for _, p := range c.ResizePolicy {
		a, b := now.Resources, want
		differs := changed(a.Requests, b.Requests, p.ResourceName) || changed(a.Limits, b.Limits, p.ResourceName)
		if differs && p.RestartPolicy == corev1.RestartContainer {
			r := d.mem.Restarts[k.Name]
			r.Replaces = k.ID
			d.mem.Restarts[k.Name] = r
			d.end(k, "Resized", d.Now.Add(d.grace()), d.grace())
			return
		}
	}
	now.Unsure = true
	d.sized(c.Name, now)
	d.build(ResizeContainer{ID: k.ID, Name: k.Name, Resources: want})
}

// sized keeps what is known of a container's size, if it is news.
func (d *decider) sized(name string, now Actual) {
	s := &d.mem.Sizes
	was, known := s.Containers[name]
	if !known || was.Attempt != now.Attempt || was.Unsure != now.Unsure || !sameResources(was.Resources, now.Resources) {
		s.Containers = set(s.Containers, name, now)
	}
}

func changed(a, b corev1.ResourceList, name corev1.ResourceName) bool {
	x, y := a[name], b[name]
	return x.Cmp(y) != 0
}

// resizeConditions are there while there is something to tell.
func (d *decider) resizeConditions() (out []corev1.PodCondition) {
	if d.terminal() || d.mem.End != nil {
		return nil
	}
	if r := d.Input.Resize; r.Reason != "" && d.pending() {
		out = append(out, corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: r.Reason, Message: r.Message})
	}
	if d.mem.Sizes.Resizing != 0 {
		c := corev1.PodCondition{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue}
		for _, f := range d.Failed {
			switch f.Action.(type) {
			case ResizeContainer, ResizeCgroup:
				if c.Message == "" || f.Message < c.Message {
					c.Reason, c.Message = corev1.PodReasonError, f.Message
				}
			}
		}
		out = append(out, c)
	}
	return out
}
