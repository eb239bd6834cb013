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
	// ExecSync runs a command and waits for it. One that is not over in time is
	// killed, and the error is plan.Timeout; exit codes are no errors.
	ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) (stdout, stderr []byte, exitCode int32, err error)
	// ContainerPID is the first process of a container, by its number on the host.
	ContainerPID(ctx context.Context, id string) (pid int, err error)
	// Version asks the runtime for what it always knows: whether it answers.
	Version(ctx context.Context) (name, version string, err error)
}

// Options is what New needs.
type Options struct {
	Runtime Runtime
	Dir     string // of the notes; made if it is not there
	Log     *slog.Logger
}

// Tracker runs commands. It is safe for concurrent use.
type Tracker struct {
	opt   Options
	notes notes
	wake  chan struct{} // capacity 1: something was cut off

	mu      sync.Mutex
	cut     []*cutOff
	under   map[*note]struct{} // under way in this life
	granted []*note            // to users, of earlier lives too
}

// New returns a Runner that knows what an earlier life has left under way. A
// directory that cannot be used costs M2 over the agent's death, no more.
func New(o Options) *Tracker {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	r := &Tracker{opt: o, notes: newNotes(o.Dir), wake: make(chan struct{}, 1), under: map[*note]struct{}{}}
	now := sinceBoot(time.Now())
	left, err := r.notes.read()
	if err != nil {
		o.Log.Warn("commands that an earlier life of the agent was running are not known", "err", err)
	}
	for _, n := range left {
		if n.Granted {
			r.granted = append(r.granted, &n)
			continue
		}
		r.cut = append(r.cut, &cutOff{note: n, since: time.Now(), at: now, until: now})
	}
	return r
}

// ExecSync runs a command in a container and waits for it; see Runtime. Zero is
// no timeout. A command that failed with the runtime, not with its time, is
// plan.Unavailable; one that the runtime could not end (it hangs in the kernel, or
// its container does) has had its time.
func (r *Tracker) ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) (stdout, stderr []byte, exitCode int32, err error) {
	began := time.Now()
	n := &note{Container: id, Command: cmd, Began: sinceBoot(began)}
	r.begins(n)
	w := &watcher{runner: r, note: n, began: began, timeout: timeout, over: make(chan struct{})}
	var watching sync.WaitGroup
	watching.Go(func() { w.watch(ctx) })
	stdout, stderr, exitCode, err = r.opt.Runtime.ExecSync(ctx, id, cmd, timeout)
	took := time.Since(began)
	kind := plan.KindOf(err)
	w.late = kind == plan.Timeout && timeout > 0 && took >= timeout
	close(w.over)
	watching.Wait()
	late := w.late && ctx.Err() == nil
	ended := late && took < timeout+runtimeSlack
	cut := err != nil && !ended && (ctx.Err() != nil || kind == plan.Timeout || kind == plan.Unavailable || kind == plan.Canceled)
	r.ends(n, cut)
	if cut && kind == plan.Timeout && ctx.Err() == nil && !(late && r.answers(ctx)) {
		err = &plan.Error{Kind: plan.Unavailable, Err: fmt.Errorf("the runtime broke off: %w", err)}
	}
	return stdout, stderr, exitCode, err
}

// answers reports whether the runtime is well: then it is the command that is not.
func (r *Tracker) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, answerBound)
	defer cancel()
	_, _, err := r.opt.Runtime.Version(ctx)
	return err == nil
}

const (
	// runtimeSlack is how much later than the command's own timeout the runtime
	// may answer. Beyond that it could not end the command.
	runtimeSlack = 5 * time.Second
	// answerBound is how long a runtime that is well takes to say so at most.
	answerBound = 2 * time.Second
)
