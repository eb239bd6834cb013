package exectracker

import (
	"context"
	"slices"
	"time"

	"berth/agent/plan"
)

// interruptedExec is a command that has no caller any more.
type interruptedExec struct {
	record
	trackedSince  time.Time     // start of the cleanup
	interruptedAt time.Duration // since boot: the latest time of the interruption
	startedBefore time.Duration // since boot: start of the next command; noLimit: none
	pid           int           // the container's init process; 0: unknown
}

const (
	noLimit = time.Duration(1<<63 - 1)
	// cleanupWindow is how long an interrupted command is tracked: the runtime may be about to
	// start or to kill it.
	cleanupWindow = 2 * time.Second
	// cleanupTimeout ends the cleanup of a command whose processes do not die.
	cleanupTimeout  = time.Minute
	cleanupInterval = 100 * time.Millisecond
	// runtimeRetryInterval is the interval of retries if the runtime does not respond.
	runtimeRetryInterval = time.Second
)

// execStarted records a new command. Processes that start in its container from now on do not
// belong to earlier interrupted commands.
func (r *Tracker) execStarted(n *record) {
	r.mu.Lock()
	for _, c := range r.interrupted {
		if c.Container == n.Container {
			c.startedBefore = min(c.startedBefore, n.RequestedAt)
		}
	}
	r.running[n] = struct{}{}
	r.mu.Unlock()
	if err := r.records.write(n); err != nil {
		r.opt.Log.Debug("exec record write failed", "err", err)
	}
}

// execEnded records the end of a command. The record of an interrupted command is kept until it is
// cleaned up.
func (r *Tracker) execEnded(n *record, interrupted bool) {
	r.mu.Lock()
	delete(r.running, n)
	if interrupted {
		r.interrupted = append(
			r.interrupted,
			&interruptedExec{record: *n, trackedSince: time.Now(), interruptedAt: sinceBoot(time.Now()),
				startedBefore: noLimit},
		)
	}
	old := r.expireUserExecs(sinceBoot(time.Now()))
	r.mu.Unlock()
	r.removeRecords(old)
	if !interrupted {
		r.records.remove(*n)
		return
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// startBounds returns until when a process of the command may have started. crowded reports that
// another command ran in the same container, so that the two cannot be distinguished while their first
// processes are alive.
func (r *Tracker) startBounds(c *interruptedExec) (until time.Duration, crowded bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n := range r.running {
		crowded = crowded || n.Container == c.Container && n.RequestedAt <= c.interruptedAt
	}
	return c.startedBefore, crowded
}

// runsBeside reports whether another command runs in the container of n.
func (r *Tracker) runsBeside(n *record) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for other := range r.running {
		if other != n && other.Container == n.Container {
			return true
		}
	}
	return false
}

// Run cleans up after interrupted commands until ctx ends, and returns nil.
func (r *Tracker) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-timer.C:
		}
		if next := r.cleanUp(ctx); next > 0 {
			timer.Reset(next)
		}
	}
}

// cleanUp handles all interrupted commands and returns the delay until the next call. Zero: nothing
// is left.
func (r *Tracker) cleanUp(ctx context.Context) (next time.Duration) {
	r.mu.Lock()
	all := slices.Clone(r.interrupted)
	r.mu.Unlock()
	for _, c := range all {
		done, again := r.cleanUpOne(ctx, c)
		if !done {
			if next == 0 || again < next {
				next = again
			}
			continue
		}
		r.mu.Lock()
		r.interrupted = slices.DeleteFunc(r.interrupted, func(x *interruptedExec) bool { return x == c })
		r.mu.Unlock()
		r.records.remove(c.record)
	}
	return next
}

func (r *Tracker) cleanUpOne(ctx context.Context, c *interruptedExec) (done bool, again time.Duration) {
	if c.pid == 0 {
		pid, err := r.opt.Runtime.ContainerPID(ctx, c.Container)
		switch kind := plan.KindOf(err); {
		case err == nil:
		case kind == plan.NotFound || kind == plan.Unsupported: // the container is gone or has no process
			return true, 0
		default: // the runtime does not respond or is not ready
			return false, runtimeRetryInterval
		}
		c.pid, c.trackedSince = pid, time.Now()
	}
	found := interruptedSessions(c.pid, c.record, r.userExecsIn(c.Container))
	until, crowded := r.startBounds(c) // after the observation, which cannot have seen later processes
	sessions := c.Sessions
	for _, f := range found {
		if !crowded && f.started <= until && !slices.Contains(sessions, f.session) {
			sessions = append(sessions, f.session)
		}
	}
	c.observeTrees(c.pid, sessions) // while the processes are alive
	leaders := until
	if crowded {
		leaders = 0
	}
	killed := killSessions(c.pid, sessions, c.RequestedAt, leaders) + c.killTrees(c.pid)
	if killed > 0 {
		r.opt.Log.Info("processes of interrupted command killed", "containerID", c.Container, "processes", killed)
	}
	return isCleanedUp(time.Since(c.trackedSince), killed), cleanupInterval
}

// isCleanedUp reports whether the cleanup of a command ends after the given time. The children of a process that
// was killed just now are killed in the next round, when it is dead: a round can take longer than the window.
func isCleanedUp(after time.Duration, killed int) bool {
	return after > cleanupTimeout || after > cleanupWindow && killed == 0
}
