package volumes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/podspec"
)

// CSI sets up volumes by CSI drivers: package csi. A volume has the name of its PersistentVolume, or its
// own name if it is an inline volume.
type CSI interface {
	// SetUp mounts a volume of a pod. pv is nil for an inline volume. It reports whether the pod's fsGroup is to
	// be applied to the files.
	SetUp(
		ctx context.Context, pod *corev1.Pod, vol *corev1.Volume, pv *corev1.PersistentVolume,
	) (applyFSGroup bool, err error)
	// TearDown unmounts a volume of a pod and removes its directory.
	TearDown(ctx context.Context, uid types.UID, specName string) error
	// Mounted reports whether path is a mount point, without access to the mounted file system.
	Mounted(path string) bool
	// SELinuxRelabel reports whether the file system mounted at path supports SELinux labels.
	SELinuxRelabel(path string) bool
	// DevicePath returns the device file on the host of a raw block volume, which is a mount point while it is set up.
	DevicePath(uid types.UID, specName string) string
	// Progress describes what a call of SetUp or TearDown waits for; empty: no call is in progress.
	Progress(uid types.UID, specName string) string
}

// csiMount is the mount point in the directory of a csi volume.
const csiMount = "mount"

// csiData names the driver in the directory of a csi volume.
const csiData = "vol_data.json"

// mountDir returns the directory of a volume that containers mount.
func (v *Volumes) mountDir(uid types.UID, k kind, name string, m marker) string {
	switch {
	case k == csi && m.Block && v.CSI != nil:
		return v.CSI.DevicePath(uid, m.SpecName)
	case k == csi:
		return filepath.Join(v.volumeDir(uid, k, m.SpecName), csiMount)
	}
	return v.volumeDir(uid, k, name)
}

// mountCSI sets up a csi volume. The marker is written before the first call of the driver, so that the
// volume is unmounted even if a crash interrupts the setup.
func (v *Volumes) mountCSI(
	ctx context.Context, pod *corev1.Pod, vol *corev1.Volume, pv *corev1.PersistentVolume, version string,
) error {
	if v.CSI == nil {
		return invalid("CSI volumes are not supported on this node")
	}
	m := marker{Version: version, Boot: v.boot, SpecName: vol.Name, Incomplete: true}
	if pv != nil {
		m.SpecName, m.Block = pv.Name, isBlock(pv)
	}
	if err := checkNames(m.SpecName); err != nil {
		return err
	}
	if was, ok := v.readMarker(pod.UID, csi, vol.Name); ok && was.SpecName != m.SpecName {
		if err := v.CSI.TearDown(ctx, pod.UID, was.SpecName); err != nil {
			return err
		}
	}
	if err := v.writeMarker(pod.UID, csi, vol.Name, m); err != nil {
		return err
	}
	applyGroup, err := v.CSI.SetUp(ctx, pod, vol, pv)
	if err != nil {
		return err
	}
	dir := v.mountDir(pod.UID, csi, vol.Name, m)
	if applyGroup {
		gid, policy := int(*fsGroup(pod)), pod.Spec.SecurityContext.FSGroupChangePolicy
		err := await(ctx, func() error { return applyFSGroup(ctx, dir, gid, policy) })
		if err != nil {
			return fmt.Errorf("applyFSGroup failed for vol %s: %w", m.SpecName, err)
		}
	}
	m.Incomplete, m.Mounted = false, v.CSI.Mounted(dir)
	return v.writeMarker(pod.UID, csi, vol.Name, m)
}

// Progress describes what Mount or Unmount of a volume waits for; empty: unknown.
func (v *Volumes) Progress(uid types.UID, name string) string {
	if v.CSI == nil || checkNames(string(uid), name) != nil {
		return ""
	}
	m, ok := v.readMarker(uid, csi, name)
	if !ok {
		return ""
	}
	return v.CSI.Progress(uid, m.SpecName)
}

// CSIVolumes returns the names in paths of the pod's csi volumes that are set up, by volume.
func (v *Volumes) CSIVolumes(pod *corev1.Pod) map[string]string {
	out := map[string]string{}
	for i := range pod.Spec.Volumes {
		vol := &pod.Spec.Volumes[i]
		if checkNames(string(pod.UID), vol.Name) != nil || vol.CSI == nil && podspec.ClaimName(pod, vol) == "" {
			continue
		}
		if m, ok := v.readMarker(pod.UID, csi, vol.Name); ok && !m.Incomplete {
			out[vol.Name] = m.SpecName
		}
	}
	return out
}

// CSIVolumeName returns the name in a pod of the csi volume with a name in paths, or that name if it is not known.
func (v *Volumes) CSIVolumeName(pod *corev1.Pod, specName string) string {
	for name, spec := range v.CSIVolumes(pod) {
		if spec == specName {
			return name
		}
	}
	return specName
}

// await runs f, which accesses a file system that may not respond. If ctx ends, it returns, and f ends when
// the file system responds.
func await(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// tearDown unmounts a csi volume of a pod, if the volume is one.
func (v *Volumes) tearDown(ctx context.Context, uid types.UID, name string) error {
	m, ok := v.readMarker(uid, csi, name)
	if !ok || m.SpecName == "" {
		return nil
	}
	return v.tearDownSpec(ctx, uid, m.SpecName)
}

func (v *Volumes) tearDownSpec(ctx context.Context, uid types.UID, specName string) error {
	if err := checkNames(specName); err != nil {
		return err
	}
	if v.CSI == nil {
		return fmt.Errorf("volume %s requires its CSI driver, which is not supported on this node", specName)
	}
	return v.CSI.TearDown(ctx, uid, specName)
}

// tearDownAll unmounts the csi volumes of a pod that their driver must unmount, including those without a marker,
// which another agent has set up.
func (v *Volumes) tearDownAll(ctx context.Context, uid types.UID) error {
	devices, err := os.ReadDir(filepath.Join(v.podDir(uid), devicesDir, csi.dirName()))
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	for _, e := range devices {
		if err := v.tearDownSpec(ctx, uid, e.Name()); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(filepath.Join(v.podDir(uid), volumesDir, csi.dirName()))
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	for _, e := range entries {
		data := filepath.Join(v.volumeDir(uid, csi, e.Name()), csiData)
		if there, err := exists(data); err != nil || !there {
			continue // unmounted like other volumes
		}
		if err := v.tearDownSpec(ctx, uid, e.Name()); err != nil {
			return err
		}
	}
	return nil
}
