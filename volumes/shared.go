package volumes

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// sharedName marks a root directory that EnsureSharedMount has bind-mounted onto itself.
const sharedName = ".shared-mount"

// EnsureSharedMount makes mounts below rootDir propagate to containers with the mountPropagation
// HostToContainer or Bidirectional. If rootDir is on a private mount, it is bind-mounted onto
// itself, and that mount is made shared. It is an error if pods that berth did not create have mounts
// below it, because their mounts would be covered and changed.
func EnsureSharedMount(rootDir string) error {
	shared, err := isShared(rootDir)
	if err != nil || shared {
		return err
	}
	if err := checkForeignMounts(rootDir); err != nil {
		return err
	}
	// MS_REC keeps mounted volumes visible.
	if err := unix.Mount(rootDir, rootDir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind mount %s onto itself: %w", rootDir, err)
	}
	if err := unix.Mount("", rootDir, "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return errors.Join(fmt.Errorf("make mount %s shared: %w", rootDir, err), unix.Unmount(rootDir, unix.MNT_DETACH))
	}
	id, err := mountID(rootDir)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(rootDir, sharedName), []byte(id), 0o600); err != nil {
		return fmt.Errorf("record mount of %s: %w", rootDir, err)
	}
	return nil
}

// checkForeignMounts returns ErrForeign if a pod that berth did not create has a mount.
func checkForeignMounts(rootDir string) error {
	_, foreign, err := ListPods(context.Background(), rootDir)
	if err != nil || len(foreign) == 0 {
		return err
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(table)) {
		for _, uid := range foreign {
			dir := filepath.Join(rootDir, "pods", string(uid))
			if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
				return fmt.Errorf("mounts of the pod in %s: %w", dir, ErrForeign)
			}
		}
	}
	return nil
}

// ReleaseSharedMount reverts EnsureSharedMount, but no other mounts. If volumes are mounted below,
// it returns an error and changes nothing.
func ReleaseSharedMount(rootDir string) error {
	path := filepath.Join(rootDir, sharedName)
	recorded, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	is, err := isMount(rootDir)
	if err != nil {
		return err
	}
	id, err := mountID(rootDir)
	if err != nil {
		return err
	}
	if is && id == string(recorded) {
		if err := unix.Unmount(rootDir, unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s from itself: %w", rootDir, err)
		}
	}
	return os.Remove(path)
}

// mountID identifies the mount that contains path, for this boot.
func mountID(path string) (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	n, err := mountNumber(path)
	return strings.TrimSpace(string(boot)) + " " + strconv.FormatUint(n, 10), err
}

func mountNumber(path string) (uint64, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_NO_AUTOMOUNT, unix.STATX_MNT_ID, &st); err != nil {
		return 0, &os.PathError{Op: "statx", Path: path, Err: err}
	}
	return st.Mnt_id, nil
}

// isShared checks the mount of path in the mount table, which is read only once per start of the
// agent.
func isShared(path string) (bool, error) {
	n, err := mountNumber(path)
	if err != nil {
		return false, err
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return false, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if id, shared := mountLine(lines.Text()); id == strconv.FormatUint(n, 10) {
			return shared, nil
		}
	}
	return false, errors.Join(lines.Err(), fmt.Errorf("mount of %s not found in the mount table", path))
}

// mountLine parses the mount ID and the shared flag of a mountinfo line. The flag is one of the
// optional fields between the sixth field and "-".
func mountLine(line string) (id string, shared bool) {
	fields := strings.Fields(line)
	if len(fields) < 7 {
		return "", false
	}
	for _, f := range fields[6:] {
		if f == "-" {
			break
		}
		shared = shared || strings.HasPrefix(f, "shared:")
	}
	return fields[0], shared
}
