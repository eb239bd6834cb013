package volumes

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
)

// fakeCSI sets up all volumes.
type fakeCSI struct {
	root    string
	mounted bool
}

func (c fakeCSI) SetUp(context.Context, *corev1.Pod, *corev1.Volume, *corev1.PersistentVolume) (bool, error) {
	return false, nil
}
func (c fakeCSI) TearDown(context.Context, types.UID, string) error { return nil }
func (c fakeCSI) Mounted(string) bool                               { return c.mounted }
func (c fakeCSI) SELinuxRelabel(string) bool                        { return false }
func (c fakeCSI) Progress(types.UID, string) string                 { return "" }
func (c fakeCSI) DevicePath(uid types.UID, specName string) string {
	return filepath.Join(c.root, specName, string(uid))
}

// devicePod returns a pod that uses the claim "data" as a device.
func devicePod() *corev1.Pod {
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name, pod.UID = "default", "p", "uid"
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	pod.Spec.Containers = []corev1.Container{{Name: "c",
		VolumeDevices: []corev1.VolumeDevice{{Name: "v", DevicePath: "/dev/data"}}}}
	return pod
}

// claimObjects returns the claim "data" with its volume.
func claimObjects(src corev1.PersistentVolumeSource, mode corev1.PersistentVolumeMode) plan.Objects {
	pv := &corev1.PersistentVolume{}
	pv.Name = "pv"
	pv.Spec.PersistentVolumeSource, pv.Spec.VolumeMode = src, &mode
	return plan.Objects{{Kind: plan.Claim, Name: "data"}: {Volume: pv}}
}

var csiSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}}

func TestContainerDevices(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	v, err := New(Options{RootDir: root, PodLogsDir: filepath.Join(root, "logs")})
	if err != nil {
		t.Fatal(err)
	}
	v.CSI = fakeCSI{filepath.Join(root, "devices"), true}
	pod, objs := devicePod(), claimObjects(csiSource, corev1.PersistentVolumeBlock)
	if err := v.CreateDirs(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	_, err = v.ContainerDevices(t.Context(), pod, &pod.Spec.Containers[0], objs)
	if err == nil || !strings.Contains(err.Error(), "not set up") {
		t.Errorf("got %v, want an error: the volume is not set up", err)
	}
	if err := v.Mount(t.Context(), pod, "v", "1", objs, nil); err != nil {
		t.Fatal(err)
	}
	want := plan.DeviceNode{HostPath: root + "/devices/pv/uid", ContainerPath: "/dev/data", Permissions: "mrw"}
	for _, readOnly := range []bool{false, true} {
		if readOnly {
			pod.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
			want.Permissions = "r"
		}
		got, err := v.ContainerDevices(t.Context(), pod, &pod.Spec.Containers[0], objs)
		if err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("got %v, %v, want %v", got, err, want)
		}
	}
	if got := v.CSIVolumeName(pod, "pv"); got != "v" {
		t.Errorf("volume pv has the name %s in the pod", got)
	}
	if got := v.CSIVolumeName(pod, "other"); got != "other" {
		t.Errorf("an unknown volume has the name %s in the pod", got)
	}
	if _, vols, err := v.Observe(t.Context(), pod); err != nil || vols["v"].Incomplete || vols["v"].Version != "1" {
		t.Errorf("got volumes %v, %v", vols, err)
	}
	v.CSI = fakeCSI{filepath.Join(root, "devices"), false}
	if _, vols, err := v.Observe(t.Context(), pod); err != nil || !vols["v"].Incomplete {
		t.Errorf("got volumes %v, %v: the device is not mapped", vols, err)
	}
}

func TestVolumeModeErrors(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	v, err := New(Options{RootDir: root, PodLogsDir: filepath.Join(root, "logs")})
	if err != nil {
		t.Fatal(err)
	}
	v.CSI = fakeCSI{root, true}
	file := filepath.Join(root, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	mounting := devicePod()
	mounting.Spec.Containers[0].VolumeDevices = nil
	mounting.Spec.InitContainers = []corev1.Container{{Name: "i",
		VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/data"}}}}
	local := func(path string) corev1.PersistentVolumeSource {
		return corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}}
	}
	for _, c := range []struct {
		name string
		pod  *corev1.Pod
		objs plan.Objects
		want string // in the error
		kind plan.ErrorKind
	}{
		{"a raw block volume is mounted", mounting, claimObjects(csiSource, corev1.PersistentVolumeBlock),
			"volume v has volumeMode Block, but is specified in volumeMounts", plan.Invalid},
		{"a file system is used as a device", devicePod(), claimObjects(csiSource, corev1.PersistentVolumeFilesystem),
			"volume v has volumeMode Filesystem, but is specified in volumeDevices", plan.Invalid},
		{"a local volume is no device", devicePod(), claimObjects(local(file), corev1.PersistentVolumeBlock),
			"is not a block device", plan.Invalid},
		{"a local device does not exist", devicePod(), claimObjects(local("/none"), corev1.PersistentVolumeBlock),
			"no such file", plan.Other},
		{"a directory of the host is no device", devicePod(), claimObjects(corev1.PersistentVolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: "/tmp"}}, corev1.PersistentVolumeBlock),
			"cannot have volumeMode Block", plan.Unsupported},
	} {
		if err := v.CreateDirs(t.Context(), c.pod); err != nil {
			t.Fatal(err)
		}
		err := v.Mount(t.Context(), c.pod, "v", "1", c.objs, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) || plan.KindOf(err) != c.kind {
			t.Errorf("%s: got %v of kind %d, want %q of kind %d", c.name, err, plan.KindOf(err), c.want, c.kind)
		}
	}
}
