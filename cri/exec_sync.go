package cri

import (
	"bytes"
	"context"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// MaxExecOutput is the number of bytes of each output stream that ExecSync returns.
const MaxExecOutput = 64 << 10

// ExecSync runs a command in the container and waits for it. A command that exceeds the timeout is
// killed and the error has kind plan.Timeout. Zero means no timeout. Exit codes are results, not
// errors. Each output is truncated to MaxExecOutput bytes.
func (c *Client) ExecSync(ctx context.Context, id string, cmd []string,
	timeout time.Duration) (stdout, stderr []byte, exitCode int32, err error) {
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
	return truncateOutput(resp.GetStdout()), truncateOutput(resp.GetStderr()), resp.GetExitCode(), err
}

// truncateOutput limits an output and releases the rest of its memory.
func truncateOutput(b []byte) []byte {
	if len(b) <= MaxExecOutput {
		return b
	}
	return bytes.Clone(b[:MaxExecOutput])
}
