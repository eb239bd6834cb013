package volumes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// maxRaces limits how often a lookup is repeated because of a concurrent rename.
const maxRaces = 32

// openBeneath opens path relative to root with O_PATH. It follows symbolic links inside root. A
// link that leads out of root, or that is absolute, is an error, even if it is created
// concurrently.
func openBeneath(root int, path string) (int, error) {
	for range maxRaces {
		fd, err := unix.Openat2(root, path, &unix.OpenHow{
			Flags:   unix.O_PATH | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
		})
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
	return -1, unix.EAGAIN
}

// resolveLinks returns path with the symbolic links of its existing part resolved, relative to
// root, which may itself be a link. A path outside of root is EXDEV. The result must be opened with
// openBeneath.
func resolveLinks(root, path string) (string, error) {
	base, err := filepath.EvalSymlinks(root)
	if err != nil {
		return "", err
	}
	there, missing := path, ""
	for {
		to, err := filepath.EvalSymlinks(filepath.Join(root, there))
		switch {
		case errors.Is(err, unix.ENOENT) && there != ".":
			there, missing = filepath.Dir(there), filepath.Join(filepath.Base(there), missing)
			continue
		case err != nil:
			return "", err
		}
		inside, err := filepath.Rel(base, to)
		if err != nil || !filepath.IsLocal(inside) {
			return "", unix.EXDEV
		}
		return filepath.Join(inside, missing), nil
	}
}

// makeBeneath creates the missing directories of path below root with the mode of root, and opens
// the last one. It follows only symbolic links that stay inside root.
func makeBeneath(root int, path string) (int, error) {
	var st unix.Stat_t
	if err := unix.Fstat(root, &st); err != nil {
		return -1, err
	}
	dir, err := openBeneath(root, ".")
	if err != nil {
		return -1, err
	}
	done := ""
	for part := range strings.SplitSeq(path, "/") {
		done = filepath.Join(done, part)
		next, err := openBeneath(root, done)
		if errors.Is(err, unix.ENOENT) {
			next, err = makeAt(dir, part, st.Mode&0o7777)
		}
		_ = unix.Close(dir)
		if err != nil {
			return -1, err
		}
		dir = next
	}
	return dir, nil
}

// makeAt creates and opens one directory, ignoring the umask.
func makeAt(dir int, name string, mode uint32) (int, error) {
	err := unix.Mkdirat(dir, name, mode&0o777)
	created := err == nil
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, err
	}
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if created {
		if err := unix.Chmod(fdPath(fd), mode); err != nil {
			_ = unix.Close(fd)
			return -1, err
		}
	}
	return fd, nil
}

// checkSubPath rejects a subPath that is not a clean relative path.
func checkSubPath(sub string) error {
	if filepath.IsAbs(sub) {
		return fmt.Errorf("subPath %q must not be an absolute path", sub)
	}
	for part := range strings.SplitSeq(sub, "/") {
		if part == ".." {
			return fmt.Errorf("subPath %q must not contain '..'", sub)
		}
	}
	if strings.ContainsRune(sub, 0) {
		return fmt.Errorf("subPath %q is not a valid path", sub)
	}
	return nil
}

// explainResolve converts the errors of a lookup beneath a volume.
func explainResolve(sub string, err error) error {
	switch {
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.ELOOP):
		return fmt.Errorf("subPath %q leads out of the volume: %w", sub, err)
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EEXIST):
		return fmt.Errorf("subPath %q: a component is not a directory: %w", sub, err)
	}
	return &os.PathError{Op: "resolve subPath", Path: sub, Err: err}
}
