package agent

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/podspec"
)

// HostPorts is told when a pod's network has come, and with no addresses when it is
// gone: what was on its way to the pod's ports of the host goes another way now.
type HostPorts interface {
	PodIPsChanged(pod *corev1.Pod, ips []string)
}

func moved(h HostPorts, pod *corev1.Pod, ips []string) {
	if h != nil {
		h.PodIPsChanged(pod, ips)
	}
}

// BuildRun is stage 5: it makes what is missing.
type BuildRun struct {
	Images interface {
		Pull(ctx context.Context, pod *corev1.Pod, a plan.PullImage, secrets plan.Objects) (plan.Image, error)
		Resolve(ctx context.Context, pod *corev1.Pod, image string, secrets plan.Objects) (plan.Image, error) // what it stands for now
	}
	Runtime interface {
		RunSandbox(ctx context.Context, pod *corev1.Pod, s plan.SandboxSetup) (plan.Sandbox, error)
		StartContainer(ctx context.Context, pod *corev1.Pod, name string, s plan.ContainerSetup) (plan.Container, error)
		ResizeContainer(ctx context.Context, pod *corev1.Pod, name, id string) error
	}
	Mounts interface {
		ContainerMounts(ctx context.Context, pod *corev1.Pod, c *corev1.Container, attempt uint32, objs plan.Objects, sb plan.Sandbox) ([]plan.Mount, error)
		EnvFiles(pod *corev1.Pod, c *corev1.Container) plan.EnvFiles
	}
	Devices interface { // nil: the node has none
		Allocate(ctx context.Context, pod *corev1.Pod, c *corev1.Container, kind plan.ContainerKind) (plan.Devices, error)
	}
	Hooks        Hooks
	HostPorts    HostPorts
	CgroupParent func(*corev1.Pod) string
	LogDir       func(*corev1.Pod) string
	Allocatable  func() corev1.ResourceList
	HostIPs      []string
}

func (b *BuildRun) do(ctx context.Context, on actionContext, action plan.BuildRunAction, out *plan.Outcome) error {
	switch a := action.(type) {
	case plan.PullImage:
		img, err := b.Images.Pull(ctx, on.pod, a, on.objects)
		if err == nil {
			out.Image = &img
		}
		return err
	case plan.RunSandbox:
		sb, err := b.Runtime.RunSandbox(ctx, on.pod, plan.SandboxSetup{
			Attempt: a.Attempt, CgroupParent: b.CgroupParent(on.pod), LogDir: b.LogDir(on.pod),
		})
		if err == nil {
			out.Sandbox = &sb
			moved(b.HostPorts, on.pod, sb.IPs)
		}
		return err
	case plan.ResizeContainer:
		return b.Runtime.ResizeContainer(ctx, on.pod, a.Name, a.ID)
	case plan.PostStart:
		return runHook(ctx, b.Hooks, on, a.Name, a.ID, func(l *corev1.Lifecycle) *corev1.LifecycleHandler { return l.PostStart })
	case plan.StartContainer:
		return b.start(ctx, on, a, out)
	}
	return fmt.Errorf("build-run: unknown action %T", action)
}

func (b *BuildRun) start(ctx context.Context, on actionContext, a plan.StartContainer, out *plan.Outcome) error {
	c := podspec.FindContainer(on.pod, a.Name)
	if c == nil {
		return &plan.Error{Kind: plan.Invalid, Reason: "CreateContainerConfigError", Err: fmt.Errorf("the pod has no container %q", a.Name)}
	}
	setup := plan.ContainerSetup{
		Kind: a.Kind, Attempt: a.Attempt, CgroupPar: b.CgroupParent(on.pod), LogDir: b.LogDir(on.pod),
		HostIPs: b.HostIPs, Objects: on.objects, Allocatable: b.Allocatable(),
		Image: a.Image,
	}
	for _, s := range on.observed.Sandboxes {
		if s.ID == a.SandboxID {
			setup.Sandbox = s
		}
	}
	if a.Resolve && c.ImagePullPolicy != corev1.PullAlways {
		var err error
		if setup.Image, err = b.resolve(ctx, on, c.Image, out); err != nil {
			return err
		}
	}
	if b.Devices != nil {
		var err error
		if setup.Devices, err = b.Devices.Allocate(ctx, on.pod, c, a.Kind); err != nil {
			return err
		}
	}
	mounts, err := b.Mounts.ContainerMounts(ctx, on.pod, c, a.Attempt, on.objects, setup.Sandbox)
	if err != nil {
		return err
	}
	names := []string{c.Image}
	for i := range mounts {
		name := mounts[i].Image
		if name == "" {
			continue
		}
		names = append(names, name)
		img, seen := on.observed.Images[name] // the runtime is to mount just the image that was pulled
		if !seen || a.Resolve {
			if img, err = b.resolve(ctx, on, name, out); err != nil {
				return err
			}
		}
		mounts[i].Image = img.ID
	}
	setup.Mounts, setup.Files = mounts, b.Mounts.EnvFiles(on.pod, c)
	k, err := b.Runtime.StartContainer(ctx, on.pod, a.Name, setup)
	if k.ID != "" {
		out.Container = &k
	}
	if plan.KindOf(err) == plan.ImageGone { // it does not say which
		out.Gone = names
	}
	return err
}

func (b *BuildRun) resolve(ctx context.Context, on actionContext, name string, out *plan.Outcome) (plan.Image, error) {
	img, err := b.Images.Resolve(ctx, on.pod, name, on.objects)
	if plan.KindOf(err) == plan.ImageGone {
		out.Gone = []string{name}
	}
	return img, err
}
