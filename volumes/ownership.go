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

// applyFSGroup applies the pod's fsGroup to a volume: the group owns all files, may read and write
// them and enter directories, and is inherited by new files. With the policy OnRootMismatch it does
// nothing if the root is already correct. The root is changed last, so that it shows whether an
// earlier call was completed.
func applyFSGroup(ctx context.Context, dir string, gid int, policy *corev1.PodFSGroupChangePolicy) error {
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
	if err := setGroupEntries(ctx, f, gid); err != nil {
		return err
	}
	return setGroup(fd, &st, dir, gid)
}

// setGroupEntries handles the entries of an open directory. It does not cross into other mounts
// (V2).
func setGroupEntries(ctx context.Context, dir *os.File, gid int) error {
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
			if err := setGroupEntry(ctx, dir, n, gid); err != nil {
				return err
			}
		}
	}
}

func setGroupEntry(ctx context.Context, dir *os.File, name string, gid int) error {
	shown := filepath.Join(dir.Name(), name)
	fd, err := unix.Openat2(int(dir.Fd()), name, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV,
	})
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EXDEV):
		return nil // deleted, or a mount point
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
		if err := setGroupEntries(ctx, f, gid); err != nil {
			return err
		}
	}
	return setGroup(fd, &st, shown, gid)
}

// setGroup changes the group and the mode of an open file if necessary. Symbolic links have no
// mode. The group is changed first, because that may clear mode bits.
func setGroup(fd int, st *unix.Stat_t, shown string, gid int) error {
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
