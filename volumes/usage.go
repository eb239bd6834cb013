package volumes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/podspec"
)

// ExceededSizeLimit measures the pod's disk-backed emptyDirs with a sizeLimit and returns the first
// that exceeds it, or nil. Volumes that are not set up use nothing.
func (v *Volumes) ExceededSizeLimit(ctx context.Context, pod *corev1.Pod) (*plan.Eviction, error) {
	for i := range pod.Spec.Volumes {
		vol := &pod.Spec.Volumes[i]
		limit := podspec.EmptyDirSizeLimit(vol)
		if limit == nil {
			continue
		}
		if err := checkNames(string(pod.UID), vol.Name); err != nil {
			return nil, err
		}
		used, err := usedBelow(ctx, v.volumeDir(pod.UID, emptyDir, vol.Name), limit.Value())
		if used > limit.Value() { // even if the measurement is incomplete
			return &plan.Eviction{
				Signal:  "emptydirfs.limit",
				Message: fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", vol.Name, limit.String()),
			}, nil
		}
		if err != nil {
			return nil, fmt.Errorf("measure volume %s: %w", vol.Name, err)
		}
	}
	return nil, nil
}

const (
	maxPending       = 8 << 20 // bytes of names of unread directories
	maxNestedPending = 1 << 20 // the same for a nested walk, which handles excess directories
	maxWalkDepth     = 16      // nested walks
	maxPath          = 2 << 10 // bytes of a path that is opened with one call; the kernel's limit is 4 KiB
	readAtOnce       = 512     // directory entries per read
	blockSize        = 512     // bytes per block in statx
)

// DiskUsage measures the disk usage below the pod's directory in bytes and inodes. With an error
// the result is partial. Mounts below are excluded, so that tmpfs and other disks do not count.
func (v *Volumes) DiskUsage(ctx context.Context, pod *corev1.Pod) (bytes, inodes int64, err error) {
	if err := checkNames(string(pod.UID)); err != nil {
		return 0, 0, err
	}
	u, err := walkBelow(ctx, v.podDir(pod.UID), math.MaxInt64)
	return u.used, int64(u.inodes), err
}

// usage is one walk of a tree that may change meanwhile. It keeps at most two directories open and
// remembers only unread directories. If there are too many, it walks each of them immediately: see
// walkInside.
type usage struct {
	root          int
	depth         int   // number of enclosing walks
	pendingBudget int   // maximum bytes in todo
	most          int64 // bytes; the walk ends when it has found more
	used          int64 // bytes
	inodes        float64
	todo          []string
	pending       int // bytes in todo
}

// usedBelow returns the disk usage of a directory in bytes of allocated blocks, excluding holes and
// mounts below. It stops early if that exceeds most. Entries that disappear meanwhile, and a
// missing directory, count as 0.
func usedBelow(ctx context.Context, dir string, most int64) (int64, error) {
	u, err := walkBelow(ctx, dir, most)
	return u.used, err
}

// walkBelow is usedBelow with the complete result.
func walkBelow(ctx context.Context, dir string, most int64) (usage, error) {
	root, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return usage{}, nil
	}
	if err != nil {
		return usage{}, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(root)
	u := usage{root: root, pendingBudget: maxPending, most: most, todo: []string{"."}}
	if _, err := u.count(root, ".", true); err != nil {
		return u, &os.PathError{Op: "statx", Path: dir, Err: err}
	}
	err = u.walk(ctx)
	return u, err
}

// walk reads the remaining directories.
func (u *usage) walk(ctx context.Context) error {
	for len(u.todo) > 0 && u.used <= u.most {
		next := u.todo[len(u.todo)-1]
		u.todo, u.pending = u.todo[:len(u.todo)-1], u.pending-len(next)
		if err := u.read(ctx, next); err != nil {
			return err
		}
	}
	return nil
}

