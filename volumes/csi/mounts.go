package csi

import (
	"slices"

	"berth/volumes/mountinfo"
)

// isMounted reports whether path is a mount point.
func isMounted(path string) (bool, error) {
	_, ok, err := mountinfo.At(path)
	return ok, err
}

// SELinuxRelabel reports whether the file system mounted at path supports SELinux labels.
func (m *Manager) SELinuxRelabel(path string) bool {
	mount, _, err := mountinfo.At(path)
	return err == nil && slices.Contains(mount.SuperOptions, "seclabel")
}
