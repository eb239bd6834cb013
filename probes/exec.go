package probes

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
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

	pid int // the container's first process; 0: not asked yet. One run at a time
}

const (
	// runtimeSlack is how much later than the command's own timeout the runtime
	// may answer. Beyond that it is the runtime that is not well.
	runtimeSlack = 5 * time.Second
	// execMargin is how long before the timeout a command is looked up on the
	// host: when it has been killed nobody can tell any more what was its.
	execMargin = 200 * time.Millisecond
	// sweepPause is how often what is left is looked for then, and sweepBound for
	// how long.
	sweepPause = 50 * time.Millisecond
	sweepBound = 10 * time.Second
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
// runtime kills the command, not what it has started, and says so only when all
// that holds the command's outputs has ended.
func (e *exec) sweep(ctx context.Context, began time.Time, over <-chan struct{}) {
	var seen []int // sessions of such commands
	next := e.timeout / 2
	for wait(over, time.Until(began.Add(next))) {
		if e.pid == 0 {
			pid, err := e.runtime.Process(context.WithoutCancel(ctx), e.id)
			if err != nil {
				return // it has just gone
			}
			e.pid = pid
		}
		for _, s := range commandsOf(e.pid, e.command, began) {
			if !slices.Contains(seen, s) {
				seen = append(seen, s)
			}
		}
		switch now := time.Since(began); {
		case now > e.timeout+sweepBound:
			return
		case now >= e.timeout:
			if len(seen) == 0 && now > e.timeout+execMargin { // it was killed as soon as it ran
				seen = straysOf(e.pid, began)
			}
			e.end(seen)
			next = now + sweepPause
		case now >= e.timeout-execMargin:
			next = now + sweepPause
		default:
			next = e.timeout - execMargin
		}
	}
	if time.Since(began) >= e.timeout {
		e.end(seen)
	}
}

// end kills what is left of commands that have been killed.
func (e *exec) end(sessions []int) {
	if n := killSessions(e.pid, sessions); n > 0 {
		e.log.Info("a probe's command was not over in time; what it had started was ended", "container", e.id, "processes", n)
	}
}

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
