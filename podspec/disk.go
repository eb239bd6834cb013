package podspec

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// EmptyDirSizeLimit is how much a volume may take of the node's disk before its pod is
// evicted; nil: as much as there is. An emptyDir in memory is bounded by its
// own file system.
func EmptyDirSizeLimit(vol *corev1.Volume) *resource.Quantity {
	e := vol.EmptyDir
	if e == nil || e.Medium != corev1.StorageMediumDefault || e.SizeLimit == nil || e.SizeLimit.Sign() <= 0 {
		return nil
	}
	return e.SizeLimit
}

// HasEmptyDirSizeLimit reports whether a volume of the pod has a DiskLimit.
func HasEmptyDirSizeLimit(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return EmptyDirSizeLimit(&v) != nil })
}

// EphemeralStorageLimit is what a pod may have on the node's disk before it is evicted: its
// containers' limits of ephemeral-storage together, also if not all have one, as
// upstream has it; not ok: as much as there is.
func EphemeralStorageLimit(pod *corev1.Pod) (resource.Quantity, bool) {
	q, ok := Limits(pod)[corev1.ResourceEphemeralStorage]
	return q, ok && q.Sign() > 0
}
