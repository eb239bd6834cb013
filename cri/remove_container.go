package cri

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// RemoveContainer removes the container and its log link. Processes that still run in it are
// killed. Removing a container that does not exist succeeds.
func (c *Client) RemoveContainer(ctx context.Context, id string) error {
	// Remove the link first, so that a crash in between leaves no link without a container.
	if err := c.links.remove(id); err != nil {
		c.warn(err)
	}
	return ignoreNotFound(c.call(ctx, verbRemoveContainer, id, c.deadlines.RemoveContainer,
		func(ctx context.Context) error {
			req := &runtimeapi.RemoveContainerRequest{ContainerId: id}
			_, err := c.runtime.RemoveContainer(ctx, req)
			if hasLeakedTask(err) && c.deleteTask(ctx, id) == nil {
				_, err = c.runtime.RemoveContainer(ctx, req)
			}
			return err
		}))
}
