package agent

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

// Configure is stage 3: it gives the pod what it needs on this host.
type Configure struct {
	Dirs interface {
		MakeDirs(ctx context.Context, pod *corev1.Pod) error
	}
	Volumes interface {
		Mount(ctx context.Context, pod *corev1.Pod, name, version string, objs plan.Objects, podIPs []string) error
		Project(ctx context.Context, pod *corev1.Pod, name, version string, objs plan.Objects, podIPs []string) error
	}
	Cgroups interface {
		Ensure(ctx context.Context, pod *corev1.Pod) error
	}
}

func (c *Configure) do(ctx context.Context, on actionContext, action plan.ConfigureAction) error {
	switch a := action.(type) {
	case plan.MakeDirs:
		return c.Dirs.MakeDirs(ctx, on.pod)
	case plan.EnsureCgroup:
		return c.Cgroups.Ensure(ctx, plan.WithResources(on.pod, a.Resources))
	case plan.ResizeCgroup: // the same, of one that is there
		return c.Cgroups.Ensure(ctx, plan.WithResources(on.pod, a.Resources))
	case plan.MountVolume:
		return c.Volumes.Mount(ctx, on.pod, a.Volume, a.Version, on.objects, on.podIPs())
	case plan.ProjectVolume:
		return c.Volumes.Project(ctx, on.pod, a.Volume, a.Version, on.objects, on.podIPs())
	}
	return fmt.Errorf("configure: unknown action %T", action)
}

// podIPs are the pod's addresses as far as they are known.
func (g actionContext) podIPs() []string {
	if len(g.observed.Sandboxes) > 0 {
		return g.observed.Sandboxes[0].IPs
	}
	return nil
}
