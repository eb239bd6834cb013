package podspec

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// roundUp rounds to thousandths, the smallest fraction that the API stores.
func roundUp(list corev1.ResourceList) {
	for name, q := range list {
		q.RoundUp(resource.Milli)
		list[name] = q
	}
}

// requestLimits sets missing requests to the limits.
func requestLimits(r *corev1.ResourceRequirements) {
	if r.Limits == nil {
		return
	}
	if r.Requests == nil {
		r.Requests = corev1.ResourceList{}
	}
	fill(r.Requests, r.Limits, func(corev1.ResourceName) bool { return true })
}

// fill adds the wanted resources that are missing in to.
func fill(to, from corev1.ResourceList, wanted func(corev1.ResourceName) bool) {
	for name, q := range from {
		if _, set := to[name]; !set && wanted(name) {
			to[name] = q.DeepCopy()
		}
	}
}

// defaultPodResources completes partially set pod-level resources from those of the containers:
// limits first (of huge pages always, of CPU and memory if the pod has no limit), then the
// requests, which depend on them. An API server that sets defaults once sets such requests only
// when it reads the pod again.
func defaultPodResources(pod *corev1.Pod) {
	r := pod.Spec.Resources
	if r == nil {
		return
	}
	roundUp(r.Limits)
	roundUp(r.Requests)
	if len(r.Limits) == 0 && len(r.Requests) == 0 {
		return
	}
	limits, requests := r.Limits.DeepCopy(), r.Requests.DeepCopy()
	if limits == nil {
		limits = corev1.ResourceList{}
	}
	if requests == nil {
		requests = corev1.ResourceList{}
	}
	sumLimits := containerLimits(&pod.Spec)
	fill(limits, sumLimits, func(n corev1.ResourceName) bool {
		_, requested := requests[n]
		return isHugePages(n) && !requested
	})
	if len(limits) == 0 && hasPodLevel(requests) {
		fill(limits, sumLimits, func(n corev1.ResourceName) bool { return overcommittable(n) && Limited(pod, n) })
	}
	if len(limits) > 0 {
		fill(requests, containerRequests(&pod.Spec), overcommittable)
		fill(requests, limits, podLevel)
		r.Limits = limits
	}
	if len(requests) > 0 {
		r.Requests = requests
	}
}

// podLevel reports whether the resource may be set at pod level.
func podLevel(n corev1.ResourceName) bool {
	return n == corev1.ResourceCPU || n == corev1.ResourceMemory || isHugePages(n)
}

// overcommittable reports whether the pod-level limit of the resource may exceed the request.
func overcommittable(n corev1.ResourceName) bool {
	return n == corev1.ResourceCPU || n == corev1.ResourceMemory
}

func isHugePages(n corev1.ResourceName) bool {
	return strings.HasPrefix(string(n), corev1.ResourceHugePagesPrefix)
}

func hasPodLevel(list corev1.ResourceList) bool {
	for n := range list {
		if podLevel(n) {
			return true
		}
	}
	return false
}
