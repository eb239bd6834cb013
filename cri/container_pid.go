package cri

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
)

// ContainerPID returns the PID of the first process of a running container on the host. If the
// runtime does not report it, the error has kind plan.Unsupported.
//
// containerd's shim writes the PID to a file, which is cheap to read. The verbose status has it
// too, together with the whole container spec. It is used if the file does not exist or may be
// outdated.
func (c *Client) ContainerPID(ctx context.Context, id string) (pid int, err error) {
	if pid := c.pidFromBundle(ctx, id); pid > 0 {
		return pid, nil
	}
	var resp *runtimeapi.ContainerStatusResponse
	err = c.call(ctx, verbContainerStatus, id, c.deadlines.Query, func(ctx context.Context) (err error) {
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
		return 0, &plan.Error{Kind: plan.Unsupported,
			Err: fmt.Errorf("the runtime does not report the PID of container %s",
				id)}
	}
	return info.PID, nil
}

// pidFile is the file in the bundle of a task to which a shim writes the PID of the first process.
const pidFile = "init.pid"

// pidFromBundle returns the PID that the container's shim has written, or 0 if the file is missing
// or the cgroup of the process does not contain the container's ID, because the PID was reused.
func (c *Client) pidFromBundle(ctx context.Context, id string) int {
	facts, ok, err := c.Layout(ctx)
	if err != nil || !ok || !isContainerID(id) {
		return 0
	}
	text, err := os.ReadFile(filepath.Join(facts.TaskDir, id, pidFile))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(text)))
	if err != nil || pid <= 0 {
		return 0
	}
	if groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)); err != nil ||
		!bytes.Contains(groups, []byte(id)) {
		return 0
	}
	return pid
}
