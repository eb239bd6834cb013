package podspec

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podresources "k8s.io/component-helpers/resource"
)

// Requests returns the effective requests of the pod: for each resource the maximum of what its
// init containers need at any time and of the sum of its sidecars and main containers. Pod-level
// requests take precedence, and the overhead is added. The caller owns the list.
func Requests(pod *corev1.Pod) corev1.ResourceList {
	return podresources.PodRequests(withOwnResources(pod), podresources.PodResourcesOptions{})
}

// Limits returns the effective limits of the pod, computed like Requests. The overhead is added to
// limited resources. A resource that no container limits is not in the list. See Limited for
// resources limited by some containers only.
func Limits(pod *corev1.Pod) corev1.ResourceList {
	return podresources.PodLimits(withOwnResources(pod), podresources.PodResourcesOptions{})
}

// withOwnResources returns the pod with a copy of its pod-level resources. The library adds the
// overhead to them in place if a quantity exceeds 64 bits.
func withOwnResources(pod *corev1.Pod) *corev1.Pod {
	if pod.Spec.Resources == nil || len(pod.Spec.Overhead) == 0 {
		return pod
	}
	own := &corev1.Pod{Spec: pod.Spec}
	own.Spec.Resources = pod.Spec.Resources.DeepCopy()
	return own
}

// containerRequests returns the effective requests of the containers of a pod, without pod-level
// requests and overhead.
func containerRequests(spec *corev1.PodSpec) corev1.ResourceList {
	return podresources.AggregateContainerRequests(&corev1.Pod{Spec: *spec}, podresources.PodResourcesOptions{})
}

// containerLimits is to limits what containerRequests is to requests.
func containerLimits(spec *corev1.PodSpec) corev1.ResourceList {
	return podresources.AggregateContainerLimits(&corev1.Pod{Spec: *spec}, podresources.PodResourcesOptions{})
}

// Limited reports whether the pod is limited in a resource: at pod level, or because every
// container is.
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

// InheritedLimits returns the pod-level limits for a container that has no limits of its own. A
// zero limit is no limit.
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

// add adds to a list. Quantities beyond 64 bits share memory when they are copied as values, and are
// copied deeply before they change.
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

// maxInto raises every quantity to at least that of the other list.
func maxInto(to, other corev1.ResourceList) {
	for name, q := range other {
		if have, ok := to[name]; !ok || have.Cmp(q) < 0 {
			to[name] = q.DeepCopy()
		}
	}
}

// QOSClass is the QoS class of the pod: Guaranteed if every container has CPU and memory limits
// with equal requests, BestEffort if there are neither requests nor limits of them, else Burstable.
// Pod-level resources, if set, take the place of those of the containers.
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

// SwapAllowed reports whether a container may use swap on a node with LimitedSwap: a container of a
// Burstable pod that is not critical, unless its memory request equals its limit or is zero.
func SwapAllowed(pod *corev1.Pod, c *corev1.Container, standalone bool) bool {
	limit := c.Resources.Limits[corev1.ResourceMemory]
	request, named := c.Resources.Requests[corev1.ResourceMemory]
	if !named {
		request = limit
	}
	return request.Sign() > 0 && request.Cmp(limit) != 0 && QOSClass(pod) == corev1.PodQOSBurstable &&
		!IsCritical(pod, standalone)
}

// cpuAndMemory returns the CPU and memory of a list that are greater than zero.
func cpuAndMemory(list corev1.ResourceList) corev1.ResourceList {
	var out corev1.ResourceList // allocated on demand: called in every sync
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

// IsExtended reports whether a resource is an extended resource: its name has a domain that does
// not belong to Kubernetes.
func IsExtended(name corev1.ResourceName) bool {
	domain, _, prefixed := strings.Cut(string(name), "/")
	return prefixed && domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io") &&
		!strings.HasPrefix(domain, "requests.")
}

// EmptyDirSizeLimit is the disk usage of a volume at which its pod is evicted, or nil. An emptyDir
// in memory is limited by its own file system.
func EmptyDirSizeLimit(vol *corev1.Volume) *resource.Quantity {
	e := vol.EmptyDir
	if e == nil || e.Medium != corev1.StorageMediumDefault || e.SizeLimit == nil || e.SizeLimit.Sign() <= 0 {
		return nil
	}
	return e.SizeLimit
}

// HasEmptyDirSizeLimit reports whether a volume of the pod has an EmptyDirSizeLimit.
func HasEmptyDirSizeLimit(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return EmptyDirSizeLimit(&v) != nil })
}

// EphemeralStorageLimit is the ephemeral storage usage at which the pod is evicted: the sum of the
// limits of its containers, even if not all containers have one, as upstream. It returns false if
// there is no limit.
func EphemeralStorageLimit(pod *corev1.Pod) (resource.Quantity, bool) {
	q, ok := Limits(pod)[corev1.ResourceEphemeralStorage]
	return q, ok && q.Sign() > 0
}
