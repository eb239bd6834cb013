package probes

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"berth/agent/plan"
)

// Runtime runs commands in containers.
type Runtime interface {
	// ExecSync runs a command and waits for it. One that is not over in time is
	// killed, and the error is plan.Timeout; exit codes are no errors.
	ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) (stdout, stderr []byte, exitCode int32, err error)
	// Process is the first process of a container, by its number on the host.
	Process(ctx context.Context, id string) (pid int, err error)
}

// exec is one probe by command.
type exec struct {
	runtime Runtime
	id      string
	command []string
	timeout time.Duration
	log     *slog.Logger
}

const (
	// runtimeSlack is how much later than the command's own timeout the runtime
	// may answer. Beyond that it is the runtime that is not well.
	runtimeSlack = 5 * time.Second
	// execMargin is how long before the timeout a command is looked up on the
	// host: when it has been killed nobody can tell any more what was its.
	execMargin = 200 * time.Millisecond
)

func (e *exec) run(ctx context.Context) answer {
	began := time.Now()
	over := make(chan struct{})
	swept := make(chan struct{})
	go func() { // waited for below
		defer close(swept)
		e.sweep(ctx, began, over)
	}()
	stdout, stderr, code, err := e.runtime.ExecSync(ctx, e.id, e.command, e.timeout)
	took := time.Since(began)
	close(over)
	<-swept
	output := string(stdout) + string(stderr)
	output = clip(output, maxBody)
	switch kind := plan.KindOf(err); {
	case err == nil && code == 0:
		return answer{result: Success, output: output}
	case err == nil:
		return answer{result: Failure, output: output}
	case kind == plan.NotFound || ctx.Err() != nil:
		return answer{gone: true}
	case kind == plan.Timeout && took < e.timeout+runtimeSlack:
		text := fmt.Sprintf("command timed out: %q timed out after %s", strings.Join(e.command, " "), e.timeout)
		return answer{result: Failure, output: text, late: true}
	default:
		return answer{result: Unknown, output: err.Error()}
	}
}

// sweep ends what a command that is not over in time has left behind: the
// runtime kills the command, not what it has started.
func (e *exec) sweep(ctx context.Context, began time.Time, over <-chan struct{}) {
	if !wait(over, e.timeout-min(execMargin, e.timeout/4)) {
		return
	}
	pid, err := e.runtime.Process(context.WithoutCancel(ctx), e.id)
	if err != nil {
		return // it has just gone
	}
	sessions := commandsOf(pid, e.command, began)
	if len(sessions) == 0 {
		return
	}
	if !wait(over, time.Until(began.Add(e.timeout))) {
		return // just in time
	}
	// The runtime answers when the outputs are closed, which may wait for what
	// is to be ended here.
	for range sweeps {
		if n := killSessions(pid, sessions); n > 0 {
			e.log.Info("a probe's command was not over in time; what it had started was ended", "container", e.id, "processes", n)
		}
		if !wait(over, execMargin) {
			killSessions(pid, sessions)
			return
		}
	}
}

// sweeps bounds how often what is left is looked for.
const sweeps = 10

// wait waits for that long; false: it was over before.
func wait(over <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-over:
		return false
	case <-t.C:
		return true
	}
}
