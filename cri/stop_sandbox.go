package cri

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// StopSandbox ends the sandbox with all that runs in it and takes its network
// away. A sandbox that does not exist is success.
func (c *Client) StopSandbox(ctx context.Context, id string) error {
	return gone(c.call(ctx, verbStopSandbox, id, c.deadlines.StopSandbox, func(ctx context.Context) error {
		c.learnSocket(ctx, id)
		_, err := c.runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
		return err
	}))
}
