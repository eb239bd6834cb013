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

// ExceededSizeLimit measures the pod's emptyDirs on the disk that have a size limit, and
// tells of the first that takes more than it may; nil: none does. A volume that
// is not set up takes nothing.
func (v *Volumes) ExceededSizeLimit(ctx context.Context, pod *corev1.Pod) (*plan.Excess, error) {
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
		if used > limit.Value() { // even if something could not be read
			return &plan.Excess{
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
	maxPending = 8 << 20 // bytes of names of directories that a walk has still to read
	maxInside  = 1 << 20 // of a walk inside another, which begins where there are more
	maxWalks   = 16      // inside one another
	maxPath    = 2 << 10 // bytes of a path that is opened in one call; the kernel takes 4 KiB
	readAtOnce = 512     // names of a directory that are read at once
	blockSize  = 512     // bytes of what the kernel counts as a block
)

// DiskUsage measures what a pod has below its directory on the node's disk: bytes
// and inodes. With an error it is what was counted until then. What is mounted
// inside is left out, so that memory and others' disks do not count.
func (v *Volumes) DiskUsage(ctx context.Context, pod *corev1.Pod) (bytes, inodes int64, err error) {
	if err := checkNames(string(pod.UID)); err != nil {
		return 0, 0, err
	}
	u, err := walkBelow(ctx, v.podDir(pod.UID), math.MaxInt64)
	return u.used, int64(u.inodes), err
}

// usage is one walk of a tree that its owner may change meanwhile. It has two
// directories open at most, and remembers only those that it has still to read. Where
// those are too many it walks what is below each before it reads on: see inside.
type usage struct {
	root    int
	depth   int   // walks around it
	room    int   // bytes that todo may take
	most    int64 // bytes; the walk ends when it has found more
	used    int64 // bytes
	inodes  float64
	todo    []string
	pending int // bytes in todo
}

// usedBelow returns how many bytes a directory and all below it take on the
// disk, in allocated blocks: holes count nothing, and what is mounted inside is
// left out. It stops early once that is more than most. What vanishes meanwhile
// counts nothing; no such directory is no error.
func usedBelow(ctx context.Context, dir string, most int64) (int64, error) {
	u, err := walkBelow(ctx, dir, most)
	return u.used, err
}

// walkBelow is usedBelow, with all that was found.
func walkBelow(ctx context.Context, dir string, most int64) (usage, error) {
	root, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return usage{}, nil
	}
	if err != nil {
		return usage{}, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(root)
	u := usage{root: root, room: maxPending, most: most, todo: []string{"."}}
	if _, err := u.count(root, ".", true); err != nil {
		return u, &os.PathError{Op: "statx", Path: dir, Err: err}
	}
	err = u.walk(ctx)
	return u, err
}

// walk reads what is still to be read.
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

// inside walks all below an entry of an open directory. Names count from there on, and
// none is remembered when it is over.
func (u *usage) inside(ctx context.Context, dir int, name string) error {
	if u.depth == maxWalks {
		return fmt.Errorf("%s: too many directories beside it and above", name)
	}
	v := usage{root: dir, depth: u.depth + 1, room: min(u.room, maxInside), most: u.most - u.used, todo: []string{"."}}
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

// read counts the entries of one directory, named from the root.
func (u *usage) read(ctx context.Context, rel string) error {
	fd, err := u.open(rel)
	switch {
	case vanished(err), errors.Is(err, unix.EXDEV): // something was mounted there meanwhile
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
			case u.pending > u.room:
				if err := u.inside(ctx, fd, name); err != nil {
					return err
				}
			default:
				u.later(filepath.Join(rel, name))
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

func (u *usage) later(rel string) {
	u.todo, u.pending = append(u.todo, rel), u.pending+len(rel)
}

// count adds one entry of an open directory, and reports whether it is a
// directory to be read. A file with several names counts under each with its
// share, which adds up to once without remembering it.
func (u *usage) count(dir int, name string, top bool) (below bool, err error) {
	var st unix.Statx_t
	err = unix.Statx(dir, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC,
		unix.STATX_TYPE|unix.STATX_NLINK|unix.STATX_BLOCKS, &st)
	mounted := st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
	switch {
	case vanished(err):
		return false, nil
	case errors.Is(err, unix.ENOTCONN), errors.Is(err, unix.ESTALE), errors.Is(err, unix.EIO): // a dead file system is mounted there
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

// open opens a directory of the tree, never through a link nor into a mount,
// however the tree is changed meanwhile. A path that is too long for one call
// is opened in parts.
func (u *usage) open(rel string) (fd int, err error) {
	at := u.root
	for {
		part := rel
		if len(rel) > maxPath {
			part = rel[:strings.LastIndexByte(rel[:maxPath], '/')]
		}
		fd, err = unix.Openat2(at, part, &unix.OpenHow{
			Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
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

// vanished reports whether an entry is gone, or is no directory any more.
func vanished(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}
