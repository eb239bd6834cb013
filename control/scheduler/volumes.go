package scheduler

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const reasonUnbound = "pod has unbound immediate PersistentVolumeClaims"

// volumeAffinities returns the node affinities of the pod's volumes, or why the pod must wait for
// one of them.
func (s *Scheduler) volumeAffinities(pod *corev1.Pod) (affinities []*corev1.NodeSelector, reason string) {
	core := s.Informers.Core().V1()
	for i := range pod.Spec.Volumes {
		name, own := claimName(pod, &pod.Spec.Volumes[i])
		if name == "" {
			continue
		}
		claim, err := core.PersistentVolumeClaims().Lister().PersistentVolumeClaims(pod.Namespace).Get(name)
		switch {
		case err != nil && own:
			return nil, fmt.Sprintf("waiting for ephemeral volume controller to create the persistentvolumeclaim %q",
				name)
		case err != nil:
			return nil, fmt.Sprintf("persistentvolumeclaim %q not found", name)
		case own && !metav1.IsControlledBy(claim, pod):
			return nil, fmt.Sprintf("PVC %s/%s was not created for pod %s/%s (pod is not owner)", pod.Namespace, name,
				pod.Namespace, pod.Name)
		case claim.DeletionTimestamp != nil:
			return nil, fmt.Sprintf("persistentvolumeclaim %q is being deleted", name)
		case claim.Spec.VolumeName == "":
			return nil, reasonUnbound
		}
		volume, err := core.PersistentVolumes().Lister().Get(claim.Spec.VolumeName)
		if err != nil {
			return nil, fmt.Sprintf("persistentvolume %q not found", claim.Spec.VolumeName)
		}
		if a := volume.Spec.NodeAffinity; a != nil && a.Required != nil {
			affinities = append(affinities, a.Required)
		}
	}
	return affinities, ""
}

// claimName returns the claim of a volume, or "", and whether it is created for the pod.
func claimName(pod *corev1.Pod, v *corev1.Volume) (name string, own bool) {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName, false
	case v.Ephemeral != nil:
		return pod.Name + "-" + v.Name, true
	}
	return "", false
}
