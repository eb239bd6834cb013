package cri

import (
	"context"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
)

// StopContainer sends the stop signal and, when grace is over, SIGKILL; grace
// is rounded up to whole seconds and zero kills at once. It returns the
// container as the runtime shows it afterwards. One that does not exist is
// success and returned as the zero Container. A container that was never
// started is left as it is.
func (c *Client) StopContainer(ctx context.Context, id string, grace time.Duration) (plan.Container, error) {
	seconds := wholeSeconds(grace)
	deadline := time.Duration(seconds)*time.Second + c.deadlines.StopSlack
	err := c.call(ctx, verbStopContainer, id, deadline, func(ctx context.Context) error {
		_, err := c.runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: seconds})
		return err
	})
	if err != nil {
		return plan.Container{}, gone(err)
	}
	seen, err := c.Container(ctx, id)
	return seen, gone(err)
}

// wholeSeconds rounds up, for the runtime knows no less; negative is zero.
func wholeSeconds(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d-1)/time.Second) + 1
}
