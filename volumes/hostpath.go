package volumes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// checkHostPath checks the type of a hostPath and creates it if requested. A failed check may
// succeed later, so its error is retried.
func checkHostPath(src *corev1.HostPathVolumeSource) error {
	path := src.Path
	if !filepath.IsAbs(path) || slices.Contains(strings.Split(path, "/"), "..") {
		return invalid("hostPath.path %q must be absolute and without '..'", path)
	}
	typ := corev1.HostPathUnset
	if src.Type != nil {
		typ = *src.Type
	}
	var is func(fs.FileMode) bool
	var what string
	switch typ {
	case corev1.HostPathUnset:
		return nil
	case corev1.HostPathDirectoryOrCreate:
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			if err := os.MkdirAll(path, 0o755); err != nil {
				return err
			}
		}
		is, what = fs.FileMode.IsDir, "directory"
	case corev1.HostPathDirectory:
		is, what = fs.FileMode.IsDir, "directory"
	case corev1.HostPathFileOrCreate:
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			if err := createFile(path); err != nil {
				return err
			}
		}
		is, what = fs.FileMode.IsRegular, "file"
	case corev1.HostPathFile:
		is, what = fs.FileMode.IsRegular, "file"
	case corev1.HostPathSocket:
		is, what = func(m fs.FileMode) bool { return m&fs.ModeSocket != 0 }, "socket"
	case corev1.HostPathCharDev:
		is, what = func(m fs.FileMode) bool { return m&fs.ModeCharDevice != 0 }, "character device"
	case corev1.HostPathBlockDev:
		is, what = func(m fs.FileMode) bool { return m&fs.ModeDevice != 0 && m&fs.ModeCharDevice == 0 }, "block device"
	default:
		return invalid("hostPath.type %q is not supported", typ)
	}
	fi, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("hostPath type check failed: %s is not a %s: %w", path, what, errors.Unwrap(err))
	}
	if !is(fi.Mode()) {
		return fmt.Errorf("hostPath type check failed: %s is not a %s", path, what)
	}
	return nil
}

func createFile(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}
