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

// ContainerPID returns the first process of a running container, by its number on
// the host. A runtime that does not tell is plan.Unsupported.
//
// containerd's shim leaves the number in a file, which costs next to nothing to
// read; the verbose status has it too, with the whole specification of the
// container. It is asked for where there is no such file, or where that may be
// out of date.
func (c *Client) ContainerPID(ctx context.Context, id string) (pid int, err error) {
	if pid := c.notedProcess(ctx, id); pid > 0 {
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
		return 0, &plan.Error{Kind: plan.Unsupported, Err: fmt.Errorf("the runtime does not tell the process of container %s", id)}
	}
	return info.PID, nil
}

// pidFile is where a shim notes the first process, in the bundle of its task.
const pidFile = "init.pid"

// notedProcess is the process that the container's shim has noted, if that is
// there and its cgroup bears the container's ID; else 0. A number that another
// process has got since is not taken for it.
func (c *Client) notedProcess(ctx context.Context, id string) int {
	facts, ok, err := c.Layout(ctx)
	if err != nil || !ok || !isID(id) {
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
	if groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)); err != nil || !bytes.Contains(groups, []byte(id)) {
		return 0
	}
	return pid
}
