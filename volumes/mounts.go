package volumes

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxStacked bounds how many mounts on one point are taken away in one go.
const maxStacked = 64

// isMount reports whether something is mounted at path. A file system that
// does not answer is a mount: only a dead one does that.
func isMount(path string) (bool, error) { return isMountAt(unix.AT_FDCWD, path) }

func isMountAt(dir int, name string) (bool, error) {
	var st unix.Statx_t
	err := unix.Statx(dir, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st)
	switch {
	case errors.Is(err, unix.ENOTCONN), errors.Is(err, unix.ESTALE), errors.Is(err, unix.EIO):
		return true, nil
	case err != nil:
		return false, err
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// mountTmpfs mounts a tmpfs of at most size bytes (0: the kernel's default,
// half of the memory) at dir, unless there is one. It is kept out of swap
// where the kernel can do that (6.3).
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

// checkFilesystem refuses a mount of another type than ours.
func checkFilesystem(dir string, magic int64, name string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	if st.Type != magic {
		return fmt.Errorf("%s: something else than %s is mounted there", dir, name)
	}
	return nil
}

// unmount takes away all that is mounted at path; nothing mounted, or no such
// path, is no error.
func unmount(path string) error { return unmountAt(unix.AT_FDCWD, path, path) }

// unmountAt does so for name in an open directory, so that no component of the
// path can be swapped meanwhile. A busy mount is detached lazily: its users
// keep it, the pod's directory is rid of it.
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

// detach takes a busy mount and all below it away lazily. It is made private
// first: of a mount that shares its events with the one it was copied from,
// detaching what is below would unmount it there too.
func detach(target string) error {
	if err := unix.Mount("", target, "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return err
	}
	return unix.Unmount(target, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
}

// fdPath names an open file independently of where it lies.
func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
