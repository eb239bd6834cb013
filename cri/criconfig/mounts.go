package criconfig

import (
	"path"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
)

// mounts converts the mounts of the container. In a user namespace, each mount maps file owners to
// the container's IDs.
func mounts(node Node, pod *corev1.Pod, c *corev1.Container, list []plan.Mount,
	users *runtimeapi.UserNamespace) ([]*runtimeapi.Mount, error) {
	handler, err := RuntimeHandler(node, pod)
	if err != nil {
		return nil, err
	}
	var out []*runtimeapi.Mount
	for _, m := range list {
		if m.Image != "" && node.NoImageVolumesReason != "" {
			return nil, unsupported(reasonContainer, "mount %s: %s", m.ContainerPath, node.NoImageVolumesReason)
		}
		r, err := mount(c, m, handler, node.Features[handler].RecursiveReadOnlyMounts)
		if err != nil {
			return nil, err
		}
		if users != nil && r.Image == nil {
			r.UidMappings, r.GidMappings = users.Uids, users.Gids
		}
		out = append(out, r)
	}
	return out, nil
}

func mount(c *corev1.Container, m plan.Mount, handler string, recursive bool) (*runtimeapi.Mount, error) {
	r := &runtimeapi.Mount{
		ContainerPath:  m.ContainerPath,
		HostPath:       m.HostPath,
		Readonly:       m.ReadOnly,
		SelinuxRelabel: m.SELinuxRelabel,
	}
	if m.Image != "" {
		r.HostPath, r.Readonly, r.ImageSubPath = "", true, m.ImageSubPath
		r.Image = &runtimeapi.ImageSpec{Image: m.Image}
	}
	switch m.Propagation {
	case corev1.MountPropagationNone, "":
	case corev1.MountPropagationHostToContainer:
		r.Propagation = runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
	case corev1.MountPropagationBidirectional:
		r.Propagation = runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL
	default:
		return nil, invalid(reasonContainer, "mount %s: mountPropagation %q is unknown", m.ContainerPath, m.Propagation)
	}
	if !m.RecursiveReadOnly {
		return r, nil
	}
	if !m.ReadOnly || r.Propagation != runtimeapi.MountPropagation_PROPAGATION_PRIVATE {
		return nil, invalid(reasonContainer, "mount %s: recursiveReadOnly needs readOnly and no mountPropagation",
			m.ContainerPath)
	}
	if !recursive {
		if ifPossible(c, m.ContainerPath) {
			return r, nil
		}
		return nil, unsupported(reasonContainer, "mount %s: %s does not support recursive read-only mounts",
			m.ContainerPath, describeHandler(handler))
	}
	r.RecursiveReadOnly = true
	return r, nil
}

// ifPossible reports whether the spec accepts a plain read-only mount instead of a recursive one.
func ifPossible(c *corev1.Container, containerPath string) bool {
	for _, v := range c.VolumeMounts {
		if path.Clean("/"+v.MountPath) == path.Clean("/"+containerPath) {
			return v.RecursiveReadOnly != nil && *v.RecursiveReadOnly == corev1.RecursiveReadOnlyIfPossible
		}
	}
	return false
}
