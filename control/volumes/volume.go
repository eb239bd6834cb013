package volumes

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	storagehelpers "k8s.io/component-helpers/storage/volume"
)

// NextForVolume returns the next step for a volume. claim is the claim of the volume's claimRef with its UID. It is nil
// if the API server has confirmed that there is none. syncClaim reports that the claim, not the volume, is to be
// synced.
func NextForVolume(v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) (step Step, syncClaim bool) {
	switch ref := v.Spec.ClaimRef; {
	case ref == nil:
		return volumePhase(v, corev1.VolumeAvailable, ""), false
	case ref.UID == "":
		// It is reserved for a claim, whose sync binds it.
		return volumePhase(v, corev1.VolumeAvailable, ""), claim != nil
	case claim == nil:
		return released(v), false
	case claim.Spec.VolumeName == "":
		if storagehelpers.CheckVolumeModeMismatches(&claim.Spec, &v.Spec) {
			return Step{Events: []Event{
				{v, corev1.EventTypeWarning, eventMismatch, fmt.Sprintf("Cannot bind PersistentVolume to requested "+
					"PersistentVolumeClaim %q due to incompatible volumeMode.", claim.Name)},
				{claim, corev1.EventTypeWarning, eventMismatch, fmt.Sprintf("Cannot bind PersistentVolume %q to "+
					"requested PersistentVolumeClaim due to incompatible volumeMode.", v.Name)},
			}}, false
		}
		return Step{}, true
	case claim.Spec.VolumeName == v.Name:
		return volumePhase(v, corev1.VolumeBound, ""), false
	}
	// The claim is bound to another volume.
	if metav1.HasAnnotation(v.ObjectMeta, storagehelpers.AnnDynamicallyProvisioned) &&
		v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		return released(v), false
	}
	return unbind(v), false
}

// unbind removes the binding to a claim that is bound to another volume. A reservation by a user stays.
func unbind(v *corev1.PersistentVolume) Step {
	out := v.DeepCopy()
	if metav1.HasAnnotation(v.ObjectMeta, storagehelpers.AnnBoundByController) {
		out.Spec.ClaimRef = nil
		delete(out.Annotations, storagehelpers.AnnBoundByController)
	} else {
		out.Spec.ClaimRef.UID = ""
	}
	return Step{Write: &Write{Volume: out}}
}

// released marks a volume as released from its claim and applies the reclaim policy.
func released(v *corev1.PersistentVolume) Step {
	if v.Status.Phase != corev1.VolumeReleased && v.Status.Phase != corev1.VolumeFailed {
		return volumePhase(v, corev1.VolumeReleased, "")
	}
	fail := func(reason, message string) Step {
		return volumePhase(v, corev1.VolumeFailed, message, Event{v, corev1.EventTypeWarning, reason, message})
	}
	switch v.Spec.PersistentVolumeReclaimPolicy {
	case corev1.PersistentVolumeReclaimRetain:
		return Step{}
	case corev1.PersistentVolumeReclaimRecycle:
		return fail(eventFailedRecycle, "No recycler plugin found for the volume!")
	case corev1.PersistentVolumeReclaimDelete:
		if problem := notDeletable(v); problem != "" {
			return fail(eventFailedDelete, problem)
		}
		return Step{} // by its provisioner
	}
	return fail(eventUnknownReclaimPolicy, "Volume has unrecognized PersistentVolumeReclaimPolicy")
}

// notDeletable returns why no external provisioner deletes a volume, or "".
func notDeletable(v *corev1.PersistentVolume) string {
	switch by := v.Annotations[storagehelpers.AnnDynamicallyProvisioned]; {
	case strings.HasPrefix(by, "kubernetes.io/"):
		return "no volume plugin matched name: " + by
	case by != "", metav1.HasAnnotation(v.ObjectMeta, storagehelpers.AnnMigratedTo), v.Spec.CSI != nil:
		return ""
	}
	return fmt.Sprintf("error getting deleter volume plugin for volume %q: no deletable volume plugin matched", v.Name)
}

// volumePhase returns the update of a volume's status, if one is necessary.
func volumePhase(v *corev1.PersistentVolume, phase corev1.PersistentVolumePhase, message string, events ...Event) Step {
	if v.Status.Phase == phase && v.Status.Message == message {
		return Step{}
	}
	out := v.DeepCopy()
	out.Status.Phase, out.Status.Message = phase, message
	return Step{Write: &Write{Volume: out, Status: true}, Events: events}
}
