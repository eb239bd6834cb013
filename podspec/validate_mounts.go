package podspec

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// volumeMounts validates the volume mounts of one container.
func (k *validator) volumeMounts(at *field.Path, c *corev1.Container) {
	targets := map[string]bool{}
	for i := range c.VolumeMounts {
		m := &c.VolumeMounts[i]
		where := at.Child("volumeMounts").Index(i)
		switch v := k.volume(m.Name); {
		case m.Name == "":
			k.required(where.Child("name"), "")
		case v == nil:
			k.notFound(where.Child("name"), m.Name)
		case v.Image != nil && len(m.BindMountOptions) > 0:
			k.forbidden(where.Child("bindMountOptions"), "cannot be set for image volumes")
		}
		if m.MountPath == "" {
			k.required(where.Child("mountPath"), "")
		} else if targets[m.MountPath] {
			k.invalid(where.Child("mountPath"), m.MountPath, "must be unique")
		}
		targets[m.MountPath] = true
		k.volumeMount(where, m, c)
	}
	for i, d := range c.VolumeDevices {
		if d.DevicePath != "" && targets[d.DevicePath] {
			k.invalid(at.Child("volumeDevices").Index(i).Child("devicePath"), d.DevicePath,
				"must not already exist as a path in volumeMounts")
		}
	}
}

func (k *validator) volumeMount(at *field.Path, m *corev1.VolumeMount, c *corev1.Container) {
	if m.SubPath != "" {
		k.withinVolume(at.Child("subPath"), m.SubPath)
	}
	if m.SubPathExpr != "" {
		k.withinVolume(at.Child("subPathExpr"), m.SubPathExpr)
		if m.SubPath != "" {
			k.invalid(at.Child("subPathExpr"), m.SubPathExpr, "subPathExpr and subPath are mutually exclusive")
		}
	}
	k.propagation(at, m, c)
	k.recursiveReadOnly(at, m)
	options := []string{"noexec", "nodev", "nosuid"}
	for i, o := range m.BindMountOptions {
		path := at.Child("bindMountOptions").Index(i)
		if !slices.Contains(options, o) {
			k.add(field.NotSupported(path, o, options))
		} else if slices.Contains(m.BindMountOptions[:i], o) {
			k.duplicate(path, o)
		}
	}
}

func (k *validator) propagation(at *field.Path, m *corev1.VolumeMount, c *corev1.Container) {
	if m.MountPropagation == nil {
		return
	}
	at = at.Child("mountPropagation")
	oneOf(k, at, *m.MountPropagation, corev1.MountPropagationBidirectional,
		corev1.MountPropagationHostToContainer, corev1.MountPropagationNone)
	privileged := c.SecurityContext != nil && isTrue(c.SecurityContext.Privileged)
	if *m.MountPropagation == corev1.MountPropagationBidirectional && !privileged {
		k.forbidden(at, "Bidirectional mount propagation is available only to privileged containers")
	}
}

func (k *validator) recursiveReadOnly(at *field.Path, m *corev1.VolumeMount) {
	if m.RecursiveReadOnly == nil {
		return
	}
	at = at.Child("recursiveReadOnly")
	switch mode := *m.RecursiveReadOnly; mode {
	case corev1.RecursiveReadOnlyDisabled:
	case corev1.RecursiveReadOnlyEnabled, corev1.RecursiveReadOnlyIfPossible:
		if !m.ReadOnly {
			k.forbidden(at, "may only be specified when readOnly is true")
		}
		if p := m.MountPropagation; p != nil && *p != corev1.MountPropagationNone {
			k.forbidden(at, "may only be specified when mountPropagation is None or not specified")
		}
	default:
		oneOf(
			k,
			at,
			mode,
			corev1.RecursiveReadOnlyDisabled,
			corev1.RecursiveReadOnlyEnabled,
			corev1.RecursiveReadOnlyIfPossible,
		)
	}
}

// volumeDevices validates the block devices of one container.
func (k *validator) volumeDevices(at *field.Path, c *corev1.Container) {
	paths := map[string]bool{}
	for i, d := range c.VolumeDevices {
		where := at.Child("volumeDevices").Index(i)
		switch v := k.volume(d.Name); {
		case d.Name == "":
			k.required(where.Child("name"), "")
		case v == nil:
			k.notFound(where.Child("name"), d.Name)
		case v.PersistentVolumeClaim == nil && v.Ephemeral == nil:
			k.invalid(
				where.Child("name"),
				d.Name,
				"can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode",
			)
		}
		switch {
		case d.DevicePath == "":
			k.required(where.Child("devicePath"), "")
		case paths[d.DevicePath]:
			k.invalid(where.Child("devicePath"), d.DevicePath, "must be unique")
		case hasBacksteps(d.DevicePath):
			k.invalid(where.Child("devicePath"), d.DevicePath, "must not contain '..'")
		}
		paths[d.DevicePath] = true
	}
}

// withinVolume validates a path below the root of a volume.
func (k *validator) withinVolume(at *field.Path, p string) {
	if path.IsAbs(p) {
		k.invalid(at, p, "must be a relative path")
	}
	if hasBacksteps(p) {
		k.invalid(at, p, "must not contain '..'")
	}
}

// relativePath validates the required path of a file below the root of a volume. Names that start
// with two dots are reserved for the writer of the volume.
func (k *validator) relativePath(at *field.Path, p string) {
	if p == "" {
		k.required(at, "")
		return
	}
	k.withinVolume(at, p)
	if strings.HasPrefix(p, "..") && !hasBacksteps(p) {
		k.invalid(at, p, "must not start with '..'")
	}
}

// hasBacksteps reports whether an element of the path is "..".
func hasBacksteps(p string) bool { return slices.Contains(strings.Split(p, "/"), "..") }
