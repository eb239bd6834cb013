package volumes

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	storagehelpers "k8s.io/component-helpers/storage/volume"
)

// NextForClaim returns the next step for a claim.
func NextForClaim(claim *corev1.PersistentVolumeClaim, view View) (Step, error) {
	if metav1.HasAnnotation(claim.ObjectMeta, storagehelpers.AnnBindCompleted) {
		return boundClaim(claim, view)
	}
	if claim.Spec.VolumeName != "" {
		return claimWithVolume(claim, view)
	}
	return unboundClaim(claim, view)
}

// unboundClaim finds or requests a volume for a claim that does not name one.
func unboundClaim(claim *corev1.PersistentVolumeClaim, view View) (Step, error) {
	if claim.DeletionTimestamp != nil {
		return Step{}, nil // no volume is used up for a claim that goes away
	}
	className := storagehelpers.GetPersistentVolumeClaimClass(claim)
	class := view.Class(className)
	delayed := WaitsForConsumer(class)
	v, err := FindVolume(claim, view.Volumes(), delayed)
	if err != nil {
		return Step{}, fmt.Errorf("find volume: %w", err)
	}
	if v != nil {
		return bind(v, claim)
	}
	if !storagehelpers.PersistentVolumeClaimHasClass(claim) {
		if byDefault := DefaultClass(view.Classes()); byDefault != nil {
			out := claim.DeepCopy()
			out.Spec.StorageClassName = &byDefault.Name
			return Step{Write: &Write{Claim: out}, Class: true}, nil
		}
	}
	switch {
	case delayed && !storagehelpers.IsDelayBindingProvisioning(claim):
		return pending(claim, waitForConsumer(claim, view.WaitingPods(claim)))
	case className == "":
		return pending(claim, Event{claim, corev1.EventTypeNormal, eventFailedBinding,
			"no persistent volumes available for this claim and no storage class is set"})
	case class == nil:
		return pending(claim, Event{claim, corev1.EventTypeWarning, eventProvisioningFailed,
			fmt.Sprintf("storageclass.storage.k8s.io %q not found", className)})
	case strings.HasPrefix(class.Provisioner, "kubernetes.io/"):
		return pending(claim, Event{claim, corev1.EventTypeWarning, eventProvisioningFailed,
			"no volume plugin matched name: " + class.Provisioner})
	}
	return provision(claim, class.Provisioner)
}

// waitForConsumer returns the event of a claim that waits for a pod to be scheduled.
func waitForConsumer(claim *corev1.PersistentVolumeClaim, pods []string) Event {
	out := Event{claim, corev1.EventTypeNormal, eventWaitForConsumer,
		"waiting for first consumer to be created before binding"}
	if len(pods) > 0 {
		out.Reason, out.Message = eventWaitForPodScheduled, fmt.Sprintf("waiting for pod %s to be scheduled", pods[0])
	}
	if len(pods) > 1 {
		out.Message = fmt.Sprintf("waiting for pods %s to be scheduled", strings.Join(pods, ","))
	}
	return out
}

// provision requests a volume from an external provisioner.
func provision(claim *corev1.PersistentVolumeClaim, provisioner string) (Step, error) {
	set := true
	for _, key := range []string{storagehelpers.AnnStorageProvisioner, storagehelpers.AnnBetaStorageProvisioner} {
		set = set && claim.Annotations[key] == provisioner
	}
	if !set {
		out := claim.DeepCopy()
		metav1.SetMetaDataAnnotation(&out.ObjectMeta, storagehelpers.AnnStorageProvisioner, provisioner)
		metav1.SetMetaDataAnnotation(&out.ObjectMeta, storagehelpers.AnnBetaStorageProvisioner, provisioner)
		return Step{Write: &Write{Claim: out}}, nil
	}
	return Step{Events: []Event{{claim, corev1.EventTypeNormal, eventExternalProvisioning, fmt.Sprintf(
		"Waiting for a volume to be created either by the external provisioner '%s' or manually by the system "+
			"administrator. If volume creation is delayed, please verify that the provisioner is running and "+
			"correctly registered.", provisioner)}}}, nil
}

