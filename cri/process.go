package cri

import (
	"context"
	"encoding/json"
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
)

// Process returns the first process of a running container, by its number on
// the host. A runtime that does not tell is plan.Unsupported.
func (c *Client) Process(ctx context.Context, id string) (pid int, err error) {
	var resp *runtimeapi.ContainerStatusResponse
	err = c.call(ctx, verbContainerStatus, id, c.deadlines.Look, func(ctx context.Context) (err error) {
		resp, err = c.runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
		return err
	})
	if err != nil {
		return 0, err
	}
	var info struct {
		PID int `json:"pid"`
	}
	if json.Unmarshal([]byte(resp.GetInfo()["info"]), &info) != nil || info.PID <= 0 {
		return 0, &plan.Error{Kind: plan.Unsupported, Err: fmt.Errorf("the runtime does not tell the process of container %s", id)}
	}
	return info.PID, nil
}