// walkInside walks everything below an entry of an open directory with a separate list of unread
// directories.
func (u *usage) walkInside(ctx context.Context, dir int, name string) error {
	if u.depth == maxWalkDepth {
		return fmt.Errorf("%s: too many nested directories", name)
	}
	v := usage{
		root:          dir,
		depth:         u.depth + 1,
		pendingBudget: min(u.pendingBudget, maxNestedPending),
		most:          u.most - u.used,
		todo:          []string{"."},
	}
	fd, err := v.open(name)
	switch {
	case vanished(err), errors.Is(err, unix.EXDEV):
		return nil
	case err != nil:
		return &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	v.root = fd
	err = v.walk(ctx)
	u.used, u.inodes = u.used+v.used, u.inodes+v.inodes
	return err
}

// read counts the entries of a directory relative to the root.
func (u *usage) read(ctx context.Context, rel string) error {
	fd, err := u.open(rel)
	switch {
	case vanished(err), errors.Is(err, unix.EXDEV): // replaced by a mount
		return nil
	case err != nil:
		return &os.PathError{Op: "open", Path: rel, Err: err}
	}
	dir := os.NewFile(uintptr(fd), rel)
	defer dir.Close()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		names, err := dir.Readdirnames(readAtOnce)
		for _, name := range names {
			below, err := u.count(fd, name, false)
			if err != nil {
				return &os.PathError{Op: "statx", Path: filepath.Join(rel, name), Err: err}
			}
			switch {
			case !below || u.used > u.most:
			case u.pending > u.pendingBudget:
				if err := u.walkInside(ctx, fd, name); err != nil {
					return err
				}
			default:
				u.push(filepath.Join(rel, name))
			}
		}
		switch {
		case u.used > u.most, errors.Is(err, io.EOF), vanished(err):
			return nil
		case err != nil:
			return err
		}
	}
}

func (u *usage) push(rel string) {
	u.todo, u.pending = append(u.todo, rel), u.pending+len(rel)
}

// count adds an entry of an open directory and reports whether it is a directory to read. Each hard
// link counts with its share, so that a file counts once in total.
func (u *usage) count(dir int, name string, top bool) (below bool, err error) {
	var st unix.Statx_t
	err = unix.Statx(dir, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC,
		unix.STATX_TYPE|unix.STATX_NLINK|unix.STATX_BLOCKS, &st)
	mounted := st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
	switch {
	case vanished(err):
		return false, nil
	case errors.Is(err, unix.ENOTCONN),
		errors.Is(err, unix.ESTALE),
		errors.Is(err, unix.EIO): // the mounted file system does not respond
		return false, nil
	case err != nil:
		return false, err
	case mounted && !top:
		return false, nil
	}
	size := int64(st.Blocks) * blockSize
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		u.used += size
		u.inodes++
		return true, nil
	}
	u.used += size / int64(max(st.Nlink, 1))
	u.inodes += 1 / float64(max(st.Nlink, 1))
	return false, nil
}

// open opens a directory of the tree without following symbolic links or entering mounts, even if
// the tree changes. A path that is too long for one call is opened in parts.
func (u *usage) open(rel string) (fd int, err error) {
	at := u.root
	for {
		part := rel
		if len(rel) > maxPath {
			part = rel[:strings.LastIndexByte(rel[:maxPath], '/')]
		}
		fd, err = unix.Openat2(at, part, &unix.OpenHow{
			Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS |
				unix.RESOLVE_NO_XDEV,
		})
		if at != u.root {
			_ = unix.Close(at)
		}
		if err != nil || part == rel {
			return fd, err
		}
		at, rel = fd, rel[len(part)+1:]
	}
}

// vanished reports whether an entry does not exist or is no longer a directory.
func vanished(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// VolumeUsage is the disk usage of a volume in allocated blocks.
type VolumeUsage struct {
	Volume        string
	Dir           string // on the host
	Bytes, Inodes uint64
}

// Usage measures the pod's volumes that are set up, except hostPaths. Volumes that cannot be
// measured are omitted and reported by the error.
func (v *Volumes) Usage(ctx context.Context, pod *corev1.Pod) (all []VolumeUsage, err error) {
	for i := range pod.Spec.Volumes {
		vol := &pod.Spec.Volumes[i]
		k, unknown := kindOf(vol)
		if unknown != nil || k == hostPath || k == csi || checkNames(string(pod.UID), vol.Name) != nil {
			continue
		}
		if _, ok := v.setUp(pod.UID, k, vol.Name); !ok {
			continue
		}
		dir := v.volumeDir(pod.UID, k, vol.Name)
		u, failed := walkBelow(ctx, dir, math.MaxInt64)
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("measure volume %s: %w", vol.Name, failed))
			continue
		}
		all = append(
			all,
			VolumeUsage{Volume: vol.Name, Dir: dir, Bytes: uint64(u.used), Inodes: uint64(math.Round(u.inodes))},
		)
	}
	return all, err
}
