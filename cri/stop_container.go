package cri

import (
	"context"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
)

// StopContainer sends the stop signal and, after the grace period, SIGKILL. The grace period is
// rounded up to whole seconds, and zero kills immediately. StopContainer returns the container as
// the runtime reports it afterwards. Stopping a container that does not exist succeeds and returns
// the zero Container. A container that was never started is not changed.
func (c *Client) StopContainer(ctx context.Context, id string, grace time.Duration) (plan.Container, error) {
	seconds := wholeSeconds(grace)
	deadline := time.Duration(seconds)*time.Second + c.deadlines.StopSlack
	err := c.call(ctx, verbStopContainer, id, deadline, func(ctx context.Context) error {
		_, err := c.runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: seconds})
		return err
	})
	if err != nil {
		return plan.Container{}, ignoreNotFound(err)
	}
	seen, err := c.Container(ctx, id)
	return seen, ignoreNotFound(err)
}

// wholeSeconds rounds up to seconds, the resolution of the runtime. Negative durations become zero.
func wholeSeconds(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d-1)/time.Second) + 1
}
