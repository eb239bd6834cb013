package cri

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

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
