package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"berth/nodeapi"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
)

// execOptions are the flags of exec.
type execOptions struct {
	namespace, container string
	stdin, tty           bool
}

func (c *factory) exec() *cobra.Command {
	var o execOptions
	cmd := &cobra.Command{
		Use:   "exec POD [-c CONTAINER] [-it] -- COMMAND [ARG...]",
		Short: "Execute a command in a container",
		Args: func(cmd *cobra.Command, args []string) error {
			dash := cmd.ArgsLenAtDash()
			switch {
			case dash < 0 && len(args) > 1:
				return errors.New("the command must be given after --: exec POD -- COMMAND")
			case dash < 0 || dash >= len(args):
				return errors.New("a command is required: exec POD -- COMMAND")
			}
			return onePod(cmd, args[:dash])
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			client, pod, container, err := c.dialContainer(cmd, o.namespace, args[0], o.container)
			if err != nil {
				return err
			}
			defer client.Close()
			return o.run(cmd, client, nodeapi.ExecRequest{Namespace: pod.Namespace, Pod: pod.Name,
				Container: container, Command: args[1:], Stdin: o.stdin, TTY: o.tty})
		},
	}
	namespaceFlag(cmd, &o.namespace)
	cmd.Flags().StringVarP(&o.container, "container", "c", "", "container name")
	cmd.Flags().BoolVarP(&o.stdin, "stdin", "i", false, "pass stdin to the container")
	cmd.Flags().BoolVarP(&o.tty, "tty", "t", false, "stdin is a TTY")
	c.complete(cmd)
	return cmd
}

// run executes the command of req and returns its exit code as an ExitError.
func (o execOptions) run(cmd *cobra.Command, client *nodeapi.Client, req nodeapi.ExecRequest) error {
	streams := remotecommand.StreamOptions{Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr()}
	if req.Stdin {
		streams.Stdin = cmd.InOrStdin()
	}
	own := terminalOf(cmd.InOrStdin())
	if req.TTY && (own == nil || !req.Stdin) {
		if req.Stdin {
			_, _ = fmt.Fprintln(cmd.ErrOrStderr(), "Unable to use a TTY - input is not a terminal")
		} else {
			_, _ = fmt.Fprintln(cmd.ErrOrStderr(), "Unable to use a TTY without -i")
		}
		req.TTY = false
	}
	streams.Tty = req.TTY
	target, err := client.ExecURL(cmd.Context(), req)
	if err != nil {
		return err
	}
	if !req.TTY {
		return stream(cmd.Context(), target, streams)
	}
	return onTerminal(cmd.Context(), own, target, streams)
}

// onTerminal is stream with the local terminal in raw mode. Size changes are forwarded.
func onTerminal(ctx context.Context, own *terminal, target string, streams remotecommand.StreamOptions) error {
	streams.Stderr = nil // a terminal has one output stream
	return own.raw(ctx, func(ctx context.Context, sizes remotecommand.TerminalSizeQueue) error {
		streams.TerminalSizeQueue = sizes
		return stream(ctx, target, streams)
	})
}

// stream connects the streams to the runtime's streaming server at target.
func stream(ctx context.Context, target string, streams remotecommand.StreamOptions) error {
	runtime, err := nodeapi.NewRuntimeExecutor(target)
	if err != nil {
		return err
	}
	err = runtime.StreamWithContext(ctx, streams)
	if code, ok := errors.AsType[exec.CodeExitError](err); ok {
		return &ExitError{Code: code.Code, Err: fmt.Errorf("command terminated with exit code %d", code.Code)}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("exec: %w", err)
	}
	return nil
}
