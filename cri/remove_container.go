package cri

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// RemoveContainer removes the container and its log link; what still runs in it
// is killed. A container that does not exist is success.
func (c *Client) RemoveContainer(ctx context.Context, id string) error {
	// The link goes first: no crash in between leaves one without a container.
	if err := c.links.remove(id); err != nil {
		c.warn(err)
	}
	return gone(c.call(ctx, verbRemoveContainer, id, c.deadlines.RemoveContainer, func(ctx context.Context) error {
		req := &runtimeapi.RemoveContainerRequest{ContainerId: id}
		_, err := c.runtime.RemoveContainer(ctx, req)
		if lostTask(err) && c.dropTask(ctx, id) == nil {
			_, err = c.runtime.RemoveContainer(ctx, req)
		}
		return err
	}))
}
