package podspec

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
)

// RequestsWithStatus returns the requests that a pod bound to a node may hold while it is resized:
// for each container, and for the pod itself, the maximum of the desired, allocated and actual
// requests. The desired requests do not count if the node reported the resize as infeasible.
// Without a status it is the same as Requests.
func RequestsWithStatus(pod *corev1.Pod) corev1.ResourceList {
	return Requests(withStatusResources(pod))
}

// LimitsWithStatus is to Limits what RequestsWithStatus is to Requests.
func LimitsWithStatus(pod *corev1.Pod) corev1.ResourceList {
	return Limits(withStatusResources(pod))
}

// withStatusResources returns the pod with the resources that count: the pod itself if its status
// does not differ, else a copy.
func withStatusResources(pod *corev1.Pod) *corev1.Pod {
	st, infeasible := &pod.Status, infeasible(pod)
	out := pod
	change := func() *corev1.Pod {
		if out == pod {
			out = &corev1.Pod{Spec: *pod.Spec.DeepCopy()}
		}
		return out
	}
	count := func(
		specs []corev1.Container, of func(*corev1.PodSpec) []corev1.Container, statuses []corev1.ContainerStatus,
	) {
		for i := range specs {
			for j := range statuses {
				if s := &statuses[j]; s.Name == specs[i].Name && s.Resources != nil &&
					differs(specs[i].Resources, s.AllocatedResources, *s.Resources) {
					own := &of(&change().Spec)[i].Resources
					*own = counted(*own, s.AllocatedResources, *s.Resources, infeasible)
				}
			}
		}
	}
	count(
		pod.Spec.Containers,
		func(s *corev1.PodSpec) []corev1.Container { return s.Containers },
		st.ContainerStatuses,
	)
	count(
		pod.Spec.InitContainers,
		func(s *corev1.PodSpec) []corev1.Container { return s.InitContainers },
		st.InitContainerStatuses,
	)
	if r := pod.Spec.Resources; r != nil && st.Resources != nil && differs(*r, st.AllocatedResources, *st.Resources) {
		own := change().Spec.Resources
		*own = counted(*own, st.AllocatedResources, *st.Resources, infeasible)
	}
	return out
}

// differs reports whether the allocated or actual CPU or memory differs from the desired one.
func differs(
	spec corev1.ResourceRequirements,
	allocated corev1.ResourceList,
	actual corev1.ResourceRequirements,
) bool {
	for _, name := range resizable {
		want, limit := spec.Requests[name], spec.Limits[name]
		kept, now, bound := allocated[name], actual.Requests[name], actual.Limits[name]
		if want.Cmp(kept) != 0 || want.Cmp(now) != 0 || limit.Cmp(bound) != 0 {
			return true
		}
	}
	return false
}

// resizable are the resources that can be resized in place.
var resizable = [...]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}

// counted returns the maximum of the resources that a container, or the pod itself, may hold.
func counted(
	spec corev1.ResourceRequirements,
	allocated corev1.ResourceList,
	actual corev1.ResourceRequirements,
	infeasible bool,
) corev1.ResourceRequirements {
	desired := func(list corev1.ResourceList) corev1.ResourceList {
		out := maps.Clone(list)
		if out == nil {
			out = corev1.ResourceList{}
		}
		for _, name := range resizable {
			if infeasible {
				delete(out, name)
			}
		}
		return out
	}
	out := corev1.ResourceRequirements{Requests: desired(spec.Requests), Limits: desired(spec.Limits)}
	for _, list := range []corev1.ResourceList{allocated, actual.Requests} {
		maxInto(out.Requests, cpuAndMemory(list))
	}
	maxInto(out.Limits, cpuAndMemory(actual.Limits))
	return out
}

// infeasible reports whether the node reported the current resize of the pod as infeasible.
func infeasible(pod *corev1.Pod) bool {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodResizePending && c.Status == corev1.ConditionTrue {
			of := c.ObservedGeneration
			return c.Reason == corev1.PodReasonInfeasible && (of == 0 || of >= pod.Generation)
		}
	}
	return false
}
