package cri

import (
	"bytes"
	"context"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// MaxExecOutput is how much of each output stream ExecSync keeps.
const MaxExecOutput = 64 << 10

// ExecSync runs a command in the container and waits for it. A command that is
// not over after the timeout is killed and the error is plan.Timeout; zero is no
// timeout. Exit codes are results, not errors. Of each output the first
// MaxExecOutput bytes are kept.
func (c *Client) ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) (stdout, stderr []byte, exitCode int32, err error) {
	seconds := wholeSeconds(timeout)
	var deadline time.Duration
	if seconds > 0 {
		deadline = time.Duration(seconds)*time.Second + c.deadlines.ExecSlack
	}
	var resp *runtimeapi.ExecSyncResponse
	err = c.call(ctx, verbExecSync, id, deadline, func(ctx context.Context) (err error) {
		resp, err = c.runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: cmd, Timeout: seconds})
		return err
	})
	return head(resp.GetStdout()), head(resp.GetStderr()), resp.GetExitCode(), err
}

// head bounds an output and lets go of the rest of it.
func head(b []byte) []byte {
	if len(b) <= MaxExecOutput {
		return b
	}
	return bytes.Clone(b[:MaxExecOutput])
}
