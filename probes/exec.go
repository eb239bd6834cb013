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
	// ExecSync runs a command and waits for it. One that is not over in time is
	// killed with all that it has started, and the error is plan.Timeout; exit
	// codes are no errors.
	ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) (stdout, stderr []byte, exitCode int32, err error)
}

// exec is one probe by command.
type exec struct {
	runtime Runtime
	id      string
	command []string
	timeout time.Duration
}

func (e *exec) run(ctx context.Context) answer {
	stdout, stderr, code, err := e.runtime.ExecSync(ctx, e.id, e.command, e.timeout)
	output := string(stdout) + string(stderr)
	output = clip(output, maxBody)
	switch kind := plan.KindOf(err); {
	case err == nil && code == 0:
		return answer{result: Success, output: output}
	case err == nil:
		return answer{result: Failure, output: output}
	case kind == plan.NotFound || ctx.Err() != nil:
		return answer{gone: true}
	case kind == plan.Timeout:
		text := fmt.Sprintf("command timed out: %q timed out after %s", strings.Join(e.command, " "), e.timeout)
		return answer{result: Failure, output: text, late: true}
	default:
		return answer{result: Unknown, output: err.Error()}
	}
}
