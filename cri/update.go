package cri

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
	"berth/cri/criconfig"
	"berth/podspec"
)

// ResizeContainer gives a running container the CPU and memory that the pod's
// spec has for it now. A memory limit below what is in use is refused: the kernel
// would kill for it.
func (c *Client) ResizeContainer(ctx context.Context, pod *corev1.Pod, name, id string) error {
	spec := podspec.ContainerOf(pod, name)
	if spec == nil {
		return &plan.Error{Kind: plan.Invalid, Err: fmt.Errorf("the pod has no container %q", name)}
	}
	r, err := criconfig.Resources(c.node(), pod, spec)
	if err != nil {
		return err
	}
	if r.MemoryLimitInBytes > 0 {
		used, err := c.memoryInUse(ctx, id)
		if err != nil {
			return err
		}
		if used >= uint64(r.MemoryLimitInBytes) {
			return fmt.Errorf("container %s: attempting to set memory limit (%d) below current usage (%d)", name, r.MemoryLimitInBytes, used)
		}
	}
	return c.UpdateResources(ctx, id, r)
}

// memoryInUse is what of a container's memory cannot be dropped, in bytes.
func (c *Client) memoryInUse(ctx context.Context, id string) (uint64, error) {
	var resp *runtimeapi.ContainerStatsResponse
	err := c.call(ctx, verbUpdate, id, c.deadlines.Update, func(ctx context.Context) (err error) {
		resp, err = c.runtime.ContainerStats(ctx, &runtimeapi.ContainerStatsRequest{ContainerId: id})
		return err
	})
	return resp.GetStats().GetMemory().GetWorkingSetBytes().GetValue(), err
}

// UpdateResources changes the limits of a running or created container.
func (c *Client) UpdateResources(ctx context.Context, id string, r *runtimeapi.LinuxContainerResources) error {
	return c.call(ctx, verbUpdate, id, c.deadlines.Update, func(ctx context.Context) error {
		_, err := c.runtime.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: r})
		return err
	})
}

// ReopenLog makes the runtime write to a new file at the container's log path,
// after the old one was moved away.
func (c *Client) ReopenLog(ctx context.Context, id string) error {
	return c.call(ctx, verbReopenLog, id, c.deadlines.Update, func(ctx context.Context) error {
		_, err := c.runtime.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
		return err
	})
}