// claimWithVolume binds a claim to the volume that it names.
func claimWithVolume(claim *corev1.PersistentVolumeClaim, view View) (Step, error) {
	v := view.Volume(claim.Spec.VolumeName)
	switch {
	case v == nil:
		return pending(claim)
	case v.Spec.ClaimRef == nil:
		if err := satisfies(v, claim); err != nil {
			return pending(claim, Event{claim, corev1.EventTypeWarning, eventMismatch,
				fmt.Sprintf("Cannot bind to requested volume %q: %s", v.Name, err)})
		}
		return bind(v, claim)
	case storagehelpers.IsVolumeBoundToClaim(v, claim):
		return bind(v, claim)
	}
	return pending(claim, Event{claim, corev1.EventTypeWarning, eventFailedBinding,
		fmt.Sprintf("volume %q already bound to a different claim.", v.Name)})
}

// boundClaim checks a claim whose binding was completed.
func boundClaim(claim *corev1.PersistentVolumeClaim, view View) (Step, error) {
	lost := func(reason, message string) (Step, error) {
		return claimStatus(claim, corev1.ClaimLost, nil, Event{claim, corev1.EventTypeWarning, reason, message})
	}
	if claim.Spec.VolumeName == "" {
		return lost(eventClaimLost, "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
	}
	v := view.Volume(claim.Spec.VolumeName)
	switch {
	case v == nil:
		return lost(eventClaimLost, "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
	case v.Spec.ClaimRef == nil, v.Spec.ClaimRef.UID == claim.UID,
		v.Spec.ClaimRef.UID == "" && storagehelpers.IsVolumeBoundToClaim(v, claim):
		return bind(v, claim)
	}
	return lost(eventClaimMisbound, "Two claims are bound to the same volume, this one is bound incorrectly")
}

// bind returns the next step to bind a claim and a volume to each other.
func bind(v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) (Step, error) {
	reserved, dirty, err := storagehelpers.GetBindVolumeToClaim(v, claim)
	if err != nil {
		return Step{}, fmt.Errorf("bind volume %s to claim: %w", v.Name, err)
	}
	if dirty {
		return Step{Write: &Write{Volume: reserved}}, nil
	}
	if step := volumePhase(v, corev1.VolumeBound, ""); step.Write != nil {
		return step, nil
	}
	if claim.Spec.VolumeName == v.Name && metav1.HasAnnotation(claim.ObjectMeta, storagehelpers.AnnBindCompleted) {
		return claimStatus(claim, corev1.ClaimBound, v)
	}
	out := claim.DeepCopy()
	if claim.Spec.VolumeName != v.Name {
		out.Spec.VolumeName = v.Name
		metav1.SetMetaDataAnnotation(&out.ObjectMeta, storagehelpers.AnnBoundByController, yes)
	}
	metav1.SetMetaDataAnnotation(&out.ObjectMeta, storagehelpers.AnnBindCompleted, yes)
	return Step{Write: &Write{Claim: out}}, nil
}

// pending marks a claim as pending. The events are recorded when nothing is left to write.
func pending(claim *corev1.PersistentVolumeClaim, events ...Event) (Step, error) {
	step, err := claimStatus(claim, corev1.ClaimPending, nil)
	if err == nil && step.Write == nil {
		step.Events = events
	}
	return step, err
}

// claimStatus returns the update of a claim's status, if one is necessary. v is nil unless the claim is bound.
func claimStatus(claim *corev1.PersistentVolumeClaim, phase corev1.PersistentVolumeClaimPhase,
	v *corev1.PersistentVolume, events ...Event) (Step, error) {
	out := claim.DeepCopy()
	status := &out.Status
	status.Phase = phase
	if v == nil {
		status.AccessModes, status.Capacity, status.CurrentVolumeAttributesClassName = nil, nil, nil
	} else {
		status.AccessModes = slices.Clone(v.Spec.AccessModes)
		// A bound claim keeps its capacity: its file system may be smaller than the volume.
		if claim.Status.Phase != phase {
			size, ok := v.Spec.Capacity[corev1.ResourceStorage]
			if !ok {
				return Step{}, fmt.Errorf("PersistentVolume %q is without a storage capacity", v.Name)
			}
			if before, err := resource.ParseQuantity(v.Annotations[annPreResizeCapacity]); err == nil {
				size = before
			}
			status.Capacity = v.Spec.Capacity.DeepCopy()
			status.Capacity[corev1.ResourceStorage] = size
		}
		if claim.Status.Phase == corev1.ClaimPending {
			status.CurrentVolumeAttributesClassName = v.Spec.VolumeAttributesClassName
		}
	}
	if equality.Semantic.DeepEqual(claim.Status, out.Status) {
		return Step{}, nil
	}
	return Step{Write: &Write{Claim: out, Status: true}, Events: events}, nil
}
