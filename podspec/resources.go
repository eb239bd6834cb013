package podspec

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Requests is what the pod takes from the node: for each resource the larger of
// what its init containers need at the worst moment and of what its sidecars and
// main containers need together; what the pod itself requests wins over that;
// overhead comes on top. The list is the caller's own.
//
// While an init container runs, the sidecars before it run too.
func Requests(pod *corev1.Pod) corev1.ResourceList {
	list := aggregate(&pod.Spec, requestsOf)
	if r := pod.Spec.Resources; r != nil {
		overridePodLevel(list, r.Requests)
	}
	add(list, pod.Spec.Overhead)
	return list
}

// Limits adds limits up as Requests does requests. Overhead comes on top of
// what is limited; a resource that no container limits is not in the list. A
// resource that only some containers limit is: see Limited.
func Limits(pod *corev1.Pod) corev1.ResourceList {
	list := aggregate(&pod.Spec, limitsOf)
	if r := pod.Spec.Resources; r != nil {
		overridePodLevel(list, r.Limits)
	}
	for name, q := range pod.Spec.Overhead {
		if sum, limited := list[name]; limited && !sum.IsZero() {
			add(list, corev1.ResourceList{name: q})
		}
	}
	return list
}

// Limited reports whether the pod as a whole is limited in a resource: by
// itself, or because every container that may run is.
func Limited(pod *corev1.Pod, name corev1.ResourceName) bool {
	if r := pod.Spec.Resources; r != nil && podLevel(name) {
		if q, ok := r.Limits[name]; ok && !q.IsZero() {
			return true
		}
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if q, ok := list[i].Resources.Limits[name]; !ok || q.IsZero() {
				return false
			}
		}
	}
	return true
}

// InheritedLimits is what the pod limits a container to that has no limit of its
// own. No limit and one of nothing are the same.
func InheritedLimits(pod *corev1.ResourceRequirements, own corev1.ResourceList) (out corev1.ResourceList) {
	if pod == nil {
		return nil
	}
	for name, q := range pod.Limits {
		if mine := own[name]; podLevel(name) && !q.IsZero() && mine.IsZero() {
			if out == nil {
				out = corev1.ResourceList{}
			}
			out[name] = q
		}
	}
	return out
}

func requestsOf(c *corev1.Container) corev1.ResourceList { return c.Resources.Requests }
func limitsOf(c *corev1.Container) corev1.ResourceList   { return c.Resources.Limits }

// aggregate is the peak over the pod's life of what its containers need.
func aggregate(spec *corev1.PodSpec, of func(*corev1.Container) corev1.ResourceList) corev1.ResourceList {
	peak, sidecars := corev1.ResourceList{}, corev1.ResourceList{}
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		if IsSidecar(c) {
			add(sidecars, of(c))
			maxInto(peak, sidecars)
			continue
		}
		now := sidecars.DeepCopy()
		add(now, of(c))
		maxInto(peak, now)
	}
	for i := range spec.Containers {
		add(sidecars, of(&spec.Containers[i]))
	}
	maxInto(peak, sidecars)
	return peak
}

// add adds to a list. Quantities may share big numbers when copied as values,
// so they are copied deeply before they change.
func add(to, more corev1.ResourceList) {
	for name, q := range more {
		sum := to[name].DeepCopy()
		if sum.IsZero() {
			sum = q.DeepCopy()
		} else {
			sum.Add(q)
		}
		to[name] = sum
	}
}

// maxInto makes every quantity at least as large as the other list's.
func maxInto(to, other corev1.ResourceList) {
	for name, q := range other {
		if have, ok := to[name]; !ok || have.Cmp(q) < 0 {
			to[name] = q.DeepCopy()
		}
	}
}

// overridePodLevel replaces what the pod sets for itself.
func overridePodLevel(to, own corev1.ResourceList) {
	for name, q := range own {
		if podLevel(name) {
			to[name] = q.DeepCopy()
		}
	}
}

// QOSClass is the pod's quality of service: Guaranteed if CPU and memory are
// limited for every container and requested to the same amount, BestEffort if
// nothing is asked for either, else Burstable. Pod-level resources, if set,
// count instead of the containers'.
func QOSClass(pod *corev1.Pod) corev1.PodQOSClass {
	requests, limits := corev1.ResourceList{}, corev1.ResourceList{}
	allLimited := true
	count := func(r *corev1.ResourceRequirements) {
		add(requests, cpuAndMemory(r.Requests))
		own := cpuAndMemory(r.Limits)
		add(limits, own)
		allLimited = allLimited && len(own) == 2
	}
	if r := pod.Spec.Resources; r != nil && (hasPodLevel(r.Requests) || hasPodLevel(r.Limits)) {
		count(r)
	} else {
		for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for i := range list {
				count(&list[i].Resources)
			}
		}
	}
	switch {
	case len(requests) == 0 && len(limits) == 0:
		return corev1.PodQOSBestEffort
	case allLimited && len(limits) == 2 && equal(requests, limits):
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

// SwapAllowed reports whether a container may have swap where the node lets pods have any:
// one of a Burstable pod that is not critical, unless its request is its limit or it has
// none.
func SwapAllowed(pod *corev1.Pod, c *corev1.Container, standalone bool) bool {
	limit := c.Resources.Limits[corev1.ResourceMemory]
	request, named := c.Resources.Requests[corev1.ResourceMemory]
	if !named {
		request = limit
	}
	return request.Sign() > 0 && request.Cmp(limit) != 0 && QOSClass(pod) == corev1.PodQOSBurstable && !IsCritical(pod, standalone)
}

// cpuAndMemory is the CPU and memory in a list, as far as they are more than zero.
func cpuAndMemory(list corev1.ResourceList) corev1.ResourceList {
	var out corev1.ResourceList // made when needed: this is asked in every pass
	for _, name := range [...]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if q, ok := list[name]; ok && q.Sign() > 0 {
			if out == nil {
				out = make(corev1.ResourceList, 2)
			}
			out[name] = q
		}
	}
	return out
}

func equal(a, b corev1.ResourceList) bool {
	if len(a) != len(b) {
		return false
	}
	for name, q := range a {
		if other, ok := b[name]; !ok || q.Cmp(other) != 0 {
			return false
		}
	}
	return true
}

// IsExtended reports whether a resource is one that a device plugin or an
// administrator adds to a node: a name with a domain that is not Kubernetes' own.
func IsExtended(name corev1.ResourceName) bool {
	domain, _, prefixed := strings.Cut(string(name), "/")
	return prefixed && domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io") &&
		!strings.HasPrefix(domain, "requests.")
}
