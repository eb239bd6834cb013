package authz

import corev1 "k8s.io/api/core/v1"

// VisitRefs calls each for the objects in the pod's namespace that the pod refers to: secrets,
// configmaps, persistentvolumeclaims, resourceclaims (including those generated for the pod) and
// its service account. Names may be empty and may repeat.
func VisitRefs(pod *corev1.Pod, each func(resource, name string)) {
	each("serviceaccounts", pod.Spec.ServiceAccountName)
	for _, r := range pod.Spec.ImagePullSecrets {
		each("secrets", r.Name)
	}
	for i := range pod.Spec.InitContainers {
		visitEnv(pod.Spec.InitContainers[i].EnvFrom, pod.Spec.InitContainers[i].Env, each)
	}
	for i := range pod.Spec.Containers {
		visitEnv(pod.Spec.Containers[i].EnvFrom, pod.Spec.Containers[i].Env, each)
	}
	for i := range pod.Spec.EphemeralContainers {
		visitEnv(pod.Spec.EphemeralContainers[i].EnvFrom, pod.Spec.EphemeralContainers[i].Env, each)
	}
	visitClaims(pod, each)
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Ephemeral != nil {
			each("persistentvolumeclaims", pod.Name+"-"+v.Name)
		}
		visitVolume(&v.VolumeSource, each)
	}
}

func visitClaims(pod *corev1.Pod, each func(resource, name string)) {
	some := func(name *string) {
		if name != nil {
			each("resourceclaims", *name)
		}
	}
	for i := range pod.Spec.ResourceClaims {
		some(pod.Spec.ResourceClaims[i].ResourceClaimName)
	}
	for i := range pod.Status.ResourceClaimStatuses {
		some(pod.Status.ResourceClaimStatuses[i].ResourceClaimName)
	}
	if e := pod.Status.ExtendedResourceClaimStatus; e != nil {
		each("resourceclaims", e.ResourceClaimName)
	}
}

func visitEnv(from []corev1.EnvFromSource, env []corev1.EnvVar, each func(resource, name string)) {
	for i := range from {
		if r := from[i].SecretRef; r != nil {
			each("secrets", r.Name)
		}
		if r := from[i].ConfigMapRef; r != nil {
			each("configmaps", r.Name)
		}
	}
	for i := range env {
		v := env[i].ValueFrom
		if v == nil {
			continue
		}
		if v.SecretKeyRef != nil {
			each("secrets", v.SecretKeyRef.Name)
		}
		if v.ConfigMapKeyRef != nil {
			each("configmaps", v.ConfigMapKeyRef.Name)
		}
	}
}

func visitVolume(s *corev1.VolumeSource, each func(resource, name string)) {
	local := func(r *corev1.LocalObjectReference) {
		if r != nil {
			each("secrets", r.Name)
		}
	}
	switch {
	case s.Secret != nil:
		each("secrets", s.Secret.SecretName)
	case s.ConfigMap != nil:
		each("configmaps", s.ConfigMap.Name)
	case s.PersistentVolumeClaim != nil:
		each("persistentvolumeclaims", s.PersistentVolumeClaim.ClaimName)
	case s.Projected != nil:
		for i := range s.Projected.Sources {
			if p := s.Projected.Sources[i].Secret; p != nil {
				each("secrets", p.Name)
			}
			if p := s.Projected.Sources[i].ConfigMap; p != nil {
				each("configmaps", p.Name)
			}
		}
	case s.CSI != nil:
		local(s.CSI.NodePublishSecretRef)
	case s.ISCSI != nil:
		local(s.ISCSI.SecretRef)
	case s.FlexVolume != nil:
		local(s.FlexVolume.SecretRef)
	case s.AzureFile != nil:
		each("secrets", s.AzureFile.SecretName)
	case s.CephFS != nil:
		local(s.CephFS.SecretRef)
	case s.RBD != nil:
		local(s.RBD.SecretRef)
	case s.Cinder != nil:
		local(s.Cinder.SecretRef)
	case s.ScaleIO != nil:
		local(s.ScaleIO.SecretRef)
	case s.StorageOS != nil:
		local(s.StorageOS.SecretRef)
	}
}
