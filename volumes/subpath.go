package volumes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// subMount is a volume mount with a subPath.
type subMount struct {
	uid       types.UID
	volume    string
	container string
	index     int    // index of the volumeMount in the container
	root      string // root of the volume on the host
	follow    bool   // root may be a symbolic link: a hostPath
	sub       string // clean, relative
	fixed     bool   // nothing may be created in the volume
}

// bindSubPath returns the host path that the runtime mounts for a subPath. The subPath is resolved
// once, and its inode is bind-mounted in a directory that only the agent can write to, so that
// later changes of the volume have no effect (V1). An existing mount of the same inode is reused.
func (v *Volumes) bindSubPath(s subMount) (string, error) {
	target := filepath.Join(v.podDir(s.uid), subPathsDir, s.volume, s.container, strconv.Itoa(s.index))
	source, err := openSubPath(s)
	if errors.Is(err, unix.ENOENT) && s.fixed {
		// As in upstream, a missing key is an empty directory, but a separate one: the volume is
		// not changed.
		return target, emptySubPath(target)
	}
	if err != nil {
		return "", explainResolve(s.sub, err)
	}
	defer unix.Close(source)
	var want unix.Stat_t
	if err := unix.Fstat(source, &want); err != nil {
		return "", err
	}
	if is, err := isMount(target); err == nil && is {
		var st unix.Stat_t
		if err := unix.Lstat(target, &st); err == nil && st.Dev == want.Dev && st.Ino == want.Ino {
			return target, nil
		}
	}
	if err := makeTarget(target, want.Mode&unix.S_IFMT == unix.S_IFDIR); err != nil {
		return "", err
	}
	if err := unix.Mount(fdPath(source), target, "", unix.MS_BIND, ""); err != nil {
		return "", &os.PathError{Op: "bind mount", Path: target, Err: err}
	}
	return target, nil
}

// openSubPath opens the target of the subPath. In a volume that the pod may write to, missing
// directories are created.
func openSubPath(s subMount) (int, error) {
	flags := unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC
	if !s.follow {
		flags |= unix.O_NOFOLLOW
	}
	root, err := unix.Open(s.root, flags, 0)
	if err != nil {
		return -1, fmt.Errorf("open volume root: %s", err.Error())
	}
	defer unix.Close(root)
	fd, err := openBeneath(root, s.sub)
	if s.follow && errors.Is(err, unix.EXDEV) { // an absolute link may lead back inside
		if s.sub, err = resolveLinks(s.root, s.sub); err == nil {
			fd, err = openBeneath(root, s.sub)
		}
	}
	if errors.Is(err, unix.ENOENT) && !s.fixed {
		return makeBeneath(root, s.sub)
	}
	return fd, err
}

// emptySubPath makes the target an empty directory without mounts.
func emptySubPath(target string) error {
	return makeTarget(target, true)
}

// makeTarget creates the mount point: an empty directory or file without mounts.
func makeTarget(target string, dir bool) error {
	if err := unmount(target); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	if fi, err := os.Lstat(target); err == nil && fi.IsDir() == dir && (dir || fi.Mode().IsRegular()) {
		return nil
	}
	if err := os.Remove(target); err != nil && !os.IsNotExist(err) {
		return err
	}
	if dir {
		return os.Mkdir(target, 0o755)
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	return f.Close()
}
