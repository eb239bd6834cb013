package cri

import (
	"context"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// CheckpointContainer writes a checkpoint of a running container to an archive, while the container keeps
// running. timeout is rounded up to seconds; 0: the default. The error has kind plan.Unsupported if the
// runtime has no checkpoints.
func (c *Client) CheckpointContainer(ctx context.Context, id, archive string, timeout time.Duration) error {
	if timeout <= 0 {
		timeout = c.deadlines.Checkpoint
	}
	return c.call(ctx, verbCheckpoint, id, timeout, func(ctx context.Context) error {
		_, err := c.runtime.CheckpointContainer(ctx, &runtimeapi.CheckpointContainerRequest{
			ContainerId: id, Location: archive, Timeout: wholeSeconds(timeout),
		})
		return err
	})
}
