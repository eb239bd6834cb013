package cri

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// StopSandbox stops the sandbox with everything that runs in it and tears down its network.
// Stopping a sandbox that does not exist succeeds.
func (c *Client) StopSandbox(ctx context.Context, id string) error {
	return ignoreNotFound(c.call(ctx, verbStopSandbox, id, c.deadlines.StopSandbox, func(ctx context.Context) error {
		c.addSocketDirOf(ctx, id)
		_, err := c.runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
		return err
	}))
}
