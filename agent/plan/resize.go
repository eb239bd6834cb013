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

// In-place resize of CPU and memory:
//
//	desired (the spec) ──reserved──► allocated ──► pod cgroup, as far as it grows
//	   └──no──► PodResizePending          ──► containers, or their restart
//	                                      ──► pod cgroup, as far as it shrinks
//	                                      ──► actual: the resize is completed
//
// All decisions except the request to the allocator use the allocated resources.

// Resources holds the CPU and memory of containers by name, and of the pod itself under PodLevel.
type Resources map[string]corev1.ResourceRequirements

// PodLevel is the key of spec.resources of the pod.
const PodLevel = ""

// ResourcesOf returns the resources of a pod that can change in place: CPU and memory of its app
// containers, its sidecars and the pod itself. Containers without CPU and memory are not included.
// The result is never nil.
func ResourcesOf(pod *corev1.Pod) Resources {
	resources := Resources{}
	eachResizable(pod, func(name string, r *corev1.ResourceRequirements) {
		if requests, limits := cpuAndMemory(r.Requests), cpuAndMemory(r.Limits); len(requests)+len(limits) > 0 {
			resources[name] = corev1.ResourceRequirements{Requests: requests, Limits: limits}
		}
	})
	return resources
}

// eachResizable calls f for the pod and each container whose CPU and memory can change in place.
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

// resizable lists the resources that can change in place.
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

// Equal compares amounts regardless of their notation. An entry without amounts equals a missing
// entry.
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

// WithResources returns the pod with exactly the CPU and memory of r. It returns the pod itself if
// nothing changes or r is nil (unknown), otherwise a copy.
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
		pod.Spec.Resources = nil // an empty value would override the resources of the containers
	}
	return pod
}

// replaceCPUAndMemory sets CPU and memory as in r and preserves other resources.
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

// ResizeForbidden returns why an admitted pod can never be resized from was to is, regardless of
// the node, or "". Requests and limits cannot be removed and the QoS class cannot change, because
// the kernel settings of existing containers depend on them.
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

// maxResources returns the smallest resources that contain both.
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

// maxRequests returns the larger of the two amounts for each resource.
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

// maxLimits returns the larger of the two limits for each resource. A resource without a limit in
// one of them has no limit in the result.
func maxLimits(a, b corev1.ResourceList) corev1.ResourceList {
	out := maxRequests(a, b)
	maps.DeleteFunc(out, func(name corev1.ResourceName, _ resource.Quantity) bool {
		_, here := a[name]
		_, there := b[name]
		return !here || !there
	})
	return out
}

// ResizeStatus is the state of a resize that is not granted: PodReasonDeferred or
// PodReasonInfeasible. Zero: not decided yet, or granted.
type ResizeStatus struct{ Reason, Message string }

// applyAllocation replaces the resources of d.Pod by the allocated ones.
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

// resizePending reports whether the desired resources differ from the allocated ones.
func (d *decider) resizePending() bool {
	return d.Pod != d.desired && d.mem.Termination == nil && !d.terminal()
}

// resizeUndecided reports whether the allocator has not yet decided on the desired resources.
func (d *decider) resizeUndecided() bool { return d.resizePending() && d.Input.Resize.Reason == "" }

// observedGeneration returns the generation that the status reports. While the allocator has not
// decided on new resources it remains at the previous generation. Otherwise a client that waits for
// the generation would take the previous allocation for the result.
func (d *decider) observedGeneration() int64 {
	if d.resizeUndecided() && len(d.mem.Conditions) > 0 {
		return d.mem.Conditions[0].ObservedGeneration // of the previous status
	}
	return d.Pod.Generation
}

// resizeMessage returns the event message in upstream's format, with the resources as JSON.
func (d *decider) resizeMessage(message, problem string) string {
	type one struct {
		Name      string                      `json:"name"`
		Resources corev1.ResourceRequirements `json:"resources"`
	}
	var all struct {
		Init       []one  `json:"initContainers,omitempty"`
		Containers []one  `json:"containers,omitempty"`
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
		all.Containers = append(all.Containers, one{c.Name, c.Resources})
	}
	text, err := json.Marshal(all)
	if err != nil {
		return message
	}
	return fmt.Sprintf("%s: %s", message, text)
}

// resize brings the pod cgroup and the running containers to the allocated resources. The cgroup
// grows before the containers and shrinks after them.
func (d *decider) resize() {
	s, want := &d.mem.Resources, d.allocated
	s.PodLevel = d.podLevelResources()
	pending, cgroup := d.containersToResize(want)
	if d.startInProgress() { // possibly with the previous resources
		cgroup = maxResources(s.Cgroup, cgroup)
	}
	switch {
	case len(pending) > 0 && (d.Observed.CgroupUncertain || !maxResources(s.Cgroup, cgroup).Equal(s.Cgroup)):
		// the pod cgroup first has to hold both
		d.addConfigure(ResizeCgroup{cgroup})
	case len(pending) > 0:
		for _, c := range pending {
			k, _ := d.newest(c.Name)
			d.resizeContainer(c, k, d.actualResourcesOf(k, d.previous), want.ForContainer(c.Name))
		}
	case d.startInProgress(): // possibly with the previous resources
	case d.Observed.CgroupUncertain || !s.Cgroup.Equal(want):
		d.addConfigure(ResizeCgroup{want})
	case s.ResizeGeneration != 0:
		s.ResizeGeneration = 0
		d.report(normal("ResizeCompleted", "", d.resizeMessage("Pod resize completed", "")))
	}
}

// containersToResize returns the running containers whose resources differ from want, and the
// resources that the cgroup must hold meanwhile.
func (d *decider) containersToResize(want Resources) (pending []spec, cgroup Resources) {
	include := func(name string, now corev1.ResourceRequirements) {
		cgroup = maps.Clone(cgroup)
		maps.Copy(cgroup, maxResources(Resources{name: cgroup[name]}, Resources{name: now}))
	}
	cgroup = want
	if own, has := d.mem.Resources.Cgroup[PodLevel]; has || d.Pod.Spec.Resources != nil {
		include(PodLevel, own)
	}
	for _, c := range d.specs {
		k, exists := d.newest(c.Name)
		if !c.resizable() || !exists || k.State != Running {
			continue
		}
		now := d.actualResourcesOf(k, d.previous)
		d.recordResources(c.Name, now)
		if !now.Uncertain && now.Equal(want.ForContainer(c.Name)) {
			continue
		}
		pending = append(pending, c)
		include(c.Name, now.Resources)
	}
	return pending, cgroup
}

func (d *decider) startInProgress() bool {
	for _, a := range d.InProgress {
		if _, ok := a.(StartContainer); ok {
			return true
		}
	}
	return false
}

// resizeContainer resizes a running container, or stops it if its resize policy requires a restart.
// The policy applies to the container's own resources only.
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

// resizeConditions returns the conditions PodResizePending and PodResizeInProgress if they apply.
func (d *decider) resizeConditions() (out []corev1.PodCondition) {
	if d.terminal() || d.mem.Termination != nil {
		return nil
	}
	switch r := d.Input.Resize; {
	case d.resizeUndecided(): // the previous condition remains, also after a restart of the agent
		for _, c := range d.mem.Conditions {
			if c.Type == corev1.PodResizePending {
				out = append(out, c)
			}
		}
	case d.resizePending():
		out = append(out, corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue,
			Reason:  r.Reason,
			Message: r.Message})
	}
	if d.mem.Resources.ResizeGeneration != 0 {
		c := corev1.PodCondition{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue,
			ObservedGeneration: d.mem.Resources.ResizeGeneration}
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
