package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
)

// Observe returns what exists of the pod on the host, whether it is in the spec or not. Only the
// UID of the pod is required. dirs is true as long as anything of the pod's own directory is left
// to remove. A directory that berth did not create does not count.
func (v *Volumes) Observe(
	ctx context.Context,
	pod *corev1.Pod,
) (dirs bool, vols map[string]plan.VolumeStatus, err error) {
	if err := errors.Join(ctx.Err(), checkNames(string(pod.UID))); err != nil {
		return false, nil, failed("", fmt.Errorf("read pod directories: %w", err))
	}
	vols = map[string]plan.VolumeStatus{}
	_, owned, err := v.PodDir(pod.UID)
	if err != nil {
		return false, nil, failed("", err)
	}
	if !owned {
		left, err := exists(v.podTrash(pod.UID))
		if err != nil {
			return false, nil, failed("", err)
		}
		return left, vols, nil
	}
	err = v.eachVolume(pod.UID, pluginsDir, func(k kind, name string) error {
		m, ok := v.setUp(pod.UID, k, name)
		if ok || k == csi { // a driver may have mounted it already, or must unmount it
			vols[name] = plan.VolumeStatus{Version: m.Version, Incomplete: !ok}
		}
		return nil
	})
	if err != nil {
		return false, nil, failed("", fmt.Errorf("read pod volumes: %w", err))
	}
	return true, vols, nil
}

// eachVolume calls f for every volume with an entry in one of the pod's directories by kind.
// Unknown kinds are skipped.
func (v *Volumes) eachVolume(uid types.UID, in string, f func(kind, string) error) error {
	for _, k := range kinds {
		entries, err := os.ReadDir(filepath.Join(v.podDir(uid), in, k.dirName()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := f(k, e.Name()); err != nil {
				return err
			}
		}
	}
	return nil
}

// invalidUIDRune reports a character that does not occur in UIDs. A directory with such a name
// belongs to another program.
func invalidUIDRune(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_.", r)
}

// CreateDirs creates the pod's directory and its log directory, each with one directory per
// container. The pod's own directory is created first and removed last, so that a pod with anything
// on the host is found by it. The error is ErrForeign if the directory exists and berth did not
// create it.
func (v *Volumes) CreateDirs(ctx context.Context, pod *corev1.Pod) error {
	if err := errors.Join(ctx.Err(), v.makeDirs(pod)); err != nil {
		return failed("FailedMakePodDataDirectories", fmt.Errorf("make pod data directories: %w", err))
	}
	return nil
}

func (v *Volumes) makeDirs(pod *corev1.Pod) error {
	names := containerNames(pod)
	if err := checkNames(append(names, string(pod.UID), pod.Namespace, pod.Name)...); err != nil {
		return err
	}
	// First, so that what a crash left is found by it. Missing log directories are created with
	// the container, directories of volumes with the first volume.
	if err := v.requireOwn(pod.UID); err != nil {
		return err
	}
	if err := os.MkdirAll(v.LogDir(pod), 0o755); err != nil {
		return err
	}
	for _, c := range names {
		if err := os.MkdirAll(filepath.Join(v.LogDir(pod), c), 0o755); err != nil {
			return err
		}
	}
	for _, c := range names {
		if err := os.MkdirAll(v.containerDir(pod.UID, c), 0o750); err != nil {
			return err
		}
	}
	return nil
}

func containerNames(pod *corev1.Pod) []string {
	var names []string
	for i := range pod.Spec.InitContainers {
		names = append(names, pod.Spec.InitContainers[i].Name)
	}
	for i := range pod.Spec.Containers {
		names = append(names, pod.Spec.Containers[i].Name)
	}
	for i := range pod.Spec.EphemeralContainers {
		names = append(names, pod.Spec.EphemeralContainers[i].Name)
	}
	return names
}

// RemoveDirs removes the pod's logs and directories with all remaining volumes. The directory is
// first renamed and then deleted. An interrupted call is completed by the next one. Without a
// directory that berth created, nothing is removed.
func (v *Volumes) RemoveDirs(ctx context.Context, pod *corev1.Pod) error {
	if err := errors.Join(ctx.Err(), checkNames(string(pod.UID))); err != nil {
		return failed("", fmt.Errorf("remove pod directories: %w", err))
	}
	if err := v.removeDirs(ctx, pod); err != nil {
		return failed("", fmt.Errorf("remove pod directories: %w", err))
	}
	return nil
}

func (v *Volumes) removeDirs(ctx context.Context, pod *corev1.Pod) error {
	trash := v.podTrash(pod.UID)
	_, owned, err := v.PodDir(pod.UID)
	if err == nil && !owned {
		var left bool
		if left, err = exists(trash); err == nil && !left {
			return nil
		}
	}
	if err != nil {
		return err
	}
	logs, err := v.logDirs(pod)
	if err != nil {
		return err
	}
	for _, dir := range logs {
		if err := removeTree(ctx, dir); err != nil {
			return err
		}
	}
	if err := removeTree(ctx, trash); err != nil {
		return err
	}
	if !owned {
		return nil
	}
	if err := v.tearDownAll(ctx, pod.UID); err != nil {
		return err
	}
	if err := v.unmountAll(pod.UID); err != nil {
		return err
	}
	if err := os.Rename(v.podDir(pod.UID), trash); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return removeTree(ctx, trash)
}

// logDirs returns the pod's log directories. They are found by the UID, because the name of an
// orphaned pod may be unknown.
func (v *Volumes) logDirs(pod *corev1.Pod) ([]string, error) {
	entries, err := os.ReadDir(v.PodLogsDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var dirs []string
	for _, e := range entries {
		if e.IsDir() && strings.HasSuffix(e.Name(), "_"+string(pod.UID)) {
			dirs = append(dirs, filepath.Join(v.PodLogsDir, e.Name()))
		}
	}
	return dirs, err
}

// unmountAll unmounts all mounts at the places that the layout defines, of any kind, because
// another agent may have created them. Mounts elsewhere are found when the tree is deleted.
func (v *Volumes) unmountAll(uid types.UID) error {
	for _, pattern := range []string{subPathsDir + "/*/*/*", volumesDir + "/*/*"} {
		paths, err := globBelow(v.podDir(uid), strings.Split(pattern, "/"))
		if err != nil {
			return err
		}
		for _, p := range paths {
			if err := unmount(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// globBelow lists the paths below dir that match pattern. Unlike filepath.Glob it takes special
// characters in names literally and does not follow symbolic links.
func globBelow(dir string, pattern []string) ([]string, error) {
	if len(pattern) == 0 {
		return []string{dir}, nil
	}
	if pattern[0] != "*" {
		return globBelow(filepath.Join(dir, pattern[0]), pattern[1:])
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, e := range entries {
		if len(pattern) > 1 && !e.IsDir() {
			continue
		}
		more, err := globBelow(filepath.Join(dir, e.Name()), pattern[1:])
		if err != nil {
			return nil, err
		}
		paths = append(paths, more...)
	}
	return paths, nil
}

func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
