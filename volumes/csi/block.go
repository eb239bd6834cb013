package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	blockDirName = "volumeDevices"
	blockDataDir = "data"

	stagingDirName, publishDirName = "staging", "publish" // with an entry for each volume

	blockMapDir = "dev" // device files of pods, bind-mounted from where the driver has published them
)

// Directories of a raw block volume are named after its PersistentVolume, in the layout of the kubelet.

func (m *Manager) blockRoot() string { return filepath.Join(m.pluginDir(), blockDirName) }

func (m *Manager) blockDir(specName string) string { return filepath.Join(m.blockRoot(), specName) }

func (m *Manager) blockStaging(specName string) string {
	return filepath.Join(m.blockRoot(), stagingDirName, specName)
}

// blockTarget is the publish target of a pod.
func (m *Manager) blockTarget(uid types.UID, specName string) string {
	return filepath.Join(m.blockRoot(), publishDirName, specName, string(uid))
}

// DevicePath returns the device file on the host of a raw block volume of a pod.
func (m *Manager) DevicePath(uid types.UID, specName string) string {
	return filepath.Join(m.blockDir(specName), blockMapDir, string(uid))
}

// podDevice is the link in the pod's directory that stands for a raw block volume of a pod.
func (m *Manager) podDevice(uid types.UID, specName string) string {
	return filepath.Join(m.opt.RootDir, "pods", string(uid), blockDirName, podVolumesDir, specName)
}

// isBlock reports whether a directory of stagedVolumes is that of a raw block volume.
func (m *Manager) isBlock(dir string) bool { return filepath.Dir(dir) == m.blockRoot() }

// blockVolumes reads the raw block volumes on the host: the staged ones by their directory, and the published ones by
// the link in the directory of the pod. A volume without readable data is an error if a pod may use it.
func (m *Manager) blockVolumes() (staged, published map[string]volumeData, err error) {
	paths, err := filepath.Glob(filepath.Join(literal.Replace(m.blockRoot()), "*", blockDataDir, dataName))
	staged, published = map[string]volumeData{}, map[string]volumeData{}
	for _, path := range paths {
		dir := filepath.Dir(filepath.Dir(path))
		specName := filepath.Base(dir)
		pods, podsErr := m.blockPods(specName)
		err = errors.Join(err, podsErr)
		d, exists, readErr := readData(filepath.Dir(path))
		switch {
		case readErr != nil && len(pods) > 0:
			err = errors.Join(err, readErr)
			continue
		case readErr != nil || !exists:
			continue
		}
		staged[dir] = d
		for _, uid := range pods {
			published[m.podDevice(uid, specName)] = d
		}
	}
	return staged, published, err
}

// blockPods returns the pods that a raw block volume may be published for.
func (m *Manager) blockPods(specName string) (out []types.UID, err error) {
	for _, path := range []string{m.DevicePath("uid", specName), m.blockTarget("uid", specName)} {
		entries, readErr := os.ReadDir(filepath.Dir(path))
		if readErr != nil && !errors.Is(readErr, fs.ErrNotExist) {
			err = errors.Join(err, readErr)
		}
		for _, e := range entries {
			out = append(out, types.UID(e.Name()))
		}
	}
	return out, err
}

// blockPublished returns the data of a raw block volume, if it may be published for a pod.
func (m *Manager) blockPublished(uid types.UID, specName string) (d volumeData, exists bool, err error) {
	for _, path := range []string{m.DevicePath(uid, specName), m.blockTarget(uid, specName),
		m.podDevice(uid, specName)} {
		if _, err := os.Lstat(path); err == nil {
			exists = true
		} else if !errors.Is(err, fs.ErrNotExist) {
			return d, true, err
		}
	}
	if !exists {
		return d, false, nil
	}
	d, known, err := readData(filepath.Join(m.blockDir(specName), blockDataDir))
	if err == nil && !known {
		err = fmt.Errorf("the driver of the raw block volume %s is not known: no %s", specName, dataName)
	}
	return d, true, err
}

// prepareBlock records a raw block volume before the first call of its driver.
func (m *Manager) prepareBlock(r request) error {
	dir := m.blockDir(r.specName)
	data := r.data(m.opt.NodeName)
	data.LifecycleMode = "" // as the kubelet
	has, exists, err := readData(filepath.Join(dir, blockDataDir))
	if exists && err == nil && has.key() != r.key {
		return fmt.Errorf("volume %s of CSI driver %s with the same name is still in use", has.Handle, has.Driver)
	}
	if err := mark(dir); err != nil {
		return err
	}
	if exists && err == nil && has == data {
		return nil
	}
	return writeData(filepath.Join(dir, blockDataDir), data)
}

