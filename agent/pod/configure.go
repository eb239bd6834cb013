package pod

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

// Configure is stage 3: it creates the directories, the cgroup and the volumes of a pod.
type Configure struct {
	Dirs interface {
		CreateDirs(ctx context.Context, pod *corev1.Pod) error
	}
	Volumes interface {
		Mount(ctx context.Context, pod *corev1.Pod, name, version string, objs plan.Objects, podIPs []string) error
		Project(ctx context.Context, pod *corev1.Pod, name, version string, objs plan.Objects, podIPs []string) error
	}
	Cgroups interface {
		Ensure(ctx context.Context, pod *corev1.Pod) error
	}
}

func (c *Configure) do(ctx context.Context, ac actionContext, action plan.ConfigureAction) error {
	switch a := action.(type) {
	case plan.CreateDirs:
		return c.Dirs.CreateDirs(ctx, ac.pod)
	case plan.EnsureCgroup:
		return c.Cgroups.Ensure(ctx, plan.WithResources(ac.pod, a.Resources))
	case plan.ResizeCgroup: // the same call for an existing cgroup
		return c.Cgroups.Ensure(ctx, plan.WithResources(ac.pod, a.Resources))
	case plan.MountVolume:
		return c.Volumes.Mount(ctx, ac.pod, a.Volume, a.Version, ac.objects, ac.podIPs())
	case plan.ProjectVolume:
		return c.Volumes.Project(ctx, ac.pod, a.Volume, a.Version, ac.objects, ac.podIPs())
	}
	return fmt.Errorf("configure: unknown action %T", action)
}
