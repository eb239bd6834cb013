package exectracker

import (
	"context"
	"slices"
	"time"

	"berth/agent/plan"
)

// cutOff is a command that nobody waits for any more.
type cutOff struct {
	note
	since time.Time     // it is looked after
	at    time.Duration // since boot: when it was cut off, at the latest
	until time.Duration // since boot: what began later is not its own; forEver: nothing else has begun
	pid   int           // the container's first process; 0: not asked yet
}

const (
	forEver = time.Duration(1<<63 - 1)
	// clearFor is how long what was cut off is looked after: the runtime may be
	// about to begin it, or to kill it.
	clearFor   = 2 * time.Second
	clearPause = 100 * time.Millisecond
	// askPause is how soon a runtime that is away is asked again.
	askPause = time.Second
)

// begins notes a command of this life. What begins in its container from now on
// is not what was cut off before.
func (r *Tracker) begins(n *note) {
	r.mu.Lock()
	for _, c := range r.cut {
		if c.Container == n.Container {
			c.until = min(c.until, n.Began)
		}
	}
	r.under[n] = struct{}{}
	r.mu.Unlock()
	if err := r.notes.write(n); err != nil {
		r.opt.Log.Debug("note a command", "err", err)
	}
}

// ends notes that nobody waits for a command any more. One that was cut off is
// cleared up after; its note stays until that is done.
func (r *Tracker) ends(n *note, cut bool) {
	r.mu.Lock()
	delete(r.under, n)
	if cut {
		r.cut = append(r.cut, &cutOff{note: *n, since: time.Now(), at: sinceBoot(time.Now()), until: forEver})
	}
	old := r.outdated(sinceBoot(time.Now()))
	r.mu.Unlock()
	r.forget(old)
	if !cut {
		r.notes.remove(*n)
		return
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// bounds is up to when what has begun may be the command's own; crowded: another
// one of the same container was under way beside it, so that they cannot be told
// apart while their first processes live.
func (r *Tracker) bounds(c *cutOff) (until time.Duration, crowded bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n := range r.under {
		crowded = crowded || n.Container == c.Container && n.Began <= c.at
	}
	return c.until, crowded
}

// Run clears up after commands that were cut off until ctx ends, which is no
// error.
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
		if next := r.clear(ctx); next > 0 {
			timer.Reset(next)
		}
	}
}

// clear looks after all that was cut off, and returns when to do so again; zero:
// nothing is left.
func (r *Tracker) clear(ctx context.Context) (next time.Duration) {
	r.mu.Lock()
	all := slices.Clone(r.cut)
	r.mu.Unlock()
	for _, c := range all {
		done, again := r.clearOne(ctx, c)
		if !done {
			if next == 0 || again < next {
				next = again
			}
			continue
		}
		r.mu.Lock()
		r.cut = slices.DeleteFunc(r.cut, func(x *cutOff) bool { return x == c })
		r.mu.Unlock()
		r.notes.remove(c.note)
	}
	return next
}

func (r *Tracker) clearOne(ctx context.Context, c *cutOff) (done bool, again time.Duration) {
	if c.pid == 0 {
		pid, err := r.opt.Runtime.ContainerPID(ctx, c.Container)
		switch kind := plan.KindOf(err); {
		case err == nil:
		case kind == plan.NotFound || kind == plan.Unsupported: // it is gone, with all that ran in it, or has no process
			return true, 0
		default: // the runtime is away, or not itself yet
			return false, askPause
		}
		c.pid, c.since = pid, time.Now()
	}
	found := cutOffIn(c.pid, c.note, r.grantsIn(c.Container))
	until, crowded := r.bounds(c) // after the look: what begins now was not seen
	sessions := c.Sessions
	for _, f := range found {
		if !crowded && f.began <= until && !slices.Contains(sessions, f.session) {
			sessions = append(sessions, f.session)
		}
	}
	c.learn(c.pid, sessions) // while they can be asked
	leaders := until
	if crowded {
		leaders = 0
	}
	if n := killSessions(c.pid, sessions, c.Began, leaders) + c.endFamilies(c.pid); n > 0 {
		r.opt.Log.Info("a command was cut off; what was left of it was ended", "container", c.Container, "processes", n)
	}
	return time.Since(c.since) > clearFor, clearPause
}
