package volumes

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxStacked limits how many mounts on one mount point are unmounted.
const maxStacked = 64

// isMount reports whether path is a mount point. A path whose file system does not respond is one,
// because the file system below it would respond.
func isMount(path string) (bool, error) { return isMountAt(unix.AT_FDCWD, path) }

func isMountAt(dir int, name string) (bool, error) {
	var st unix.Statx_t
	err := unix.Statx(
		dir,
		name,
		unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC,
		unix.STATX_TYPE,
		&st,
	)
	switch {
	case errors.Is(err, unix.ENOTCONN), errors.Is(err, unix.ESTALE), errors.Is(err, unix.EIO):
		return true, nil
	case err != nil:
		return false, err
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// mountTmpfs mounts a tmpfs at dir, unless it is already mounted. size is its maximum size in
// bytes, where 0 is the kernel's default of half of the memory. It is excluded from swap if the
// kernel supports that (6.3).
func mountTmpfs(dir string, size int64) error {
	if is, err := isMount(dir); err != nil {
		return err
	} else if is {
		return checkFilesystem(dir, unix.TMPFS_MAGIC, "tmpfs")
	}
	opts := "mode=0777"
	if size > 0 {
		opts += ",size=" + strconv.FormatInt(size, 10)
	}
	err := unix.Mount("tmpfs", dir, "tmpfs", 0, opts+",noswap")
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) {
		err = unix.Mount("tmpfs", dir, "tmpfs", 0, opts)
	}
	if err != nil {
		return &os.PathError{Op: "mount tmpfs", Path: dir, Err: err}
	}
	return nil
}

// checkFilesystem rejects a mount of another type.
func checkFilesystem(dir string, magic int64, name string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	if st.Type != magic {
		return fmt.Errorf("%s: the mounted file system is not %s", dir, name)
	}
	return nil
}

// unmount unmounts everything at path. It is not an error if nothing is mounted or if the path does
// not exist.
func unmount(path string) error { return unmountAt(unix.AT_FDCWD, path, path) }

// unmountAt unmounts name in an open directory, so that no component of the path can be replaced
// meanwhile. A busy mount is detached lazily: its users keep it, but the pod's directory can be
// removed.
func unmountAt(dir int, name, shown string) error {
	target := name
	if dir != unix.AT_FDCWD {
		target = fdPath(dir) + "/" + name
	}
	for range maxStacked {
		is, err := isMountAt(dir, name)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || err == nil && !is {
			return nil
		}
		if err == nil {
			err = unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
		}
		if errors.Is(err, unix.EBUSY) {
			err = detach(target)
		}
		if err != nil {
			return &os.PathError{Op: "unmount", Path: shown, Err: err}
		}
	}
	return &os.PathError{Op: "unmount", Path: shown, Err: unix.EBUSY}
}

// detach lazily detaches a busy mount and all mounts below it. It first makes them private, because
// detaching a mount with shared propagation would also unmount the mounts below its peers.
func detach(target string) error {
	if err := unix.Mount("", target, "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return err
	}
	return unix.Unmount(target, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
}

// fdPath returns a path of an open file that is independent of its location.
func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
