package admission

import (
	"fmt"
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/podspec"
)

// Resources rejects the new resources of a running pod, if the node has too few in addition to
// those in used.
func Resources(node Node, used Used, pod *corev1.Pod) []Rejection { return resources(node, used, pod) }

// resources rejects a pod for which the node has too few resources: pods first, then CPU, memory
// and ephemeral storage, then all others by name.
func resources(node Node, used Used, pod *corev1.Pod) []Rejection {
	var out []Rejection
	if r, short := shortage(node, corev1.ResourcePods, *resource.NewQuantity(1, resource.DecimalSI),
		*resource.NewQuantity(int64(used.Pods), resource.DecimalSI)); short {
		out = append(out, r)
	}
	requests := podspec.Requests(pod)
	for _, name := range inOrder(requests) {
		request := requests[name]
		if request.Sign() <= 0 {
			continue
		}
		if _, listed := node.Allocatable[name]; !listed && node.AllowUnlistedExtended && podspec.IsExtended(name) {
			continue
		}
		if r, short := shortage(node, name, request, used.Requests[name]); short {
			out = append(out, r)
		}
	}
	return out
}

// inOrder returns the names in order of precedence.
func inOrder(list corev1.ResourceList) []corev1.ResourceName {
	first := []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage}
	out := make([]corev1.ResourceName, 0, len(list))
	for _, name := range first {
		if _, ok := list[name]; ok {
			out = append(out, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(list)) {
		if !slices.Contains(first, name) {
			out = append(out, name)
		}
	}
	return out
}

// shortage compares exactly. Quantities may exceed the range of the numbers in a rejection.
func shortage(node Node, name corev1.ResourceName, request, used resource.Quantity) (Rejection, bool) {
	capacity := node.Allocatable[name]
	if all := sum(used, request); all.Cmp(capacity) <= 0 {
		return Rejection{}, false
	}
	r := Rejection{
		Reason:    "OutOf" + string(name),
		Resource:  name,
		Requested: int64Value(name, request), Used: int64Value(name, used), Capacity: int64Value(name, capacity),
		// More than the capacity never becomes free, except for devices whose plugin has not
		// registered yet.
		Recoverable: request.Cmp(capacity) <= 0 || podspec.IsExtended(name),
	}
	r.Message = fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
		name, r.Requested, r.Used, r.Capacity)
	return r, true
}

// int64Value is a quantity in the unit of messages, limited to the largest number.
func int64Value(name corev1.ResourceName, q resource.Quantity) int64 {
	scale := int64(1)
	if name == corev1.ResourceCPU {
		scale = 1000
	}
	if q.Cmp(*resource.NewQuantity(math.MaxInt64/scale, resource.DecimalSI)) > 0 {
		return math.MaxInt64
	}
	if name == corev1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}
