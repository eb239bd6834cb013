package podspec

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestVolumePluginNamesMountedVolumes(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{
		"EmptyDir": "kubernetes.io/empty-dir", "HostPath": "kubernetes.io/host-path",
		"ConfigMap": "kubernetes.io/configmap", "Secret": "kubernetes.io/secret",
		"DownwardAPI": "kubernetes.io/downward-api", "Projected": "kubernetes.io/projected",
		"Image": "kubernetes.io/image", "NFS": "kubernetes.io/nfs", "CSI": "kubernetes.io/csi",
		"GCEPersistentDisk": "",
	} {
		v := corev1.Volume{}
		field := reflect.ValueOf(&v.VolumeSource).Elem().FieldByName(source)
		field.Set(reflect.New(field.Type().Elem()))
		if got := VolumePlugin(&v); got != want {
			t.Errorf("%s: got %q, want %q", source, got, want)
		}
	}
	if got := VolumePlugin(&corev1.Volume{}); got != "" {
		t.Errorf("no source: got %q", got)
	}
}
