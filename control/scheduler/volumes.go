package scheduler

import (
	"fmt"
	"iter"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/storage/ephemeral"
	storagehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"berth/control/attachments"
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
		with.Claims.Capacities = s.capacities(with.Claims.Classes)
	}
	with.Drivers = s.podDrivers(pod, &with)
	return with, ""
}

// capacities returns the storage capacities of the classes whose CSI driver reports them.
func (s *Scheduler) capacities(classes map[string]*storagev1.StorageClass) map[string][]*storagev1.CSIStorageCapacity {
	var out map[string][]*storagev1.CSIStorageCapacity
	for name, class := range classes {
		driver, err := s.Informers.Storage().V1().CSIDrivers().Lister().Get(class.Provisioner)
		if err == nil && ptr.Deref(driver.Spec.StorageCapacity, false) {
			if out == nil {
				out = map[string][]*storagev1.CSIStorageCapacity{}
			}
			out[name] = nil
		}
	}
	if out == nil {
		return nil
	}
	all, err := s.Informers.Storage().V1().CSIStorageCapacities().Lister().List(labels.Everything())
	if err != nil {
		return out // the lister reads from memory and does not fail
	}
	for _, c := range all {
		if _, wanted := out[c.StorageClassName]; wanted {
			out[c.StorageClassName] = append(out[c.StorageClassName], c)
		}
	}
	return out
}

// podDrivers returns what limits the volumes of CSI drivers of a pod, or nil if it has none.
func (s *Scheduler) podDrivers(pod *corev1.Pod, with *placement.Related) *placement.Drivers {
	if len(with.Volumes) == 0 && len(with.Claims.Claims) == 0 {
		return nil
	}
	d := &placement.Drivers{Volumes: s.driverVolumes(pod), OnNode: s.csiNode, Attached: s.attachedVolumes}
	if len(d.Volumes) == 0 {
		return nil
	}
	for _, name := range d.Volumes {
		driver, err := s.Informers.Storage().V1().CSIDrivers().Lister().Get(name)
		if err == nil && ptr.Deref(driver.Spec.PreventPodSchedulingIfMissing, false) &&
			!slices.Contains(d.Required, name) {
			d.Required = append(d.Required, name)
		}
	}
	slices.Sort(d.Required)
	return d
}

func (s *Scheduler) csiNode(name string) *storagev1.CSINode {
	n, err := s.Informers.Storage().V1().CSINodes().Lister().Get(name)
	if err != nil {
		return nil
	}
	return n
}

// driverVolumes returns the volumes of CSI drivers of a pod: the driver by the name that attachments.VolumeName gives
// them. A claim that waits for its consumer counts as a volume of the provisioner of its class.
func (s *Scheduler) driverVolumes(pod *corev1.Pod) map[string]string {
	out := map[string]string{}
	core, storage := s.Informers.Core().V1(), s.Informers.Storage().V1()
	for i := range pod.Spec.Volumes {
		name := ""
		switch v := &pod.Spec.Volumes[i]; {
		case v.PersistentVolumeClaim != nil:
			name = v.PersistentVolumeClaim.ClaimName
		case v.Ephemeral != nil:
			name = ephemeral.VolumeClaimName(pod, v)
		default:
			continue
		}
		claim, err := core.PersistentVolumeClaims().Lister().PersistentVolumeClaims(pod.Namespace).Get(name)
		if err != nil {
			continue
		}
		if v, err := core.PersistentVolumes().Lister().Get(claim.Spec.VolumeName); err == nil {
			if csi := v.Spec.CSI; csi != nil {
				out[string(attachments.VolumeName(csi.Driver, csi.VolumeHandle))] = csi.Driver
			}
			continue
		}
		class, err := storage.StorageClasses().Lister().Get(storagehelpers.GetPersistentVolumeClaimClass(claim))
		if err == nil && class.Provisioner != storagehelpers.NotSupportedProvisioner {
			out["claim "+claim.Namespace+"/"+claim.Name] = class.Provisioner
		}
	}
	return out
}

// attachedVolumes implements placement.Drivers.Attached.
func (s *Scheduler) attachedVolumes(node string, pods iter.Seq[*corev1.Pod]) map[string]string {
	out := map[string]string{}
	for pod := range pods {
		maps.Copy(out, s.driverVolumes(pod))
	}
	all, err := s.Informers.Storage().V1().VolumeAttachments().Lister().List(labels.Everything())
	if err != nil {
		return out // the lister reads from memory and does not fail
	}
	for _, a := range all {
		name := ptr.Deref(a.Spec.Source.PersistentVolumeName, "")
		if a.Spec.NodeName != node || name == "" {
			continue
		}
		v, err := s.Informers.Core().V1().PersistentVolumes().Lister().Get(name)
		if err == nil && v.Spec.CSI != nil {
			out[string(attachments.VolumeName(v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle))] = v.Spec.CSI.Driver
		}
	}
	return out
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
