package localvolumes

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	storagehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"berth/internal/localvolumes"
)

// ClassName is the name of the StorageClass that the control server creates.
const ClassName = "local"

// Finalizer keeps a PersistentVolume until the volume on the node is deleted.
const Finalizer = localvolumes.DriverName + "/volume"

// annDefaultClass marks the default StorageClass.
const annDefaultClass = "storageclass.kubernetes.io/is-default-class"

// volumePrefix is the prefix of the names of provisioned volumes, before the UID of the claim.
const volumePrefix = "pvc-"

// fsTypeParameter is the only parameter that a class can have.
const fsTypeParameter = "csi.storage.k8s.io/fstype"

// Class returns the StorageClass that the control server creates if there is none of that name.
func Class(byDefault bool) *storagev1.StorageClass {
	c := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: ClassName}, Provisioner: localvolumes.DriverName,
		ReclaimPolicy:        ptr.To(corev1.PersistentVolumeReclaimDelete),
		VolumeBindingMode:    ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
		AllowVolumeExpansion: ptr.To(true),
	}
	if byDefault {
		c.Annotations = map[string]string{annDefaultClass: "true"}
	}
	return c
}

// Driver returns the CSIDriver.
func Driver() *storagev1.CSIDriver {
	return &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: localvolumes.DriverName},
		Spec: storagev1.CSIDriverSpec{
			AttachRequired: ptr.To(false), PodInfoOnMount: ptr.To(false), StorageCapacity: ptr.To(true),
			FSGroupPolicy:        ptr.To(storagev1.FileFSGroupPolicy),
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
			SELinuxMount:         ptr.To(false), RequiresRepublish: ptr.To(false),
		},
	}
}

// NeedsVolume reports whether the binder has asked the driver for a volume for a claim.
func NeedsVolume(claim *corev1.PersistentVolumeClaim) bool {
	provisioner := cmp.Or(claim.Annotations[storagehelpers.AnnStorageProvisioner],
		claim.Annotations[storagehelpers.AnnBetaStorageProvisioner])
	return provisioner == localvolumes.DriverName && claim.Spec.VolumeName == "" && claim.DeletionTimestamp == nil
}

// VolumeName returns the name of the volume of a claim.
func VolumeName(claim *corev1.PersistentVolumeClaim) string { return volumePrefix + string(claim.UID) }

// Request is a volume to create for a claim.
type Request struct {
	Name  string
	Node  string // empty: any node with enough space
	Bytes int64
}

// RequestFor returns the volume to create for a claim. It returns an error if the driver cannot create such a volume,
// and false if the claim waits for its pod to be scheduled.
func RequestFor(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) (Request, bool, error) {
	if err := checkClaim(claim); err != nil {
		return Request{}, false, err
	}
	if err := checkClass(class); err != nil {
		return Request{}, false, err
	}
	r := Request{Name: VolumeName(claim), Node: claim.Annotations[storagehelpers.AnnSelectedNode]}
	delayed := ptr.Deref(class.VolumeBindingMode, "") == storagev1.VolumeBindingWaitForFirstConsumer
	if delayed && r.Node == "" {
		return Request{}, false, nil
	}
	requested := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	r.Bytes = requested.Value()
	return r, true, nil
}

// checkClaim returns an error that names the field if the driver cannot provide for a claim.
func checkClaim(claim *corev1.PersistentVolumeClaim) error {
	if m := claim.Spec.VolumeMode; m != nil && *m != corev1.PersistentVolumeFilesystem {
		return fmt.Errorf("spec.volumeMode: %s does not support %s, only Filesystem", localvolumes.DriverName, *m)
	}
	for _, m := range claim.Spec.AccessModes {
		if m != corev1.ReadWriteOnce && m != corev1.ReadWriteOncePod {
			return fmt.Errorf("spec.accessModes: %s does not support %s, only ReadWriteOnce and ReadWriteOncePod: a "+
				"volume is on one node", localvolumes.DriverName, m)
		}
	}
	switch {
	case claim.Spec.DataSource != nil || claim.Spec.DataSourceRef != nil:
		return fmt.Errorf("spec.dataSource: %s does not support snapshots and clones", localvolumes.DriverName)
	case claim.Spec.Selector != nil:
		return fmt.Errorf("spec.selector: claim Selector is not supported by %s", localvolumes.DriverName)
	case ptr.Deref(claim.Spec.VolumeAttributesClassName, "") != "":
		return fmt.Errorf("spec.volumeAttributesClassName: %s does not support it", localvolumes.DriverName)
	}
	return nil
}

// checkClass returns an error that names the field if the driver does not support a class.
func checkClass(class *storagev1.StorageClass) error {
	for _, key := range slices.Sorted(maps.Keys(class.Parameters)) {
		if value := class.Parameters[key]; key != fsTypeParameter {
			return fmt.Errorf("parameters: %s has no parameter %q", localvolumes.DriverName, key)
		} else if value != localvolumes.FSType {
			return fmt.Errorf("parameters[%s]: %s supports %s only, not %q", key, localvolumes.DriverName,
				localvolumes.FSType, value)
		}
	}
	if len(class.AllowedTopologies) > 0 {
		return fmt.Errorf("allowedTopologies: %s does not support it, use the node affinity of pods",
			localvolumes.DriverName)
	}
	return nil
}

// Volume returns the PersistentVolume of a claim, for a volume that exists on a node.
func Volume(
	claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, node string, bytes int64,
) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: VolumeName(claim), Finalizers: []string{Finalizer},
			Annotations: map[string]string{storagehelpers.AnnDynamicallyProvisioned: localvolumes.DriverName},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(bytes, resource.BinarySI)},
			AccessModes: claim.Spec.AccessModes,
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name,
				UID: claim.UID, ResourceVersion: claim.ResourceVersion,
			},
			PersistentVolumeReclaimPolicy: ptr.Deref(class.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete),
			StorageClassName:              class.Name, MountOptions: class.MountOptions,
			VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem),
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: localvolumes.DriverName, VolumeHandle: VolumeName(claim), FSType: localvolumes.FSType,
			}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: localvolumes.TopologyKey, Operator: corev1.NodeSelectorOpIn, Values: []string{node},
				}}}},
			}},
		},
	}
}

// NodeOf returns the node of a volume, or "".
func NodeOf(v *corev1.PersistentVolume) string {
	if v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.Required == nil {
		return ""
	}
	for _, term := range v.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			if e.Key == localvolumes.TopologyKey && e.Operator == corev1.NodeSelectorOpIn && len(e.Values) == 1 {
				return e.Values[0]
			}
		}
	}
	return ""
}

// Provides reports whether a volume is one of the driver.
func Provides(v *corev1.PersistentVolume) bool {
	return v.Spec.CSI != nil && v.Spec.CSI.Driver == localvolumes.DriverName
}

// Unreferenced reports whether a volume of a node was created for a claim that got no PersistentVolume, and has no data.
// known has the handles of all PersistentVolumes, and the names of the volumes of all claims.
func Unreferenced(v localvolumes.Volume, known map[string]bool) bool {
	return !v.Used && strings.HasPrefix(v.Name, volumePrefix) && !known[v.Name]
}
