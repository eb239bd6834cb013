package volumes

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

func TestClaims(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	block := corev1.PersistentVolumeBlock
	local := func(path string) corev1.PersistentVolumeSpec {
		return corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
			Local: &corev1.LocalVolumeSource{Path: path}}}
	}
	raw := local(data)
	raw.VolumeMode = &block
	must(t, os.WriteFile(filepath.Join(data, "file"), nil, 0o600))
	for _, tc := range []struct {
		name        string
		spec        *corev1.PersistentVolumeSpec
		path, wrong string
		unsupported bool
	}{
		{"local volume", new(local(data)), data, "", false},
		{"hostPath volume", &corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: data}}}, data, "", false},
		{"directory of a local volume is missing", new(local(data + "/missing")), "", "does not exist", false},
		{"local volume is a file", new(local(data + "/file")), "", "is not a directory", false},
		{"path with dots", new(local(data + "/../x")), "", "without '..'", false},
		{"block", &raw, "", "has volumeMode Block, but is specified in volumeMounts", false},
		{"other kind", &corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
			NFS: &corev1.NFSVolumeSource{Server: "s", Path: "/"}}}, "", "only hostPath, local and csi", true},
		{"not bound", nil, "", `PersistentVolumeClaim "data" is not bound`, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			v := newVolumes(t)
			pod := newPod(vol("v", corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data", ReadOnly: true}}))
			pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/data"}}
			objs := plan.Objects{}
			if tc.spec != nil {
				objs[plan.Ref{Kind: plan.Claim, Name: "data"}] = plan.Object{
					Volume: &corev1.PersistentVolume{Spec: *tc.spec}}
			}
			err := v.Mount(t.Context(), pod, "v", "uid", objs, nil)
			if tc.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wrong) ||
					(plan.KindOf(err) == plan.Unsupported) != tc.unsupported {
					t.Fatalf("got error %v of kind %v, want %q", err, plan.KindOf(err), tc.wrong)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, vols, err := v.Observe(t.Context(), pod); err != nil || vols["v"].Version != "uid" {
				t.Errorf("volumes %v, error %v, want v with its version", vols, err)
			}
			m, err := v.volumeMount(t.Context(), pod, &pod.Spec.Containers[0], 0, objs, plan.Sandbox{})
			if err != nil || m.HostPath != tc.path || !m.ReadOnly || m.ContainerPath != "/data" {
				t.Errorf("got mount %+v, error %v", m, err)
			}
		})
	}
}

func TestLocalVolumeHasFSGroup(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("changes the group of files")
	}
	data := t.TempDir()
	pod := newPod()
	group := int64(4711)
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	v := newVolumes(t)
	must(t, v.setUpLocal(t.Context(), pod, data))
	if got := gid(t, data); got != 4711 {
		t.Errorf("group %d, want 4711", got)
	}
	if err := v.setUpLocal(t.Context(), pod, "relative"); err == nil || errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v for a relative path", err)
	}
}
