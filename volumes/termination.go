package volumes

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"k8s.io/apimachinery/pkg/types"
)

// terminationFile creates the termination message file of a container instance: empty and writable
// for all users of the container. The file of the previous instance is kept, older ones are
// removed.
func (v *Volumes) terminationFile(uid types.UID, container string, attempt uint32) (string, error) {
	dir := v.containerDir(uid, container)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if n, err := strconv.ParseUint(e.Name(), 10, 32); err == nil && n+1 < uint64(attempt) {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return "", err
			}
		}
	}
	path := filepath.Join(dir, strconv.FormatUint(uint64(attempt), 10))
	// A failed start may have left one.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return "", err
	}
	return path, errors.Join(f.Chmod(0o666), f.Close())
}
