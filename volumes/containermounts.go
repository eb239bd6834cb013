package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/podspec"
)

const etcHosts = "/etc/hosts"

// configError is the waiting reason of a container with an invalid configuration.
const configError = "CreateContainerConfigError"

// ContainerMounts prepares and returns all mounts of a container instance: its volume mounts in
// spec order, /etc/hosts, and its termination message file. Errors are *plan.Error with the reason
// CreateContainerConfigError.
func (v *Volumes) ContainerMounts(
	ctx context.Context,
	pod *corev1.Pod,
	c *corev1.Container,
	attempt uint32,
	objs plan.Objects,
	sandbox plan.Sandbox,
) ([]plan.Mount, error) {
	mounts, err := v.containerMounts(ctx, pod, c, attempt, objs, sandbox)
	if err != nil {
		return nil, failed(configError, err)
	}
	return mounts, nil
}

func (v *Volumes) containerMounts(
	ctx context.Context,
	pod *corev1.Pod,
	c *corev1.Container,
	attempt uint32,
	objs plan.Objects,
	sandbox plan.Sandbox,
) ([]plan.Mount, error) {
	if err := errors.Join(ctx.Err(), checkNames(string(pod.UID), pod.Namespace, pod.Name, c.Name)); err != nil {
		return nil, err
	}
	if err := v.requireOwn(pod.UID); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(v.LogDir(pod), c.Name), 0o755); err != nil {
		return nil, err
	}
	var mounts []plan.Mount
	ownHosts := false
	for i := range c.VolumeMounts {
		m, err := v.volumeMount(ctx, pod, c, i, objs, sandbox)
		if err != nil {
			return nil, fmt.Errorf("volumeMount %q of container %q: %w", c.VolumeMounts[i].Name, c.Name, err)
		}
		mounts = append(mounts, m)
		ownHosts = ownHosts || filepath.Clean(m.ContainerPath) == etcHosts
	}
	if ips := v.podIPs(pod, sandbox); !ownHosts && len(ips) > 0 {
		path, err := v.writeHosts(pod, ips)
		if err != nil {
			return nil, fmt.Errorf("write hosts file: %w", err)
		}
		mounts = append(mounts, plan.Mount{HostPath: path, ContainerPath: etcHosts, SELinuxRelabel: true})
	}
	if c.TerminationMessagePath != "" {
		path, err := v.terminationFile(pod.UID, c.Name, attempt)
		if err != nil {
			return nil, fmt.Errorf("create termination message file of container %q: %w", c.Name, err)
		}
		mounts = append(mounts, plan.Mount{HostPath: path, ContainerPath: c.TerminationMessagePath,
			SELinuxRelabel: true})
	}
	return mounts, nil
}

func (v *Volumes) podIPs(pod *corev1.Pod, sandbox plan.Sandbox) []string {
	if pod.Spec.HostNetwork {
		return v.HostIPs
	}
	return sandbox.IPs
}

// volumeMount prepares one volume mount.
func (v *Volumes) volumeMount(
	ctx context.Context,
	pod *corev1.Pod,
	c *corev1.Container,
	i int,
	objs plan.Objects,
	sandbox plan.Sandbox,
) (plan.Mount, error) {
	vm := &c.VolumeMounts[i]
	vol := volumeOf(pod, vm.Name)
	if vol == nil {
		return plan.Mount{}, invalid("the pod has no such volume")
	}
	if vol.Image != nil {
		return v.imageMount(ctx, pod, c, vm, vol, objs, sandbox)
	}
	readOnly := vol.PersistentVolumeClaim != nil && vol.PersistentVolumeClaim.ReadOnly ||
		vol.CSI != nil && vol.CSI.ReadOnly != nil && *vol.CSI.ReadOnly
	vol, err := resolveClaim(pod, vol, objs)
	if err != nil {
		return plan.Mount{}, err
	}
	k, err := kindOf(vol)
	if err != nil {
		return plan.Mount{}, err
	}
	recorded, ok := v.setUp(pod.UID, k, vol.Name)
	if !ok {
		return plan.Mount{}, errors.New("volume is not set up on the host")
	}
	m := plan.Mount{
		HostPath:       v.mountDir(pod.UID, k, vol.Name, recorded),
		ContainerPath:  vm.MountPath,
		ReadOnly:       vm.ReadOnly || readOnly || k.projects(),
		SELinuxRelabel: k != hostPath,
	}
	if k == csi {
		m.SELinuxRelabel = v.CSI != nil && v.CSI.SELinuxRelabel(m.HostPath)
	}
	if !strings.HasPrefix(m.ContainerPath, "/") {
		m.ContainerPath = "/" + m.ContainerPath
	}
	if k == hostPath {
		m.HostPath = vol.HostPath.Path
	}
	if vm.MountPropagation != nil && *vm.MountPropagation != corev1.MountPropagationNone {
		m.Propagation = *vm.MountPropagation
	}
	if m.RecursiveReadOnly, err = v.recursiveReadOnly(pod, vm); err != nil {
		return plan.Mount{}, err
	}
	sub, err := v.subPath(ctx, pod, c, vm, objs, sandbox)
	if err != nil || sub == "." {
		return m, err
	}
	m.HostPath, err = v.bindSubPath(subMount{
		uid: pod.UID, volume: vol.Name, container: c.Name, index: i,
		root: m.HostPath, follow: k == hostPath, sub: sub, fixed: k.projects(),
	})
	return m, err
}

