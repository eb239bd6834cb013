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

// Resources are the CPU and memory of containers, by name, and under WholePod
// those of the pod itself.
type Resources map[string]corev1.ResourceRequirements

// PodLevel is the name of what the pod itself asks for in spec.resources.
const PodLevel = ""

// ResourcesOf returns what may change in place of a pod: the CPU and memory of
// its mains, its sidecars and the pod itself. Other containers and resources are
// not in it, nor are those that have none of either. It is never nil: to have
// nothing is known, too.
func ResourcesOf(pod *corev1.Pod) Resources {
	out := Resources{}
	eachResizable(pod, func(name string, r *corev1.ResourceRequirements) {
		if requests, limits := cpuAndMemory(r.Requests), cpuAndMemory(r.Limits); len(requests)+len(limits) > 0 {
			out[name] = corev1.ResourceRequirements{Requests: requests, Limits: limits}
		}
	})
	return out
}

// eachResizable calls f for all of a pod whose CPU and memory may change in place.
func eachResizable(pod *corev1.Pod, f func(name string, r *corev1.ResourceRequirements)) {
	if r := pod.Spec.Resources; r != nil {
		f(PodLevel, r)
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; podspec.IsSidecar(c) {
			f(c.Name, &c.Resources)
		}
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		f(c.Name, &c.Resources)
	}
}

// resizable are the resources that may change in place.
var resizable = [...]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}

func cpuAndMemory(list corev1.ResourceList) (out corev1.ResourceList) {
	for _, name := range resizable {
		if q, ok := list[name]; ok {
			if out == nil {
				out = corev1.ResourceList{}
			}
			out[name] = q
		}
	}
	return out
}

// Equal compares by amount, however it is written. To have no amounts and not to
// be named is the same.
func (r Resources) Equal(other Resources) bool {
	for name, own := range r {
		if !sameResources(own, other[name]) {
			return false
		}
	}
	for name, own := range other {
		if _, compared := r[name]; !compared && !sameResources(own, corev1.ResourceRequirements{}) {
			return false
		}
	}
	return true
}

func sameResources(a, b corev1.ResourceRequirements) bool {
	same := func(x, y resource.Quantity) bool { return x.Cmp(y) == 0 }
	return maps.EqualFunc(a.Requests, b.Requests, same) && maps.EqualFunc(a.Limits, b.Limits, same)
}

// WithResources is the pod with exactly the CPU and memory that r has, no more
// and no less: the pod itself if that changes nothing or r is nil, which knows
// nothing, else a copy.
func WithResources(pod *corev1.Pod, r Resources) *corev1.Pod {
	if r == nil {
		return pod
	}
	lacks := pod.Spec.Resources == nil && len(r[PodLevel].Requests)+len(r[PodLevel].Limits) > 0
	same := !lacks
	eachResizable(pod, func(name string, own *corev1.ResourceRequirements) {
		now := corev1.ResourceRequirements{Requests: cpuAndMemory(own.Requests), Limits: cpuAndMemory(own.Limits)}
		same = same && sameResources(now, r[name])
	})
	if same {
		return pod
	}
	pod = pod.DeepCopy()
	if lacks {
		pod.Spec.Resources = &corev1.ResourceRequirements{}
	}
	eachResizable(pod, func(name string, own *corev1.ResourceRequirements) { replaceCPUAndMemory(own, r[name]) })
	if own := pod.Spec.Resources; own != nil && len(own.Requests)+len(own.Limits)+len(own.Claims) == 0 {
		pod.Spec.Resources = nil // set but empty it would count instead of what the containers have
	}
	return pod
}

// replaceCPUAndMemory gives one the CPU and memory of r, and leaves it its other resources.
func replaceCPUAndMemory(one *corev1.ResourceRequirements, r corev1.ResourceRequirements) {
	list := func(all, own corev1.ResourceList) corev1.ResourceList {
		for _, name := range resizable {
			delete(all, name)
		}
		if all == nil && len(own) > 0 {
			all = corev1.ResourceList{}
		}
		maps.Copy(all, own)
		return all
	}
	one.Requests, one.Limits = list(one.Requests, r.Requests), list(one.Limits, r.Limits)
}

