package cri

import (
	"context"
	"encoding/json"
	"fmt"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
	"berth/cri/criconfig"
	"berth/podspec"
)

// ResizeContainer sets the CPU and memory of a running container to those in the pod's spec. A
// memory limit that is decreased below the current usage is refused, because the kernel would kill
// processes.
func (c *Client) ResizeContainer(ctx context.Context, pod *corev1.Pod, name, id string) error {
	spec := podspec.FindContainer(pod, name)
	if spec == nil {
		return &plan.Error{Kind: plan.Invalid, Err: fmt.Errorf("the pod has no container %q", name)}
	}
	r, err := criconfig.Resources(c.node(), pod, spec)
	if err != nil {
		return err
	}
	if err := c.checkMemoryLimit(ctx, name, id, r.MemoryLimitInBytes); err != nil {
		return err
	}
	return c.UpdateResources(ctx, id, r)
}

// checkMemoryLimit refuses a memory limit, in bytes, that is lower than the container's current
// limit and not above its usage. Keeping or raising the limit is always allowed.
func (c *Client) checkMemoryLimit(ctx context.Context, name, id string, limit int64) error {
	if limit <= 0 {
		return nil
	}
	now, err := c.memoryLimit(ctx, id)
	if err != nil || now > 0 && limit >= now {
		return err
	}
	used, err := c.memoryUsage(ctx, id)
	if err == nil && used >= uint64(limit) {
		return fmt.Errorf("container %s: attempting to set memory limit (%d) below current usage (%d)", name, limit,
			used)
	}
	return err
}

// memoryLimit returns the current memory limit of a container in bytes. 0: there is none, or the
// runtime does not report it. containerd 1.6 reports it only in the runtime spec.
func (c *Client) memoryLimit(ctx context.Context, id string) (int64, error) {
	var resp *runtimeapi.ContainerStatusResponse
	err := c.call(ctx, verbContainerStatus, id, c.deadlines.Query, func(ctx context.Context) (err error) {
		resp, err = c.runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
		return err
	})
	if linux := resp.GetStatus().GetResources().GetLinux(); err != nil || linux != nil {
		return linux.GetMemoryLimitInBytes(), err
	}
	var info struct {
		Spec specs.Spec `json:"runtimeSpec"`
	}
	_ = json.Unmarshal([]byte(resp.GetInfo()["info"]), &info) // not reported otherwise
	if l := info.Spec.Linux; l != nil && l.Resources != nil && l.Resources.Memory != nil &&
		l.Resources.Memory.Limit != nil {
		return *l.Resources.Memory.Limit, nil
	}
	return 0, nil
}

// memoryUsage returns the working set of a container in bytes.
func (c *Client) memoryUsage(ctx context.Context, id string) (uint64, error) {
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
		_, err := c.runtime.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id,
			Linux: r})
		return err
	})
}

// ReopenLog makes the runtime create a new file at the container's log path, after the old one was
// renamed.
func (c *Client) ReopenLog(ctx context.Context, id string) error {
	return c.call(ctx, verbReopenLog, id, c.deadlines.Update, func(ctx context.Context) error {
		_, err := c.runtime.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
		return err
	})
}
