package agent

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/podspec"
)

// Hooks runs the hooks of running containers. A hook has no time limit of its
// own: it is called off by ctx. What is printed or answered is part of the
// error only.
type Hooks interface {
	Run(ctx context.Context, pod *corev1.Pod, c *corev1.Container, h *corev1.LifecycleHandler, id string, podIPs []string) error
}

// runHook runs one hook of a container.
func runHook(ctx context.Context, hooks Hooks, on actionContext, name, id string, of func(*corev1.Lifecycle) *corev1.LifecycleHandler) error {
	c := podspec.FindContainer(on.pod, name)
	if c == nil || c.Lifecycle == nil || of(c.Lifecycle) == nil {
		return &plan.Error{Kind: plan.Invalid, Err: fmt.Errorf("container %q has no such hook", name)}
	}
	return hooks.Run(ctx, on.pod, c, of(c.Lifecycle), id, on.podIPs())
}
