package exectracker

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"berth/agent/plan"
)

// Runtime runs commands in containers.
type Runtime interface {
	// ExecSync runs a command and waits for it. A command that exceeds the timeout is killed and
	// returns the error plan.Timeout. A nonzero exit code is not an error.
	ExecSync(
		ctx context.Context,
		id string,
		cmd []string,
		timeout time.Duration,
	) (stdout, stderr []byte, exitCode int32, err error)
	// Process returns the host PID of the container's init process.
	ContainerPID(ctx context.Context, id string) (pid int, err error)
	// Version is used to check whether the runtime responds.
	Version(ctx context.Context) (name, version string, err error)
}

// Options configures a Tracker.
type Options struct {
	Runtime Runtime
	Dir     string // directory of the records; created if missing
	Log     *slog.Logger
}

// Tracker runs and tracks commands. It is safe for concurrent use.
type Tracker struct {
	opt     Options
	records recordStore
	wake    chan struct{} // capacity 1: a command was interrupted

	mu          sync.Mutex
	interrupted []*interruptedExec
	running     map[*record]struct{} // commands of this run of the agent
	userExecs   []*record            // including those of earlier runs
}

// New returns a Tracker with the records of an earlier run of the agent. An unusable directory only
// means that commands interrupted by the death of the agent are not cleaned up (M2).
func New(o Options) *Tracker {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	r := &Tracker{opt: o, records: newRecordStore(o.Dir), wake: make(chan struct{}, 1), running: map[*record]struct{}{}}
	now := sinceBoot(time.Now())
	left, err := r.records.read()
	if err != nil {
		o.Log.Warn("exec records unreadable", "err", err)
	}
	for _, n := range left {
		if n.UserExec {
			r.userExecs = append(r.userExecs, &n)
			continue
		}
		r.interrupted = append(
			r.interrupted,
			&interruptedExec{record: n, trackedSince: time.Now(), interruptedAt: now, startedBefore: now},
		)
	}
	return r
}

// ExecSync runs a command in a container and waits for it; see Runtime. A zero timeout means none.
// The error is plan.Unavailable if the runtime failed, and plan.Timeout if the command timed out or
// if the runtime could not kill it, because the command or the container hangs in the kernel.
func (r *Tracker) ExecSync(
	ctx context.Context,
	id string,
	cmd []string,
	timeout time.Duration,
) (stdout, stderr []byte, exitCode int32, err error) {
	began := time.Now()
	n := &record{Container: id, Command: cmd, RequestedAt: sinceBoot(began)}
	r.execStarted(n)
	w := &execWatcher{tracker: r, record: n, began: began, timeout: timeout, done: make(chan struct{})}
	var watching sync.WaitGroup
	watching.Go(func() { w.watch(ctx) })
	stdout, stderr, exitCode, err = r.opt.Runtime.ExecSync(ctx, id, cmd, timeout)
	took := time.Since(began)
	kind := plan.KindOf(err)
	w.timedOut = kind == plan.Timeout && timeout > 0 && took >= timeout
	close(w.done)
	watching.Wait()
	timedOut := w.timedOut && ctx.Err() == nil
	ended := timedOut && took < timeout+runtimeSlack
	interrupted := err != nil && !ended &&
		(ctx.Err() != nil || kind == plan.Timeout || kind == plan.Unavailable || kind == plan.Canceled)
	r.execEnded(n, interrupted)
	if interrupted && kind == plan.Timeout && ctx.Err() == nil && !(timedOut && r.runtimeResponds(ctx)) {
		err = &plan.Error{Kind: plan.Unavailable, Err: fmt.Errorf("runtime interrupted the command: %w", err)}
	}
	return stdout, stderr, exitCode, err
}

// runtimeResponds reports whether the runtime works, so that the command is at fault.
func (r *Tracker) runtimeResponds(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	_, _, err := r.opt.Runtime.Version(ctx)
	return err == nil
}

const (
	// runtimeSlack is how long after the timeout the runtime may return. A longer delay means that
	// it could not kill the command.
	runtimeSlack = 5 * time.Second
	// versionTimeout limits the check of the runtime.
	versionTimeout = 2 * time.Second
)
