package scheduler

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/storage/ephemeral"
	storagehelpers "k8s.io/component-helpers/storage/volume"

	"berth/control/scheduler/placement"
	"berth/control/volumes"
)

const reasonUnbound = "pod has unbound immediate PersistentVolumeClaims"

// podVolumes returns what the pod's claims contribute to its placement, or why the pod must wait for one of them.
func (s *Scheduler) podVolumes(pod *corev1.Pod) (with placement.Related, reason string) {
	core := s.Informers.Core().V1()
	for i := range pod.Spec.Volumes {
		claim, reason := s.podClaim(pod, &pod.Spec.Volumes[i])
		switch {
		case reason != "":
			return placement.Related{}, reason
		case claim == nil:
			continue
		}
		if slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteOncePod) {
			with.SinglePodClaims = append(with.SinglePodClaims, claim.Name)
		}
		switch {
		case claim.Spec.VolumeName != "" && metav1.HasAnnotation(claim.ObjectMeta, storagehelpers.AnnBindCompleted):
			v, err := core.PersistentVolumes().Lister().Get(claim.Spec.VolumeName)
			if err != nil {
				with.MissingVolume = true
				continue
			}
			with.Volumes = append(with.Volumes, v)
		case claim.Spec.VolumeName == "" && s.addWaitingClaim(&with.Claims, claim):
		default:
			return placement.Related{}, reasonUnbound
		}
	}
	if len(with.Claims.Claims) > 0 {
		with.Claims.Volumes = s.availableVolumes(with.Claims.Classes)
	}
	return with, ""
}

// podClaim returns the claim of a volume, nil if it has none, or why the pod must wait for it.
func (s *Scheduler) podClaim(pod *corev1.Pod, v *corev1.Volume) (claim *corev1.PersistentVolumeClaim, reason string) {
	name, own := "", false
	switch {
	case v.PersistentVolumeClaim != nil:
		name = v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		name, own = ephemeral.VolumeClaimName(pod, v), true
	default:
		return nil, ""
	}
	claim, err := s.Informers.Core().V1().PersistentVolumeClaims().Lister().PersistentVolumeClaims(pod.Namespace).Get(
		name)
	switch {
	case err != nil && own:
		return nil, fmt.Sprintf("waiting for ephemeral volume controller to create the persistentvolumeclaim %q", name)
	case err != nil:
		return nil, fmt.Sprintf("persistentvolumeclaim %q not found", name)
	case claim.Status.Phase == corev1.ClaimLost:
		return nil, fmt.Sprintf("persistentvolumeclaim %q bound to non-existent persistentvolume %q", name,
			claim.Spec.VolumeName)
	case claim.DeletionTimestamp != nil:
		return nil, fmt.Sprintf("persistentvolumeclaim %q is being deleted", name)
	case own:
		if err := ephemeral.VolumeIsForPod(pod, claim); err != nil {
			return nil, err.Error()
		}
	}
	return claim, ""
}

// addWaitingClaim adds a claim that is bound when its first consumer has a node. It reports false for other claims.
func (s *Scheduler) addWaitingClaim(to *volumes.PodClaims, claim *corev1.PersistentVolumeClaim) bool {
	name := storagehelpers.GetPersistentVolumeClaimClass(claim)
	class, err := s.Informers.Storage().V1().StorageClasses().Lister().Get(name)
	if err != nil || !volumes.WaitsForConsumer(class) {
		return false
	}
	if to.Classes == nil {
		to.Classes = map[string]*storagev1.StorageClass{}
	}
	to.Classes[name] = class
	to.Claims = append(to.Claims, claim)
	return true
}

// availableVolumes returns the volumes of classes that are not about to be bound for another pod.
func (s *Scheduler) availableVolumes(classes map[string]*storagev1.StorageClass) []*corev1.PersistentVolume {
	all, err := s.Informers.Core().V1().PersistentVolumes().Lister().List(labels.Everything())
	if err != nil {
		return nil // the lister reads from memory and does not fail
	}
	taken := map[string]bool{}
	for _, b := range s.volumeBindings {
		for _, pair := range b.result.Volumes.Bind {
			taken[pair.Volume.Name] = true
		}
	}
	var out []*corev1.PersistentVolume
	for _, v := range all {
		if classes[storagehelpers.GetPersistentVolumeClass(v)] != nil && !taken[v.Name] {
			out = append(out, v)
		}
	}
	return out
}
