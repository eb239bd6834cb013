package volumes

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	storagehelpers "k8s.io/component-helpers/storage/volume"
)

// View returns the objects that decisions read. Decisions do not modify them.
type View interface {
	// Volume returns a volume, or nil if it does not exist.
	Volume(name string) *corev1.PersistentVolume
	// Volumes returns all volumes.
	Volumes() []*corev1.PersistentVolume
	// Class returns a storage class, or nil if it does not exist.
	Class(name string) *storagev1.StorageClass
	// Classes returns all storage classes.
	Classes() []*storagev1.StorageClass
	// WaitingPods returns the names of the pods without a node that use a claim, sorted.
	WaitingPods(claim *corev1.PersistentVolumeClaim) []string
}

// Step is what to do next. Without a write, nothing is left to do until an object changes.
type Step struct {
	Write  *Write
	Events []Event // to record after the write
	// Class reports that the write gives the claim the default class.
	Class bool
}

// Write is the update of one object: of its status, or of everything else. It fails if the object has changed.
type Write struct {
	Volume *corev1.PersistentVolume
	Claim  *corev1.PersistentVolumeClaim
	Status bool
}

// Event is an event to record.
type Event struct {
	Object                runtime.Object
	Type, Reason, Message string
}

// Reasons of events, as upstream.
const (
	eventFailedBinding        = "FailedBinding"
	eventMismatch             = "VolumeMismatch"
	eventFailedDelete         = "VolumeFailedDelete"
	eventFailedRecycle        = "VolumeFailedRecycle"
	eventUnknownReclaimPolicy = "VolumeUnknownReclaimPolicy"
	eventProvisioningFailed   = "ProvisioningFailed"
	eventExternalProvisioning = "ExternalProvisioning"
	eventWaitForConsumer      = "WaitForFirstConsumer"
	eventWaitForPodScheduled  = "WaitForPodScheduled"
	eventClaimLost            = "ClaimLost"
	eventClaimMisbound        = "ClaimMisbound"
)

// Annotations.
const (
	// yes is the value of the annotations of a binding.
	yes = "yes"
	// annBetaDefaultClass is the old form of storageclass.kubernetes.io/is-default-class.
	annDefaultClass, annBetaDefaultClass = "storageclass.kubernetes.io/is-default-class",
		"storageclass.beta.kubernetes.io/is-default-class"
	// annPreResizeCapacity is the size of a file system whose volume was expanded.
	annPreResizeCapacity = "volume.alpha.kubernetes.io/pre-resize-capacity"
)

// DefaultClass returns the default storage class, or nil: of several ones the newest, and of those of the same age the
// first by name.
func DefaultClass(classes []*storagev1.StorageClass) (out *storagev1.StorageClass) {
	for _, c := range classes {
		if c.Annotations[annDefaultClass] != "true" && c.Annotations[annBetaDefaultClass] != "true" {
			continue
		}
		if out == nil || cmp.Or(out.CreationTimestamp.Compare(c.CreationTimestamp.Time),
			cmp.Compare(c.Name, out.Name)) < 0 {
			out = c
		}
	}
	return out
}

// WaitsForConsumer reports whether the claims of a class wait for a pod that uses them. A class may be nil.
func WaitsForConsumer(class *storagev1.StorageClass) bool {
	return class != nil && class.VolumeBindingMode != nil &&
		*class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

// IsFullyBound reports whether a claim is bound to the volume and the volume to the claim.
func IsFullyBound(claim *corev1.PersistentVolumeClaim, volume *corev1.PersistentVolume) bool {
	return claim.Spec.VolumeName != "" && metav1.HasAnnotation(claim.ObjectMeta, storagehelpers.AnnBindCompleted) &&
		volume != nil && volume.Name == claim.Spec.VolumeName && volume.Spec.ClaimRef != nil &&
		volume.Spec.ClaimRef.UID == claim.UID
}

// Plugin returns the name of the volume plugin of a volume as in upstream's metrics.
func Plugin(v *corev1.PersistentVolume) string {
	switch {
	case v.Spec.CSI != nil:
		return "kubernetes.io/csi:" + v.Spec.CSI.Driver
	case v.Spec.HostPath != nil:
		return "kubernetes.io/host-path"
	case v.Spec.Local != nil:
		return "kubernetes.io/local-volume"
	case v.Spec.NFS != nil:
		return "kubernetes.io/nfs"
	case v.Spec.ISCSI != nil:
		return "kubernetes.io/iscsi"
	case v.Spec.FC != nil:
		return "kubernetes.io/fc"
	}
	return "N/A"
}

// sortedByName returns the volumes that satisfy a condition, sorted by name, so that decisions do not depend on the
// order of a cache.
func sortedByName(all []*corev1.PersistentVolume, keep func(*corev1.PersistentVolume) bool) (
	out []*corev1.PersistentVolume) {
	for _, v := range all {
		if keep(v) {
			out = append(out, v)
		}
	}
	slices.SortFunc(out, func(a, b *corev1.PersistentVolume) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
