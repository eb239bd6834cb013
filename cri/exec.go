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

// Streams selects the streams of an exec or attach. With TTY, the outputs are combined, so Stderr
// must be false.
type Streams struct{ Stdin, Stdout, Stderr, TTY bool }

// ExecURL prepares a command in the container and returns the URL of its streams, which is valid
// for one connection within the runtime's time limit.
func (c *Client) ExecURL(ctx context.Context, id string, cmd []string, s Streams) (string, error) {
	var resp *runtimeapi.ExecResponse
	err := c.call(ctx, verbExec, id, c.deadlines.Stream, func(ctx context.Context) (err error) {
		resp, err = c.runtime.Exec(ctx, &runtimeapi.ExecRequest{
			ContainerId: id, Cmd: cmd, Tty: s.TTY, Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr,
		})
		return err
	})
	return resp.GetUrl(), err
}

// AttachURL returns the URL of the streams of the container's main process.
func (c *Client) AttachURL(ctx context.Context, id string, s Streams) (string, error) {
	var resp *runtimeapi.AttachResponse
	err := c.call(ctx, verbAttach, id, c.deadlines.Stream, func(ctx context.Context) (err error) {
		resp, err = c.runtime.Attach(ctx, &runtimeapi.AttachRequest{
			ContainerId: id, Tty: s.TTY, Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr,
		})
		return err
	})
	return resp.GetUrl(), err
}
