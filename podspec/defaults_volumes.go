package podspec

import (
	corev1 "k8s.io/api/core/v1"
)

// defaultVolume sets the defaults of every volume type. A volume without a source is an emptyDir.
func defaultVolume(v *corev1.VolumeSource) {
	if *v == (corev1.VolumeSource{}) {
		v.EmptyDir = &corev1.EmptyDirVolumeSource{}
	}
	if s := v.HostPath; s != nil {
		setIfNil(&s.Type, corev1.HostPathUnset)
	}
	if s := v.ConfigMap; s != nil {
		setIfNil(&s.DefaultMode, corev1.ConfigMapVolumeSourceDefaultMode)
	}
	if s := v.Secret; s != nil {
		setIfNil(&s.DefaultMode, corev1.SecretVolumeSourceDefaultMode)
	}
	if s := v.DownwardAPI; s != nil {
		setIfNil(&s.DefaultMode, corev1.DownwardAPIVolumeSourceDefaultMode)
		defaultDownwardItems(s.Items)
	}
	if s := v.Projected; s != nil {
		defaultProjected(s)
	}
	if s := v.Image; s != nil {
		setIfZero(&s.PullPolicy, pullPolicy(s.Reference))
	}
	if s := v.Ephemeral; s != nil && s.VolumeClaimTemplate != nil {
		defaultClaim(&s.VolumeClaimTemplate.Spec)
	}
	defaultRemoteVolume(v)
}

func defaultProjected(p *corev1.ProjectedVolumeSource) {
	setIfNil(&p.DefaultMode, corev1.ProjectedVolumeSourceDefaultMode)
	for i := range p.Sources {
		if s := p.Sources[i].DownwardAPI; s != nil {
			defaultDownwardItems(s.Items)
		}
		if s := p.Sources[i].ServiceAccountToken; s != nil {
			setIfNil(&s.ExpirationSeconds, 3600)
		}
		if s := p.Sources[i].PodCertificate; s != nil {
			setIfNil(&s.MaxExpirationSeconds, 86400)
		}
	}
}

func defaultDownwardItems(items []corev1.DownwardAPIVolumeFile) {
	for i := range items {
		defaultFieldRef(items[i].FieldRef)
	}
}

// defaultRemoteVolume sets the defaults of in-tree network volumes.
func defaultRemoteVolume(v *corev1.VolumeSource) {
	if s := v.ISCSI; s != nil {
		setIfZero(&s.ISCSIInterface, "default")
	}
	if s := v.RBD; s != nil {
		setIfZero(&s.RBDPool, "rbd")
		setIfZero(&s.RadosUser, "admin")
		setIfZero(&s.Keyring, "/etc/ceph/keyring")
	}
	if s := v.AzureDisk; s != nil {
		setIfNil(&s.CachingMode, corev1.AzureDataDiskCachingReadWrite)
		setIfNil(&s.Kind, corev1.AzureSharedBlobDisk)
		setIfNil(&s.FSType, "ext4")
		setIfNil(&s.ReadOnly, false)
	}
	if s := v.ScaleIO; s != nil {
		setIfZero(&s.StorageMode, "ThinProvisioned")
		setIfZero(&s.FSType, "xfs")
	}
}

// SetClaimDefaults sets the defaults of a claim.
func SetClaimDefaults(c *corev1.PersistentVolumeClaim) {
	setIfZero(&c.Status.Phase, corev1.ClaimPending)
	defaultClaim(&c.Spec)
}

func defaultClaim(c *corev1.PersistentVolumeClaimSpec) {
	setIfNil(&c.VolumeMode, corev1.PersistentVolumeFilesystem)
	roundUp(c.Resources.Limits)
	roundUp(c.Resources.Requests)
}