// imageMount returns the mount of an image volume, which the runtime creates from the image
// reference of the spec.
func (v *Volumes) imageMount(
	ctx context.Context,
	pod *corev1.Pod,
	c *corev1.Container,
	vm *corev1.VolumeMount,
	vol *corev1.Volume,
	objs plan.Objects,
	sandbox plan.Sandbox,
) (plan.Mount, error) {
	if vol.Image.Reference == "" {
		return plan.Mount{}, invalid("image volume without reference")
	}
	sub, err := v.subPath(ctx, pod, c, vm, objs, sandbox)
	if err != nil {
		return plan.Mount{}, err
	}
	m := plan.Mount{ContainerPath: "/" + strings.TrimPrefix(vm.MountPath, "/"), ReadOnly: true,
		Image: vol.Image.Reference}
	if sub != "." {
		m.ImageSubPath = sub
	}
	return m, nil
}

// recursiveReadOnly reports whether a read-only mount includes the mounts below it. It returns an
// error if that is required but not supported by the runtime.
func (v *Volumes) recursiveReadOnly(pod *corev1.Pod, vm *corev1.VolumeMount) (bool, error) {
	if vm.RecursiveReadOnly == nil || *vm.RecursiveReadOnly == corev1.RecursiveReadOnlyDisabled {
		return false, nil
	}
	if !vm.ReadOnly {
		return false, invalid("recursiveReadOnly %s requires readOnly", *vm.RecursiveReadOnly)
	}
	can := v.RecursiveReadOnly != nil && v.RecursiveReadOnly(pod)
	if !can && *vm.RecursiveReadOnly == corev1.RecursiveReadOnlyEnabled {
		return false, &plan.Error{
			Kind: plan.Unsupported,
			Err:  errors.New("recursiveReadOnly Enabled is not supported by the container runtime"),
		}
	}
	return can, nil
}

// subPath returns the clean subPath of a mount, where "." is the root of the volume. An invalid
// subPathExpr is retried, because the values of its variables may change.
func (v *Volumes) subPath(
	ctx context.Context,
	pod *corev1.Pod,
	c *corev1.Container,
	vm *corev1.VolumeMount,
	objs plan.Objects,
	sandbox plan.Sandbox,
) (string, error) {
	if vm.SubPathExpr == "" {
		if err := checkSubPath(vm.SubPath); err != nil {
			return "", invalid("%w", err)
		}
		return filepath.Clean(vm.SubPath), nil
	}
	env := func(string) (string, bool) { return "", false }
	if v.Env != nil {
		var err error
		if env, err = v.Env(ctx, pod, c, objs, sandbox); err != nil {
			return "", fmt.Errorf("environment for subPathExpr: %w", err)
		}
	}
	sub, err := expandSubPath(vm.SubPathExpr, env)
	if err != nil {
		return "", err
	}
	if err := checkSubPath(sub); err != nil {
		return "", err
	}
	return filepath.Clean(sub), nil
}

// expandSubPath expands $(NAME). Unlike in commands, all names must exist.
func expandSubPath(expr string, env func(string) (string, bool)) (string, error) {
	var missing []string
	sub := podspec.Expand(expr, func(name string) (string, bool) {
		value, ok := env(name)
		if !ok {
			missing = append(missing, name)
		}
		return value, ok
	})
	if len(missing) > 0 {
		return "", fmt.Errorf("subPathExpr %q: environment has no %s", expr, strings.Join(missing, ", "))
	}
	return sub, nil
}
