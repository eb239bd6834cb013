package csi

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
)

// blockVolume returns a raw block volume of the driver.
func blockVolume(name string) *corev1.PersistentVolume {
	pv := testVolume(name)
	pv.Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
	return pv
}

// blockHost returns a manager with a driver that publishes files instead of devices.
func blockHost(t *testing.T) *host {
	t.Helper()
	d := newFakeNode(stages)
	d.handle = func(_ context.Context, _ string, q any) error {
		switch q := q.(type) {
		case *csipb.NodePublishVolumeRequest:
			return os.WriteFile(q.GetTargetPath(), nil, 0o600) // the directory exists
		case *csipb.NodeUnpublishVolumeRequest:
			return os.Remove(q.GetTargetPath())
		}
		return nil
	}
	h := newHost(t, d, csiDriver(nil))
	h.opt.devices = deviceFiles{
		check:  func(path string) error { _, err := os.Stat(path); return err },
		bind:   func(_, to string) error { h.mounts.put(to, true); return nil },
		unbind: func(path string) error { h.mounts.put(path, false); return nil },
	}
	h.register()
	return h
}

// TestBlockVolume checks the calls and the layout, which are those of the kubelet.
func TestBlockVolume(t *testing.T) {
	t.Parallel()
	h := blockHost(t)
	pod, pv := testPod("one"), blockVolume("pv")
	pod.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(7))}
	applyGroup, err := h.SetUp(t.Context(), pod, &pod.Spec.Volumes[0], pv)
	if err != nil || applyGroup {
		t.Fatalf("got %v, the group is applied to the files: %v", err, applyGroup)
	}
	root := filepath.Join(h.opt.RootDir, "plugins/kubernetes.io/csi/volumeDevices")
	stage := h.driver.request("NodeStageVolume").(*csipb.NodeStageVolumeRequest)
	if stage.GetStagingTargetPath() != root+"/staging/pv" || stage.GetVolumeCapability().GetBlock() == nil {
		t.Errorf("got stage request %v", stage)
	}
	publish := h.driver.request("NodePublishVolume").(*csipb.NodePublishVolumeRequest)
	if publish.GetStagingTargetPath() != root+"/staging/pv" || publish.GetTargetPath() != root+"/publish/pv/one" ||
		publish.GetVolumeCapability().GetBlock() == nil || !publish.GetReadonly() {
		t.Errorf("got publish request %v", publish)
	}
	text, err := os.ReadFile(root + "/pv/data/vol_data.json")
	if err != nil || !strings.Contains(string(text), `"specVolID":"pv"`) || strings.Contains(string(text), "Lifecycle") {
		t.Errorf("got vol_data.json %s, %v", text, err)
	}
	device := h.DevicePath("one", "pv")
	if mounted, _ := h.mounts.mounted(device); !mounted || device != root+"/pv/dev/one" {
		t.Errorf("device %s is mapped: %v", device, mounted)
	}
	link := filepath.Join(h.opt.RootDir, "pods/one/volumeDevices/kubernetes.io~csi/pv")
	if to, err := os.Readlink(link); err != nil || to != root+"/publish/pv/one" {
		t.Errorf("got link to %s, %v", to, err)
	}
	if err := h.setUp(testPod("two"), pv); err != nil {
		t.Fatal(err)
	}
	if n := h.driver.count("NodeStageVolume"); n != 1 {
		t.Errorf("staged %d times", n)
	}
	for _, uid := range []string{"one", "two"} {
		if n := h.driver.count("NodeUnstageVolume"); n != 0 {
			t.Errorf("unstaged while pod %s uses the volume", uid)
		}
		if err := h.TearDown(t.Context(), testPod(uid).UID, "pv"); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the removal of the volume", func() bool {
		return len(filesBelow(t, h.opt.RootDir)) == 2 // the directories of the pods
	})
	if n := h.driver.count("NodeUnstageVolume"); n != 1 || len(h.mounts.all()) > 0 {
		t.Errorf("unstaged %d times, mounts left: %q", n, h.mounts.all())
	}
}

func TestBlockVolumeErrors(t *testing.T) {
	t.Parallel()
	h := blockHost(t)
	h.opt.devices.check = hostDevices.check
	err := h.setUp(testPod("one"), blockVolume("pv"))
	if err == nil || !strings.Contains(err.Error(), "has not published a block device") {
		t.Errorf("got %v, want an error: the driver has published a file", err)
	}
	if mounts := h.mounts.all(); len(mounts) > 0 {
		t.Errorf("mapped %q", mounts)
	}
	// The volume was replaced by another one with its name, and is still in use.
	other := blockVolume("pv")
	other.Spec.CSI.VolumeHandle = "other"
	if err := h.setUp(testPod("two"), other); err == nil || !strings.Contains(err.Error(), "still in use") {
		t.Errorf("got %v, want an error: the name is in use", err)
	}
	if err := h.setUp(testPod("two"), blockVolume("publish")); err == nil {
		t.Error("a volume with the name of a directory was set up")
	}
	if err := h.TearDown(t.Context(), "one", "pv"); err != nil {
		t.Error(err)
	}
}

// TestUnreadableBlockVolume reads a volume whose data a loss of power has truncated.
func TestUnreadableBlockVolume(t *testing.T) {
	t.Parallel()
	h := blockHost(t)
	if err := h.setUp(testPod("one"), blockVolume("pv")); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(h.blockDir("pv"), blockDataDir, dataName)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := h.publishedVolumes(); err == nil {
		t.Error("the volume of a pod is not reported")
	}
	if err := h.TearDown(t.Context(), "one", "pv"); err == nil {
		t.Error("the volume was removed without its driver")
	}
	if err := errors.Join(os.Remove(h.DevicePath("one", "pv")), os.Remove(h.blockTarget("one", "pv"))); err != nil {
		t.Fatal(err)
	}
	if published, err := h.publishedVolumes(); err != nil || len(published) > 0 {
		t.Errorf("got %v, %v", published, err)
	}
}
