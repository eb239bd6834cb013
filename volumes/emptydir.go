package volumes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/agent/plan"
	"berth/podspec"
)

const hugePagesPrefix = "HugePages-"

// hugePagesDir lists the huge page sizes of the host.
const hugePagesDir = "/sys/kernel/mm/hugepages"

// mountEmptyDir creates an emptyDir on its medium. It reuses what an interrupted attempt has left,
// because no container can have used it.
func (v *Volumes) mountEmptyDir(ctx context.Context, pod *corev1.Pod, vol *corev1.Volume) (mounted bool, err error) {
	src := vol.EmptyDir
	dir := v.volumeDir(pod.UID, emptyDir, vol.Name)
	if err := os.MkdirAll(filepath.Dir(dir), 0o750); err != nil {
		return false, err
	}
	if err := makeDir(dir); err != nil {
		return false, err
	}
	switch {
	case src.Medium == corev1.StorageMediumDefault:
	case src.Medium == corev1.StorageMediumMemory:
		mounted, err = true, mountTmpfs(dir, memorySize(pod, src, v.allocatable()))
	case strings.HasPrefix(string(src.Medium), string(corev1.StorageMediumHugePages)):
		mounted, err = true, mountHugePages(dir, pod, src)
	default:
		err = invalid("emptyDir.medium %q is not supported", src.Medium)
	}
	if err != nil {
		return mounted, err
	}
	mode := uint32(0o777)
	if src.Mode != nil {
		mode = uint32(*src.Mode) & 0o1777
	}
	if err := unix.Chmod(dir, mode); err != nil {
		return mounted, &os.PathError{Op: "chmod", Path: dir, Err: err}
	}
	if sc := pod.Spec.SecurityContext; sc != nil && sc.FSGroup != nil {
		return mounted, applyFSGroup(ctx, dir, int(*sc.FSGroup), sc.FSGroupChangePolicy)
	}
	return mounted, nil
}

// memorySize returns the size of a memory volume in bytes: the minimum of the node's allocatable
// memory, the pod's memory limit, and the volume's sizeLimit. 0: unlimited.
func memorySize(pod *corev1.Pod, src *corev1.EmptyDirVolumeSource, allocatable corev1.ResourceList) int64 {
	size := allocatable.Memory().Value()
	bound := func(n int64) {
		if n > 0 && (size == 0 || n < size) {
			size = n
		}
	}
	if podspec.Limited(pod, corev1.ResourceMemory) {
		limits := podspec.Limits(pod)
		bound(limits.Memory().Value())
	}
	if src.SizeLimit != nil {
		bound(src.SizeLimit.Value())
	}
	return size
}

// mountHugePages mounts a hugetlbfs with the page size of the medium.
func mountHugePages(dir string, pod *corev1.Pod, src *corev1.EmptyDirVolumeSource) error {
	page, err := pageSize(pod, src.Medium)
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(hugePagesDir, fmt.Sprintf("hugepages-%dkB", page.Value()/1024))); err != nil {
		return &plan.Error{
			Kind: plan.Unsupported,
			Err:  fmt.Errorf("emptyDir.medium %s: this node has no huge pages of %s", src.Medium, page.String()),
		}
	}
	if is, err := isMount(dir); err != nil {
		return err
	} else if is {
		return checkFilesystem(dir, unix.HUGETLBFS_MAGIC, "hugetlbfs")
	}
	opts := "pagesize=" + strconv.FormatInt(page.Value(), 10)
	if src.SizeLimit != nil && !src.SizeLimit.IsZero() {
		opts += ",size=" + strconv.FormatInt(src.SizeLimit.Value(), 10)
	}
	if err := unix.Mount("nodev", dir, "hugetlbfs", 0, opts); err != nil {
		return &os.PathError{Op: "mount hugetlbfs", Path: dir, Err: err}
	}
	return nil
}

// pageSize returns the page size of the medium, or else the only page size that the pod's
// containers request.
func pageSize(pod *corev1.Pod, medium corev1.StorageMedium) (resource.Quantity, error) {
	if size, ok := strings.CutPrefix(string(medium), hugePagesPrefix); ok {
		q, err := resource.ParseQuantity(size)
		if err != nil || q.Sign() <= 0 {
			return q, invalid("emptyDir.medium %q: %q is not a page size", medium, size)
		}
		return q, nil
	}
	if medium != corev1.StorageMediumHugePages {
		return resource.Quantity{}, invalid("emptyDir.medium %q is not supported", medium)
	}
	sizes := map[string]bool{}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for _, list := range []corev1.ResourceList{list[i].Resources.Requests, list[i].Resources.Limits} {
				for name := range list {
					if size, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix); ok {
						sizes[size] = true
					}
				}
			}
		}
	}
	if len(sizes) != 1 {
		return resource.Quantity{}, invalid(
			"emptyDir.medium HugePages: the containers request %d huge page sizes, "+
				"but exactly one is required; specify the size, for example HugePages-2Mi",
			len(sizes),
		)
	}
	for size := range sizes {
		return pageSize(pod, corev1.StorageMedium(hugePagesPrefix+size))
	}
	panic("unreachable")
}

// makeDir creates a directory. An existing directory is accepted, but no symbolic link.
func makeDir(dir string) error {
	if err := os.Mkdir(dir, 0o755); err == nil || !os.IsExist(err) {
		return err
	}
	fi, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !fi.IsDir() {
		return &os.PathError{Op: "mkdir", Path: dir, Err: unix.ENOTDIR}
	}
	return nil
}
