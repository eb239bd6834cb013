package volumes

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

// isBlock reports whether a volume is a raw block volume. A nil one is not.
func isBlock(pv *corev1.PersistentVolume) bool {
	return pv != nil && pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == corev1.PersistentVolumeBlock
}

// checkMode checks that containers use a volume as its mode requires: a raw block volume as a device, another one as a
// mount.
func checkMode(pod *corev1.Pod, vol *corev1.Volume, block bool) error {
	check := func(mounts []corev1.VolumeMount, devices []corev1.VolumeDevice) error {
		for _, m := range mounts {
			if m.Name == vol.Name && block {
				return invalid("volume %s has volumeMode Block, but is specified in volumeMounts", vol.Name)
			}
		}
		for _, d := range devices {
			if d.Name == vol.Name && !block {
				return invalid("volume %s has volumeMode Filesystem, but is specified in volumeDevices", vol.Name)
			}
		}
		return nil
	}
	var errs []error
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			errs = append(errs, check(list[i].VolumeMounts, list[i].VolumeDevices))
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		c := &pod.Spec.EphemeralContainers[i]
		errs = append(errs, check(c.VolumeMounts, c.VolumeDevices))
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// ContainerDevices returns the device nodes of a container for its raw block volumes, which are set up. Errors are
// *plan.Error with the reason CreateContainerConfigError.
func (v *Volumes) ContainerDevices(
	ctx context.Context, pod *corev1.Pod, c *corev1.Container, objs plan.Objects,
) (out []plan.DeviceNode, err error) {
	for _, d := range c.VolumeDevices {
		n, err := v.containerDevice(pod, d, objs)
		if err = errors.Join(ctx.Err(), err); err != nil {
			return nil, failed(configError, fmt.Errorf("volumeDevice %q of container %q: %w", d.Name, c.Name, err))
		}
		out = append(out, n)
	}
	return out, nil
}

func (v *Volumes) containerDevice(pod *corev1.Pod, d corev1.VolumeDevice, objs plan.Objects) (plan.DeviceNode, error) {
	vol := volumeOf(pod, d.Name)
	if vol == nil {
		return plan.DeviceNode{}, invalid("the pod has no such volume")
	}
	bound := boundVolume(pod, vol, objs)
	if !isBlock(bound) {
		return plan.DeviceNode{}, invalid("volume %s has volumeMode Filesystem", vol.Name)
	}
	n := plan.DeviceNode{ContainerPath: d.DevicePath, Permissions: "mrw"}
	if vol.PersistentVolumeClaim != nil && vol.PersistentVolumeClaim.ReadOnly {
		n.Permissions = "r"
	}
	resolved, err := resolveClaim(pod, vol, objs)
	if err != nil {
		return n, err
	}
	k, err := kindOf(resolved)
	if err != nil {
		return n, err
	}
	m, ok := v.setUp(pod.UID, k, vol.Name)
	if !ok {
		return n, errors.New("volume is not set up on the host")
	}
	if k == csi {
		n.HostPath = v.mountDir(pod.UID, k, vol.Name, m)
	} else {
		n.HostPath = resolved.HostPath.Path
	}
	return n, nil
}
