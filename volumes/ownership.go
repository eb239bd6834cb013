package volumes

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

const (
	groupFile = 0o660
	groupDir  = unix.S_ISGID | 0o770
)

// giveToGroup gives a volume to the pod's fsGroup: everything belongs to the
// group, which may read and write it, and enter directories, whose new entries
// belong to it too. With policy OnRootMismatch nothing is done when the root
// is as it should be; the root is done last, so that it tells whether a walk
// has ended.
func giveToGroup(ctx context.Context, dir string, gid int, policy *corev1.PodFSGroupChangePolicy) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	f := os.NewFile(uintptr(fd), dir)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	if policy != nil && *policy == corev1.FSGroupChangeOnRootMismatch &&
		int(st.Gid) == gid && st.Mode&groupDir == groupDir {
		return nil
	}
	if err := giveEntries(ctx, f, gid); err != nil {
		return err
	}
	return giveFile(fd, &st, dir, gid)
}

// giveEntries walks an open directory. It stays on this mount (V2).
func giveEntries(ctx context.Context, dir *os.File, gid int) error {
	for {
		names, err := dir.Readdirnames(1024)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		for _, n := range names {
			if err := giveEntry(ctx, dir, n, gid); err != nil {
				return err
			}
		}
	}
}

func giveEntry(ctx context.Context, dir *os.File, name string, gid int) error {
	shown := filepath.Join(dir.Name(), name)
	fd, err := unix.Openat2(int(dir.Fd()), name, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV,
	})
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EXDEV):
		return nil // gone, or a mount of its own
	case err != nil:
		return &os.PathError{Op: "open", Path: shown, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &os.PathError{Op: "stat", Path: shown, Err: err}
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		sub, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: shown, Err: err}
		}
		f := os.NewFile(uintptr(sub), shown)
		defer f.Close()
		if err := giveEntries(ctx, f, gid); err != nil {
			return err
		}
	}
	return giveFile(fd, &st, shown, gid)
}

// giveFile changes what an open file lacks. A symbolic link has no mode of its
// own. The owner goes first, because changing it may clear mode bits.
func giveFile(fd int, st *unix.Stat_t, shown string, gid int) error {
	if int(st.Gid) != gid {
		if err := unix.Fchownat(fd, "", -1, gid, unix.AT_EMPTY_PATH); err != nil {
			return &os.PathError{Op: "chown", Path: shown, Err: err}
		}
	}
	want := st.Mode & 0o7777
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return nil
	case unix.S_IFDIR:
		want |= groupDir
	default:
		want |= groupFile
	}
	if want == st.Mode&0o7777 && int(st.Gid) == gid {
		return nil
	}
	if err := unix.Chmod(fdPath(fd), want); err != nil {
		return &os.PathError{Op: "chmod", Path: shown, Err: err}
	}
	return nil
}
