package podspec

import corev1 "k8s.io/api/core/v1"

// VolumePlugin returns the name of the volume plugin that upstream uses for a volume, such as
// kubernetes.io/empty-dir. It is empty if the volume has an unknown source.
func VolumePlugin(v *corev1.Volume) string {
	for _, p := range []struct {
		is   bool
		name string
	}{
		{v.EmptyDir != nil, "kubernetes.io/empty-dir"},
		{v.HostPath != nil, "kubernetes.io/host-path"},
		{v.ConfigMap != nil, "kubernetes.io/configmap"},
		{v.Secret != nil, "kubernetes.io/secret"},
		{v.DownwardAPI != nil, "kubernetes.io/downward-api"},
		{v.Projected != nil, "kubernetes.io/projected"},
		{v.Image != nil, "kubernetes.io/image"},
		{v.NFS != nil, "kubernetes.io/nfs"},
		{v.ISCSI != nil, "kubernetes.io/iscsi"},
		{v.FC != nil, "kubernetes.io/fc"},
		{v.FlexVolume != nil, "flexvolume"},
		{v.CSI != nil, "kubernetes.io/csi"},
		{v.PersistentVolumeClaim != nil, "kubernetes.io/persistent-claim"},
		{v.Ephemeral != nil, "kubernetes.io/persistent-claim"},
	} {
		if p.is {
			return p.name
		}
	}
	return ""
}
