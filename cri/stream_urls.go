package cri

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

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
