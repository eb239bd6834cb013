package pod

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/podspec"
)

// BuildRun is stage 5: it pulls images, creates the sandbox with its network, and
// starts containers.
type BuildRun struct {
	Images interface {
		Pull(ctx context.Context, pod *corev1.Pod, a plan.PullImage, secrets plan.Objects) (plan.Image, error)
		// Resolve returns the image that a name refers to now.
		Resolve(ctx context.Context, pod *corev1.Pod, image string, secrets plan.Objects) (plan.Image, error)
	}
	Runtime interface {
		RunSandbox(ctx context.Context, pod *corev1.Pod, s plan.SandboxConfig) (plan.Sandbox, error)
		StartContainer(ctx context.Context, pod *corev1.Pod, name string, s plan.ContainerConfig) (plan.Container,
			error)
		ResizeContainer(ctx context.Context, pod *corev1.Pod, name, id string) error
	}
	Mounts interface {
		ContainerMounts(ctx context.Context, pod *corev1.Pod, c *corev1.Container, attempt uint32,
			objs plan.Objects, sb plan.Sandbox) ([]plan.Mount, error)
		ContainerDevices(ctx context.Context, pod *corev1.Pod, c *corev1.Container,
			objs plan.Objects) ([]plan.DeviceNode, error)
		EnvFiles(pod *corev1.Pod, c *corev1.Container) plan.EnvFiles
	}
	Devices interface { // nil: the node has none
		Allocate(ctx context.Context, pod *corev1.Pod, c *corev1.Container, kind plan.ContainerKind) (plan.Devices,
			error)
	}
	Hooks        Hooks
	HostPorts    HostPorts
	CgroupParent func(*corev1.Pod) string
	LogDir       func(*corev1.Pod) string
	Allocatable  func() corev1.ResourceList
	HostIPs      []string
}

func (b *BuildRun) do(ctx context.Context, ac actionContext, action plan.BuildRunAction, out *plan.Outcome) error {
	switch a := action.(type) {
	case plan.PullImage:
		img, err := b.Images.Pull(ctx, ac.pod, a, ac.objects)
		if err == nil {
			out.Image = &img
		}
		return err
	case plan.RunSandbox:
		sb, err := b.Runtime.RunSandbox(ctx, ac.pod, plan.SandboxConfig{
			Attempt: a.Attempt, CgroupParent: b.CgroupParent(ac.pod), LogDir: b.LogDir(ac.pod),
		})
		if err == nil {
			out.Sandbox = &sb
			reportPodIPs(b.HostPorts, ac.pod, sb.IPs)
		}
		return err
	case plan.ResizeContainer:
		return b.Runtime.ResizeContainer(ctx, ac.pod, a.Name, a.ID)
	case plan.PostStart:
		postStart := func(l *corev1.Lifecycle) *corev1.LifecycleHandler { return l.PostStart }
		return runHook(ctx, b.Hooks, ac, a.Name, a.ID, postStart)
	case plan.StartContainer:
		return b.start(ctx, ac, a, out)
	}
	return fmt.Errorf("build-run: unknown action %T", action)
}

func (b *BuildRun) start(ctx context.Context, ac actionContext, a plan.StartContainer, out *plan.Outcome) error {
	c := podspec.FindContainer(ac.pod, a.Name)
	if c == nil {
		err := fmt.Errorf("container %q not found in pod", a.Name)
		return &plan.Error{Kind: plan.Invalid, Reason: "CreateContainerConfigError", Err: err}
	}
	setup := plan.ContainerConfig{
		Kind: a.Kind, Attempt: a.Attempt, CgroupParent: b.CgroupParent(ac.pod), LogDir: b.LogDir(ac.pod),
		HostIPs: b.HostIPs, Objects: ac.objects, Allocatable: b.Allocatable(),
		Image: a.Image,
	}
	for _, s := range ac.observed.Sandboxes {
		if s.ID == a.SandboxID {
			setup.Sandbox = s
		}
	}
	if a.ResolveImage && c.ImagePullPolicy != corev1.PullAlways {
		var err error
		if setup.Image, err = b.resolve(ctx, ac, c.Image, out); err != nil {
			return err
		}
	}
	if b.Devices != nil {
		var err error
		if setup.Devices, err = b.Devices.Allocate(ctx, ac.pod, c, a.Kind); err != nil {
			return err
		}
	}
	mounts, err := b.Mounts.ContainerMounts(ctx, ac.pod, c, a.Attempt, ac.objects, setup.Sandbox)
	if err != nil {
		return err
	}
	devices, err := b.Mounts.ContainerDevices(ctx, ac.pod, c, ac.objects)
	if err != nil {
		return err
	}
	setup.Devices.Nodes = append(slices.Clip(setup.Devices.Nodes), devices...)
	names := []string{c.Image}
	for i := range mounts {
		name := mounts[i].Image
		if name == "" {
			continue
		}
		names = append(names, name)
		img, observed := ac.observed.Images[name] // mount exactly the image that was pulled
		if !observed || a.ResolveImage {
			if img, err = b.resolve(ctx, ac, name, out); err != nil {
				return err
			}
		}
		mounts[i].Image = img.ID
	}
	setup.Mounts, setup.Files = mounts, b.Mounts.EnvFiles(ac.pod, c)
	k, err := b.Runtime.StartContainer(ctx, ac.pod, a.Name, setup)
	if k.ID != "" {
		out.Container = &k
	}
	if plan.KindOf(err) == plan.ImageNotFound { // the error does not say which
		out.MissingImages = names
	}
	return err
}

func (b *BuildRun) resolve(ctx context.Context, ac actionContext, name string, out *plan.Outcome) (plan.Image, error) {
	img, err := b.Images.Resolve(ctx, ac.pod, name, ac.objects)
	if plan.KindOf(err) == plan.ImageNotFound {
		out.MissingImages = []string{name}
	}
	return img, err
}
