package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/podspec"
)

// resolveClaim returns the volume of a pod with the source of the volume that its claim is bound to. A volume without a
// claim is returned unchanged. A local volume has the source hostPath: containers mount its path, too.
func resolveClaim(pod *corev1.Pod, vol *corev1.Volume, objs plan.Objects) (*corev1.Volume, error) {
	name := podspec.ClaimName(pod, vol)
	if name == "" {
		return vol, nil
	}
	bound := boundVolume(pod, vol, objs)
	if bound == nil {
		return nil, fmt.Errorf("PersistentVolumeClaim %q is not bound", name)
	}
	out := &corev1.Volume{Name: vol.Name}
	switch src := &bound.Spec.PersistentVolumeSource; {
	case src.HostPath != nil && isBlock(bound):
		return nil, &plan.Error{Kind: plan.Unsupported, Err: fmt.Errorf(
			"PersistentVolume %q: a hostPath volume cannot have volumeMode Block", bound.Name)}
	case src.HostPath != nil:
		out.HostPath = src.HostPath
	case src.Local != nil:
		out.HostPath = &corev1.HostPathVolumeSource{Path: src.Local.Path}
	case src.CSI != nil:
		out.CSI = &corev1.CSIVolumeSource{Driver: src.CSI.Driver}
	default:
		return nil, &plan.Error{Kind: plan.Unsupported, Err: fmt.Errorf(
			"PersistentVolume %q: only hostPath, local and csi volumes are supported", bound.Name)}
	}
	return out, nil
}

// boundVolume returns the PersistentVolume that the claim of a volume is bound to. Nil: it has no claim, or it is
// not bound.
func boundVolume(pod *corev1.Pod, vol *corev1.Volume, objs plan.Objects) *corev1.PersistentVolume {
	name := podspec.ClaimName(pod, vol)
	if name == "" {
		return nil
	}
	return objs[plan.Ref{Kind: plan.Claim, Name: name}].Volume
}

// localPath returns the path of the local volume that a claim is bound to, or "".
func localPath(pod *corev1.Pod, vol *corev1.Volume, objs plan.Objects) string {
	bound := boundVolume(pod, vol, objs)
	if bound == nil || bound.Spec.Local == nil {
		return ""
	}
	return bound.Spec.Local.Path
}

// setUpLocalDevice checks that a local volume with volumeMode Block is a block device.
func setUpLocalDevice(path string) error {
	fi, err := os.Stat(path)
	switch {
	case err != nil:
		return fmt.Errorf("local volume: %w", err)
	case fi.Mode()&fs.ModeDevice == 0 || fi.Mode()&fs.ModeCharDevice != 0:
		return invalid("local volume %s has volumeMode Block and is not a block device", path)
	}
	return nil
}

// setUpLocal checks that the directory of a local volume exists, and applies the pod's fsGroup to it. Nothing is
// created: a missing directory may be a disk that is not mounted.
func (v *Volumes) setUpLocal(ctx context.Context, pod *corev1.Pod, path string) error {
	if !filepath.IsAbs(path) || slices.Contains(strings.Split(path, "/"), "..") {
		return invalid("local.path %q must be absolute and without '..'", path)
	}
	fi, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("path %q does not exist", path)
	case err != nil:
		return fmt.Errorf("local volume: %w", err)
	case fi.Mode()&fs.ModeDevice != 0:
		return &plan.Error{Kind: plan.Unsupported, Err: fmt.Errorf(
			"local volume %s is a block device: only directories and volumeMode Block are supported", path)}
	case !fi.IsDir():
		return invalid("local volume %s is not a directory", path)
	}
	group := fsGroup(pod)
	if group == nil {
		return nil
	}
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return fmt.Errorf("local volume: %w", err)
	}
	return applyFSGroup(ctx, resolved, int(*group), pod.Spec.SecurityContext.FSGroupChangePolicy)
}