// ResizeForbidden says why a pod that has been let in can never be resized so, whatever
// the node has; empty: it can. No amount is taken away whole, and the quality of
// service stays, because the kernel was told of both when the containers were made.
func ResizeForbidden(was, is *corev1.Pod) string {
	before, now := ResourcesOf(was), ResourcesOf(is)
	for _, name := range slices.Sorted(maps.Keys(before)) {
		what := "container " + name
		if name == PodLevel {
			what = "pod"
		}
		for _, part := range []struct {
			name   string
			of, in corev1.ResourceList
		}{{"limits", before[name].Limits, now[name].Limits}, {"requests", before[name].Requests, now[name].Requests}} {
			for _, amount := range resizable {
				_, had := part.of[amount]
				if _, has := part.in[amount]; had && !has {
					return fmt.Sprintf("%s: resource %s cannot be removed (%s)", what, part.name, amount)
				}
			}
		}
	}
	if podspec.QOSClass(was) != podspec.QOSClass(is) {
		return "Pod QOS Class may not change as a result of resizing"
	}
	return ""
}

// maxResources is what leaves room for both.
func maxResources(a, b Resources) Resources {
	out := Resources{}
	for _, r := range []Resources{a, b} {
		for name := range r {
			out[name] = corev1.ResourceRequirements{
				Requests: maxRequests(a[name].Requests, b[name].Requests),
				Limits:   maxLimits(a[name].Limits, b[name].Limits),
			}
		}
	}
	return out
}

