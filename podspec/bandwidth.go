package podspec

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Annotations that limit a pod's network, in bits per second: what comes to it,
// and what it sends.
const (
	IngressBandwidth = "kubernetes.io/ingress-bandwidth"
	EgressBandwidth  = "kubernetes.io/egress-bandwidth"
)

const (
	leastBandwidth = 1e3  // 1k
	mostBandwidth  = 1e15 // 1P
)

// BandwidthLimits gives the limits that the pod asks for, by annotation; those that
// are no quantities are left out.
func BandwidthLimits(pod *corev1.Pod) map[string]resource.Quantity {
	var out map[string]resource.Quantity
	for _, key := range []string{IngressBandwidth, EgressBandwidth} {
		value, asked := pod.Annotations[key]
		if !asked {
			continue
		}
		if q, err := resource.ParseQuantity(value); err == nil {
			if out == nil {
				out = map[string]resource.Quantity{}
			}
			out[key] = q
		}
	}
	return out
}

// bandwidthAnnotations judges the limits of the pod's network. An API server
// stores whatever they say: it is the runtime that refuses such a pod.
func (k *validator) bandwidthAnnotations(at *field.Path) {
	limits := BandwidthLimits(k.pod)
	for _, key := range []string{IngressBandwidth, EgressBandwidth} {
		value, asked := k.pod.Annotations[key]
		if !asked {
			continue
		}
		q, ok := limits[key]
		switch {
		case !ok:
			k.invalid(at.Key(key), value, "must be a quantity of bits per second, as 10M")
		case q.Value() < leastBandwidth || q.Value() > mostBandwidth:
			k.invalid(at.Key(key), value, "must be between 1k and 1P bits per second")
		}
	}
}
