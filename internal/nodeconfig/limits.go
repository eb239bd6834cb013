package nodeconfig

import (
	"runtime"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Limit is the maximum number of pods on this host.
func (p Pods) Limit() int {
	if p.PerCore == 0 {
		return p.Max
	}
	return min(p.Max, p.PerCore*runtime.NumCPU())
}

// Reserve returns the memory and disk of the hard eviction thresholds, which is not
// allocatable.
func (e Eviction) Reserve(capacity corev1.ResourceList) corev1.ResourceList {
	signals := map[string]corev1.ResourceName{"memory.available": corev1.ResourceMemory, "nodefs.available": corev1.ResourceEphemeralStorage}
	out := corev1.ResourceList{}
	for _, t := range e.Thresholds {
		name, of := signals[t.Signal]
		switch {
		case !of || !t.Hard:
		case t.Quantity != nil:
			out[name] = *t.Quantity
		default:
			whole := capacity[name]
			out[name] = *resource.NewQuantity(int64(float64(whole.Value())*t.Percent/100), resource.BinarySI)
		}
	}
	return out
}
