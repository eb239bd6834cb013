package podspec

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Annotations that limit the network bandwidth of a pod, in bits per second.
const (
	IngressBandwidth = "kubernetes.io/ingress-bandwidth"
	EgressBandwidth  = "kubernetes.io/egress-bandwidth"
)

const (
	leastBandwidth = 1e3  // 1k
	mostBandwidth  = 1e15 // 1P
)

// BandwidthLimits returns the bandwidth limits of the pod by annotation. Invalid quantities are
// left out.
func BandwidthLimits(pod *corev1.Pod) map[string]resource.Quantity {
	var out map[string]resource.Quantity
	for _, key := range []string{IngressBandwidth, EgressBandwidth} {
		value, ok := pod.Annotations[key]
		if !ok {
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

// bandwidthAnnotations validates the bandwidth annotations. An API server does not validate them.
// The runtime would reject the pod.
func (k *validator) bandwidthAnnotations(at *field.Path) {
	limits := BandwidthLimits(k.pod)
	for _, key := range []string{IngressBandwidth, EgressBandwidth} {
		value, ok := k.pod.Annotations[key]
		if !ok {
			continue
		}
		q, valid := limits[key]
		switch {
		case !valid:
			k.invalid(at.Key(key), value, "must be a quantity of bits per second, such as 10M")
		case q.Value() < leastBandwidth || q.Value() > mostBandwidth:
			k.invalid(at.Key(key), value, "must be between 1k and 1P bits per second")
		}
	}
}

// Annotations about additional networks: the requested ones and their status.
const (
	NetworksAnnotation      = "k8s.v1.cni.cncf.io/networks"
	NetworkStatusAnnotation = "k8s.v1.cni.cncf.io/network-status"
)

// Networks returns the additional networks that the pod requests, or an empty string.
func Networks(pod *corev1.Pod) string { return strings.TrimSpace(pod.Annotations[NetworksAnnotation]) }