// maxRequests is for each amount the larger of the two.
func maxRequests(a, b corev1.ResourceList) corev1.ResourceList {
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

// maxLimits is for each limit the larger of the two. What one of them does not limit
// is not limited: a limit that is added takes, it does not give.
func maxLimits(a, b corev1.ResourceList) corev1.ResourceList {
	out := maxRequests(a, b)
	maps.DeleteFunc(out, func(name corev1.ResourceName, _ resource.Quantity) bool {
		_, here := a[name]
		_, there := b[name]
		return !here || !there
	})
	return out
}

// ResizeStatus is what the room says of resources that differ from the allocated.
type ResizeStatus struct{ Reason, Message string } // Deferred or Infeasible; zero: not asked, or granted

// applyAllocation makes what the room holds the truth for the rest of the call.
func (d *decider) applyAllocation() {
	s := &d.mem.Resources
	d.allocated = ResourcesOf(d.Pod)
	d.previous = d.allocated
	if d.Verdict.State != Admitted {
		return
	}
	was := s.Allocated
	switch {
	case d.Reserved != nil:
		s.Allocated = d.Reserved
	case was == nil:
		s.Allocated = d.allocated
	}
	d.previous = s.Allocated
	if was != nil {
		d.previous = was
	}
	if !d.allocated.Equal(s.Allocated) {
		d.Pod = WithResources(d.Pod, s.Allocated)
		d.allocated = ResourcesOf(d.Pod)
	}
	if was != nil && !was.Equal(s.Allocated) {
		s.ResizeGeneration = d.desired.Generation
		d.report(normal("ResizeStarted", "", d.resizeMessage("Pod resize started", "")))
	}
	if r := d.Input.Resize; r.Reason != "" && d.resizePending() {
		d.report(warning("Resize"+r.Reason, "", d.resizeMessage("Pod resize "+r.Reason, r.Message)))
	}
}

// resizePending reports whether more or less is desired than is allocated.
func (d *decider) resizePending() bool {
	return d.Pod != d.desired && d.mem.Termination == nil && !d.terminal()
}

// resizeUndecided reports whether the room has not yet said what it has for the pod.
func (d *decider) resizeUndecided() bool { return d.resizePending() && d.Input.Resize.Reason == "" }

// observedGeneration returns the generation of the spec that the status tells of. As long as
// the room has not answered for new resources nothing is told of them, and whoever
// waits for the generation must not take what was allocated before for the answer.
func (d *decider) observedGeneration() int64 {
	if d.resizeUndecided() && len(d.mem.Conditions) > 0 {
		return d.mem.Conditions[0].ObservedGeneration // of the last pass
	}
	return d.Pod.Generation
}

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

// resize brings the pod's cgroup and its running containers to what is
// allocated: what grows from the outside in, what shrinks from the inside out.
func (d *decider) resize() {
	s, want := &d.mem.Resources, d.allocated
	s.PodLevel = d.podLevelResources()
	pending, hold := d.containersToResize(want)
	if d.startInProgress() { // maybe of a container as it was to be before
		hold = maxResources(s.Cgroup, hold)
	}
	switch {
	case len(pending) > 0 && (d.Observed.CgroupUncertain || !maxResources(s.Cgroup, hold).Equal(s.Cgroup)): // first the pod's cgroup holds both
		d.addConfigure(ResizeCgroup{hold})
	case len(pending) > 0:
		for _, c := range pending {
			k, _ := d.newest(c.Name)
			d.resizeContainer(c, k, d.actualResourcesOf(k, d.previous), want.ForContainer(c.Name))
		}
	case d.startInProgress(): // maybe as it was to be before
	case d.Observed.CgroupUncertain || !s.Cgroup.Equal(want):
		d.addConfigure(ResizeCgroup{want})
	case s.ResizeGeneration != 0:
		s.ResizeGeneration = 0
		d.report(normal("ResizeCompleted", "", d.resizeMessage("Pod resize completed", "")))
	}
}

// containersToResize returns the running containers that have other resources than wanted,
// and what holds both.
func (d *decider) containersToResize(want Resources) (pending []spec, hold Resources) {
	holds := func(name string, now corev1.ResourceRequirements) {
		hold = maps.Clone(hold)
		maps.Copy(hold, maxResources(Resources{name: hold[name]}, Resources{name: now}))
	}
	hold = want
	if own, has := d.mem.Resources.Cgroup[PodLevel]; has || d.Pod.Spec.Resources != nil {
		holds(PodLevel, own)
	}
	for _, c := range d.specs {
		k, seen := d.newest(c.Name)
		if !c.resizable() || !seen || k.State != Running {
			continue
		}
		now := d.actualResourcesOf(k, d.previous)
		d.recordResources(c.Name, now)
		if !now.Uncertain && now.Equal(want.ForContainer(c.Name)) {
			continue
		}
		pending = append(pending, c)
		holds(c.Name, now.Resources)
	}
	return pending, hold
}

func (d *decider) startInProgress() bool {
	for _, a := range d.InProgress {
		if _, ok := a.(StartContainer); ok {
			return true
		}
	}
	return false
}

// resizeContainer changes a running container, or ends it if its policy asks
// for a restart. The policy is about what is the container's own.
func (d *decider) resizeContainer(c spec, k Container, now ActualResources, want ContainerResources) {
	for _, p := range c.ResizePolicy {
		a, b := now.Resources, want.Resources
		differs := changed(a.Requests, b.Requests, p.ResourceName) || changed(a.Limits, b.Limits, p.ResourceName)
		if differs && p.RestartPolicy == corev1.RestartContainer {
			r := d.mem.Restarts[k.Name]
			r.Replacing = k.ID
			d.mem.Restarts[k.Name] = r
			d.stop(k, stopReasonResized, d.Now.Add(d.grace()), d.grace())
			return
		}
	}
	now.Uncertain = true
	d.recordResources(c.Name, now)
	d.addBuildRun(ResizeContainer{ID: k.ID, Name: k.Name, ContainerResources: want})
}

func changed(a, b corev1.ResourceList, name corev1.ResourceName) bool {
	x, y := a[name], b[name]
	return x.Cmp(y) != 0
}

// resizeConditions are there while there is something to tell.
func (d *decider) resizeConditions() (out []corev1.PodCondition) {
	if d.terminal() || d.mem.Termination != nil {
		return nil
	}
	switch r := d.Input.Resize; {
	case d.resizeUndecided(): // what was said last holds, before a restart of the agent too
		for _, c := range d.mem.Conditions {
			if c.Type == corev1.PodResizePending {
				out = append(out, c)
			}
		}
	case d.resizePending():
		out = append(out, corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: r.Reason, Message: r.Message})
	}
	if d.mem.Resources.ResizeGeneration != 0 {
		c := corev1.PodCondition{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue, ObservedGeneration: d.mem.Resources.ResizeGeneration}
		for _, f := range d.Failures {
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
