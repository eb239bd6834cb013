package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Unmount removes a volume from the host: its subPath mounts, its mount, its data if it belongs to
// the pod, and last its marker. It is based on what exists on disk, so the volume may be missing in
// the spec. It may be repeated. In a pod directory that berth did not create, nothing is changed.
func (v *Volumes) Unmount(ctx context.Context, pod *corev1.Pod, name string) error {
	if err := v.unmountVolume(ctx, pod.UID, name); err != nil {
		return failed("FailedUnmount", fmt.Errorf("UnmountVolume.TearDown failed for volume %q : %w", name, err))
	}
	return nil
}

func (v *Volumes) unmountVolume(ctx context.Context, uid types.UID, name string) error {
	if err := errors.Join(ctx.Err(), checkNames(string(uid), name)); err != nil {
		return err
	}
	if _, owned, err := v.PodDir(uid); err != nil || !owned {
		return err
	}
	if err := v.removeSubPaths(ctx, uid, name); err != nil {
		return err
	}
	if err := v.tearDown(ctx, uid, name); err != nil {
		return err
	}
	for _, k := range kinds {
		if err := v.removeVolume(ctx, uid, k, name); err != nil {
			return err
		}
	}
	return nil
}

// removeVolume renames the volume's directory before it deletes it, so that a partial volume is
// never visible.
func (v *Volumes) removeVolume(ctx context.Context, uid types.UID, k kind, name string) error {
	if k == csi { // its directory has another name, and the driver has removed it
		return removeTree(ctx, v.markerDir(uid, k, name))
	}
	trash := filepath.Join(v.podDir(uid), trashDir, string(k)+"~"+name)
	if err := removeTree(ctx, trash); err != nil {
		return err
	}
	dir := v.volumeDir(uid, k, name)
	if err := unmount(dir); err != nil {
		return err
	}
	there, err := exists(dir)
	if err != nil {
		return err
	}
	if there {
		if err := os.MkdirAll(filepath.Dir(trash), 0o750); err != nil {
			return err
		}
		if err := os.Rename(dir, trash); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := removeTree(ctx, trash); err != nil {
			return err
		}
	}
	return removeTree(ctx, v.markerDir(uid, k, name))
}

// removeSubPaths removes the subPath mounts of a volume.
func (v *Volumes) removeSubPaths(ctx context.Context, uid types.UID, name string) error {
	dir := filepath.Join(v.podDir(uid), subPathsDir, name)
	paths, err := globBelow(dir, []string{"*", "*"})
	if err != nil {
		return err
	}
	for _, p := range paths {
		if err := unmount(p); err != nil {
			return err
		}
	}
	return removeTree(ctx, dir)
}