// prepareDevice creates the directory of the publish target, and the record that a raw block volume may be published
// for a pod, which is the mount point of its device file.
func (m *Manager) prepareDevice(r request) error {
	if err := m.prepareBlock(r); err != nil {
		return err
	}
	device := m.DevicePath(r.pod.UID, r.specName)
	for _, dir := range []string{filepath.Dir(device), filepath.Dir(m.publishTarget(r))} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return err
		}
	}
	if mounted, err := m.opt.mounted(device); err != nil || mounted {
		return err
	}
	f, err := os.OpenFile(device, os.O_RDONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o640)
	if err != nil {
		return err
	}
	return f.Close()
}

// mapDevice makes a published raw block volume available to the containers of a pod.
func (m *Manager) mapDevice(r request) error {
	target, device := m.blockTarget(r.pod.UID, r.specName), m.DevicePath(r.pod.UID, r.specName)
	if err := m.opt.devices.check(target); err != nil {
		return err
	}
	mounted, err := m.opt.mounted(device)
	if err != nil {
		return err
	}
	if !mounted {
		if err := m.opt.devices.bind(target, device); err != nil {
			return fmt.Errorf("map the device: %w", err)
		}
		m.opt.fault("device mapped")
	}
	link := m.podDevice(r.pod.UID, r.specName)
	if to, err := os.Readlink(link); err == nil && to == target {
		return nil
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o750), removeFile(link)); err != nil {
		return err
	}
	return os.Symlink(target, link)
}

// tearDownBlock unpublishes a raw block volume of a pod. The record of its publication is removed last.
func (m *Manager) tearDownBlock(ctx context.Context, v podVolume, d volumeData) error {
	if err := mark(m.blockDir(v.specName)); err != nil { // an adopted pod may be the last one that uses it
		return err
	}
	if err := removeFile(m.podDevice(v.uid, v.specName)); err != nil {
		return err
	}
	device, target := m.DevicePath(v.uid, v.specName), m.blockTarget(v.uid, v.specName)
	mounted, err := m.opt.mounted(device)
	if err != nil {
		return err
	}
	if mounted {
		if err := m.opt.devices.unbind(device); err != nil {
			return fmt.Errorf("unmap the device: %w", err)
		}
		m.opt.fault("device unmapped")
	}
	if err := m.unpublish(ctx, v, d, target); err != nil {
		return err
	}
	if mounted, err = m.opt.mounted(target); err != nil {
		return err
	} else if mounted {
		return fmt.Errorf("%s is still mounted", target)
	}
	for _, path := range []string{target, device} {
		if err := removeFile(path); err != nil {
			return err
		}
	}
	return nil
}

// removeBlock removes the directories of a raw block volume that no pod uses. It fails if they are not empty.
func (m *Manager) removeBlock(specName string) error {
	dir := m.blockDir(specName)
	for _, path := range []string{
		filepath.Dir(m.blockTarget("uid", specName)), m.blockStaging(specName), filepath.Join(dir, blockMapDir),
	} {
		if err := removeFile(path); err != nil {
			return err
		}
	}
	// The mark is removed before the data: without data, nothing of the volume is left to unstage.
	for _, path := range []string{
		filepath.Join(dir, blockDataDir, dataName+".tmp"), filepath.Join(dir, ownerName),
		filepath.Join(dir, blockDataDir, dataName), filepath.Join(dir, blockDataDir), dir,
	} {
		if err := removeFile(path); err != nil {
			return err
		}
	}
	return nil
}

// removeFile removes a file or an empty directory, if it exists.
func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// deviceFiles are the operations on the device files of raw block volumes.
type deviceFiles struct {
	check  func(path string) error // returns an error if path is not a block device
	bind   func(from, to string) error
	unbind func(path string) error
}

// hostDevices are the operations on the host.
var hostDevices = deviceFiles{
	check: func(path string) error {
		fi, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("published device: %w", err)
		}
		if fi.Mode()&fs.ModeDevice == 0 || fi.Mode()&fs.ModeCharDevice != 0 {
			return fmt.Errorf("the CSI driver has not published a block device at %s", path)
		}
		return nil
	},
	bind: func(from, to string) error { return unix.Mount(from, to, "", unix.MS_BIND, "") },
	unbind: func(path string) error {
		return unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
	},
}

// isBlockVolume reports whether a PersistentVolume is a raw block volume.
func isBlockVolume(pv *corev1.PersistentVolume) bool {
	return pv != nil && pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == corev1.PersistentVolumeBlock
}
