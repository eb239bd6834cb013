package pod

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

// Cleanup is stage 4: it stops and removes everything that must not exist.
type Cleanup struct {
	Containers interface {
		StopContainer(ctx context.Context, id string, grace time.Duration) (plan.Container, error)
		RemoveContainer(ctx context.Context, id string) error
	}
	Sandboxes interface {
		StopSandbox(ctx context.Context, id string) error
		RemoveSandbox(ctx context.Context, id string) error
	}
	Host interface {
		Unmount(ctx context.Context, pod *corev1.Pod, name string) error
		RemoveDirs(ctx context.Context, pod *corev1.Pod) error
	}
	Hooks     Hooks
	HostPorts HostPorts
	Cgroups   interface {
		Remove(ctx context.Context, pod *corev1.Pod) error
	}
}

func (c *Cleanup) do(ctx context.Context, ac actionContext, action plan.CleanupAction, out *plan.Outcome) error {
	switch a := action.(type) {
	case plan.StopContainer:
		k, err := c.Containers.StopContainer(ctx, a.ID, a.Grace)
		if err == nil && k.ID == a.ID {
			out.Container = &k
		}
		return err
	case plan.PreStop:
		preStop := func(l *corev1.Lifecycle) *corev1.LifecycleHandler { return l.PreStop }
		return runHook(ctx, c.Hooks, ac, a.Name, a.ID, preStop)
	case plan.RemoveContainer:
		return c.Containers.RemoveContainer(ctx, a.ID)
	case plan.StopSandbox:
		err := c.Sandboxes.StopSandbox(ctx, a.ID)
		if err == nil {
			reportPodIPs(c.HostPorts, ac.pod, nil)
		}
		return err
	case plan.RemoveSandbox:
		return c.Sandboxes.RemoveSandbox(ctx, a.ID)
	case plan.UnmountVolume:
		return c.Host.Unmount(ctx, ac.pod, a.Volume)
	case plan.RemoveDirs:
		return c.Host.RemoveDirs(ctx, ac.pod)
	case plan.RemoveCgroup:
		return c.Cgroups.Remove(ctx, ac.pod)
	}
	return fmt.Errorf("cleanup: unknown action %T", action)
}
