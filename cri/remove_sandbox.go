package cri

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// RemoveSandbox removes the sandbox, the containers left in it and their log links. Removing a
// sandbox that does not exist succeeds.
func (c *Client) RemoveSandbox(ctx context.Context, id string) error {
	if c.links.dir != "" {
		left, err := c.listContainers(ctx, &runtimeapi.ContainerFilter{PodSandboxId: id})
		if err != nil {
			return err
		}
		for _, l := range left {
			if err := c.links.remove(l.Id); err != nil {
				c.warn(err)
			}
		}
	}
	err := c.call(ctx, verbRemoveSandbox, id, c.deadlines.RemoveSandbox, func(ctx context.Context) error {
		_, err := c.runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
		return err
	})
	if ignoreNotFound(err) == nil {
		c.netnsCache.delete(id)
	}
	return ignoreNotFound(err)
}
