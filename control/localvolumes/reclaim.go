package localvolumes

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	storagehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"berth/internal/localvolumes"
)

// pvProtection is the finalizer of volumes that are bound.
const pvProtection = "kubernetes.io/pv-protection"

// Reclaim is what is done with a PersistentVolume, in the order of the fields.
type Reclaim struct {
	DeleteVolume    bool // on the node
	DeleteObject    bool
	RemoveFinalizer bool
}

// NextReclaim returns what is done with a PersistentVolume of the driver. Nothing is done for one that is bound, or that
// the driver has not provisioned.
func NextReclaim(v *corev1.PersistentVolume) Reclaim {
	if v.Status.Phase == corev1.VolumeBound || v.Annotations[storagehelpers.AnnDynamicallyProvisioned] != localvolumes.DriverName {
		return Reclaim{}
	}
	policy := v.Spec.PersistentVolumeReclaimPolicy
	held := slices.Contains(v.Finalizers, Finalizer)
	if v.DeletionTimestamp != nil { // deleted before its claim, or before it was bound
		if !held || slices.Contains(v.Finalizers, pvProtection) {
			return Reclaim{}
		}
		return Reclaim{DeleteVolume: policy == corev1.PersistentVolumeReclaimDelete, RemoveFinalizer: true}
	}
	if v.Status.Phase != corev1.VolumeReleased || policy != corev1.PersistentVolumeReclaimDelete {
		return Reclaim{}
	}
	return Reclaim{DeleteVolume: true, DeleteObject: true, RemoveFinalizer: held}
}

// Growth is a volume that is to grow.
type Growth struct {
	Bytes  int64 // requested
	Volume bool  // the volume is smaller; else only the status of the claim is
}

// GrowthOf returns the growth that a claim requests of its volume. It reports false if there is none.
func GrowthOf(
	claim *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume, class *storagev1.StorageClass,
) (Growth, bool) {
	if claim.Status.Phase != corev1.ClaimBound || claim.DeletionTimestamp != nil || v.DeletionTimestamp != nil ||
		v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != claim.UID {
		return Growth{}, false
	}
	requested := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	has, volume := claim.Status.Capacity[corev1.ResourceStorage], v.Spec.Capacity[corev1.ResourceStorage]
	if requested.Cmp(has) <= 0 {
		return Growth{}, false
	}
	smaller := requested.Cmp(volume) > 0
	if smaller && (class == nil || !ptr.Deref(class.AllowVolumeExpansion, false)) {
		return Growth{}, false // the API server rejects such a claim, unless the class has changed
	}
	return Growth{Bytes: requested.Value(), Volume: smaller}, true
}

// CapacityChanged reports whether a change of the free space of a node is large enough to be published: 1 % or 64 MiB.
func CapacityChanged(published, now int64) bool {
	const least = 64 << 20
	delta := max(published-now, now-published)
	return delta >= max(least, published/100) || (now == 0) != (published == 0)
}
