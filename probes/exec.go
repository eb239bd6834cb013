package probes

import (
	"context"
	"fmt"
	"strings"
	"time"

	"berth/agent/plan"
)

// Runtime runs commands in containers.
type Runtime interface {
	// ExecSync runs a command and waits for it. A command that exceeds the timeout is killed with
	// all its child processes and returns the error plan.Timeout. A nonzero exit code is not an
	// error.
	ExecSync(
		ctx context.Context,
		id string,
		cmd []string,
		timeout time.Duration,
	) (stdout, stderr []byte, exitCode int32, err error)
}

// exec is an exec probe.
type exec struct {
	runtime Runtime
	id      string
	command []string
	timeout time.Duration
}

func (e *exec) run(ctx context.Context) outcome {
	stdout, stderr, code, err := e.runtime.ExecSync(ctx, e.id, e.command, e.timeout)
	output := string(stdout) + string(stderr)
	output = truncate(output, maxBody)
	switch kind := plan.KindOf(err); {
	case err == nil && code == 0:
		return outcome{result: Success, output: output}
	case err == nil:
		return outcome{result: Failure, output: output}
	case kind == plan.NotFound || ctx.Err() != nil:
		return outcome{containerGone: true}
	case kind == plan.Timeout:
		text := fmt.Sprintf("command timed out: %q timed out after %s", strings.Join(e.command, " "), e.timeout)
		return outcome{result: Failure, output: text, timedOut: true}
	default:
		return outcome{result: Unknown, output: err.Error()}
	}
}
