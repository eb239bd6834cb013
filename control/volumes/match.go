package volumes

import (
	"cmp"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"
)

// FindVolume returns the volume for a claim, or nil. A volume that is reserved for the claim is preferred. Otherwise
// it is the smallest available one of those with the fewest access modes. A delayed claim gets only a reserved volume.
func FindVolume(claim *corev1.PersistentVolumeClaim, all []*corev1.PersistentVolume, delayed bool) (
	*corev1.PersistentVolume, error) {
	candidates := sortedByName(all, func(v *corev1.PersistentVolume) bool { return volume.CheckAccessModes(claim, v) })
	// A volume that an interrupted sync has bound to the claim comes before one that a user has reserved by name.
	reservation := func(v *corev1.PersistentVolume) int {
		switch {
		case v.Spec.ClaimRef == nil || !volume.IsVolumeBoundToClaim(v, claim):
			return 0
		case v.Spec.ClaimRef.UID == "":
			return 1
		}
		return 2
	}
	slices.SortStableFunc(candidates, func(a, b *corev1.PersistentVolume) int {
		return cmp.Or(reservation(b)-reservation(a), len(a.Spec.AccessModes)-len(b.Spec.AccessModes))
	})
	group := func(a, b *corev1.PersistentVolume) bool {
		return reservation(a) == reservation(b) && len(a.Spec.AccessModes) == len(b.Spec.AccessModes)
	}
	for len(candidates) > 0 {
		n := 1
		for n < len(candidates) && group(candidates[0], candidates[n]) {
			n++
		}
		found, err := volume.FindMatchingVolume(claim, candidates[:n], nil, nil, delayed, true)
		if found != nil || err != nil {
			return found, err
		}
		candidates = candidates[n:]
	}
	return nil, nil
}

// satisfies returns why a claim cannot be bound to the volume that it names, or nil.
func satisfies(v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) error {
	size, requested := v.Spec.Capacity[corev1.ResourceStorage], claim.Spec.Resources.Requests[corev1.ResourceStorage]
	switch {
	case size.Cmp(requested) < 0:
		return errors.New("requested PV is too small")
	case volume.GetPersistentVolumeClass(v) != volume.GetPersistentVolumeClaimClass(claim):
		return errors.New("storageClassName does not match")
	case ptr.Deref(v.Spec.VolumeAttributesClassName, "") != ptr.Deref(claim.Spec.VolumeAttributesClassName, ""):
		return errors.New("volumeAttributesClassName does not match")
	case volume.CheckVolumeModeMismatches(&claim.Spec, &v.Spec):
		return errors.New("incompatible volumeMode")
	case !volume.CheckAccessModes(claim, v):
		return errors.New("incompatible accessMode")
	}
	return nil
}
