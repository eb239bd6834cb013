package agent

import (
	"context"
	"sync"
	"time"

	"berth/agent/plan"
)

// LeakFinder finds what is left of sandboxes that the runtime has forgotten, because
// a call was cut off or the runtime died at it: no list shows it, and no verb of
// CRI takes it away.
type LeakFinder interface {
	// Find lists what berth made and nobody answers for at this moment; what is
	// being made or taken away just now may be among it. With deep it also looks
	// at what costs more to read. All that it lists may be taken until it is
	// called again.
	Find(ctx context.Context, deep bool) ([]Leak, error)
}

// Leak is one thing that is left.
type Leak struct {
	Kind      string // for users: shim, socket, lease, attachment, address, network, rules, chain, netns
	Name      string // its ID or path
	Ownership Ownership
	Remove    func(context.Context) error
}

// Ownership says how sure it is that berth made a stray.
type Ownership int

const (
	Marked             Ownership = iota + 1 // it bears berth's mark
	Unreferenced                            // it bears no mark, and serves nobody
	UnreferencedShared                      // likewise, in a place where other runtimes put theirs
)

// patience is how long a stray must have been seen before it is removed: what
// another agent is making in the same runtime looks alike for a while.
func (p Ownership) patience() time.Duration {
	switch p {
	case Marked:
		return 5 * time.Second
	case Unreferenced:
		return 20 * time.Second
	default:
		return 5 * time.Minute
	}
}

const (
	sweepSoon  = time.Second      // from a reason to the first look
	sweepAgain = 5 * time.Second  // between looks while there is a reason
	sweepWhile = 15 * time.Second // how long a reason holds: a runtime takes its time to give up
	sweepDeep  = 10 * time.Minute // between deep looks without a reason
	sweepRetry = 30 * time.Second // after a removal that failed
	sweepBound = 2 * time.Minute  // of one look with all removals
)

// sweeps looks for strays, one look at a time: deep ones for a while after a
// reason, a cheap one with every audit. The struct belongs to the agent's
// goroutine, sightings to the look while one is under way.
type sweeps struct {
	calls     *sandboxCalls
	timer     *time.Timer
	due       time.Time // when the timer fires; zero: not set
	busy      bool
	until     time.Time // the last reason holds until then
	deep      time.Time // of the last deep look
	sightings map[string]sighting
}

// sighting is what is remembered of a stray.
type sighting struct {
	first time.Time // seen
	retry time.Time // not before then; zero: not tried yet
}

func newSweeps() sweeps {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return sweeps{calls: newSandboxCalls(), timer: t, sightings: map[string]sighting{}}
}

// suspect has strays looked for soon and for a while: a call was cut off, by this
// agent's start or otherwise, or the runtime was restarted.
func (a *Agent) suspect() {
	a.sweeps.until = time.Now().Add(sweepWhile)
	a.sweeps.schedule(sweepSoon)
}

func (s *sweeps) schedule(in time.Duration) {
	if at := time.Now().Add(in); s.due.IsZero() || at.Before(s.due) {
		s.due = at
		s.timer.Reset(in)
	}
}

// sweep looks for strays once and removes those that have been seen for long
// enough.
func (a *Agent) sweep(ctx context.Context) {
	s := &a.sweeps
	if a.Leaks == nil || s.busy {
		return
	}
	now := time.Now()
	deep := now.Before(s.until) || len(s.sightings) > 0 || now.Sub(s.deep) >= sweepDeep
	if deep {
		s.deep = now
	}
	s.busy = true
	a.wg.Go(func() {
		next := a.sweepOnce(ctx, deep)
		a.call(ctx, func() {
			s.busy = false
			if time.Now().Before(s.until) {
				s.schedule(sweepAgain)
			}
			if next > 0 {
				s.schedule(next)
			}
		})
	})
}

// sweepOnce is one look. It returns after how long another is worth while; zero:
// the next audit will do.
func (a *Agent) sweepOnce(ctx context.Context, deep bool) (next time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, sweepBound)
	defer cancel()
	s := &a.sweeps
	// Before the look: a call that ends during it may have made what it shows.
	began, making := time.Now(), s.calls.oldest()
	found, err := a.Leaks.Find(ctx, deep)
	if err != nil {
		a.Log.Debug("look for what calls that were cut off have left", "err", err)
		return 0
	}
	there := make(map[string]bool, len(found))
	seen := time.Now()
	for _, stray := range found {
		key := stray.Kind + " " + stray.Name
		there[key] = true
		known, old := s.sightings[key]
		if !old {
			known = sighting{first: seen}
		}
		wait := known.wait(stray.Ownership, began, making)
		if wait == 0 && a.removeStray(ctx, stray) {
			delete(s.sightings, key)
			next = sweepSoon // it may have kept others in place
			continue
		}
		if wait == 0 {
			known.retry, wait = seen.Add(sweepRetry), sweepRetry
		}
		s.sightings[key] = known
		if next == 0 || wait < next {
			next = wait
		}
	}
	if deep {
		for key := range s.sightings {
			if !there[key] {
				delete(s.sightings, key)
			}
		}
	}
	return next
}

// wait says how long a stray is still left alone; zero: not any more. Making is
// when the oldest call that makes a sandbox began: what is older than that is not
// of any call that is under way.
func (k sighting) wait(p Ownership, now, making time.Time) time.Duration {
	ripe := k.first.Add(p.patience())
	if k.retry.After(ripe) {
		ripe = k.retry
	}
	switch {
	case now.Before(ripe):
		return max(ripe.Sub(now), sweepSoon)
	case !making.IsZero() && !making.After(k.first):
		return sweepAgain
	}
	return 0
}

func (a *Agent) removeStray(ctx context.Context, stray Leak) bool {
	if err := stray.Remove(ctx); err != nil {
		a.Log.Warn("remove what a call that was cut off has left", "kind", stray.Kind, "what", stray.Name, "err", err)
		return false
	}
	a.Log.Info("removed what a call that was cut off has left", "kind", stray.Kind, "what", stray.Name)
	a.Metrics.swept(stray.Kind)
	return true
}

// sandboxCalls knows the calls under way that make a sandbox: until it is made
// no list shows it. Any goroutine.
type sandboxCalls struct {
	mu    sync.Mutex
	last  int
	began map[int]time.Time
	torn  chan struct{} // readable: a call about a sandbox has failed; capacity 1
}

func newSandboxCalls() *sandboxCalls {
	return &sandboxCalls{began: map[int]time.Time{}, torn: make(chan struct{}, 1)}
}

// begin notes an action; the function that it returns notes its end.
func (c *sandboxCalls) begin(a plan.Action) (end func(error)) {
	switch a.(type) {
	case plan.RunSandbox:
	case plan.StopSandbox, plan.RemoveSandbox:
		return c.ended
	default:
		return func(error) {}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	key := c.last
	c.began[key] = time.Now()
	return func(err error) {
		c.mu.Lock()
		delete(c.began, key)
		c.mu.Unlock()
		c.ended(err)
	}
}

func (c *sandboxCalls) ended(err error) {
	if err == nil {
		return
	}
	select {
	case c.torn <- struct{}{}:
	default:
	}
}

// oldest is when the oldest call that makes a sandbox began; zero: none is under way.
func (c *sandboxCalls) oldest() (at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, began := range c.began {
		if at.IsZero() || began.Before(at) {
			at = began
		}
	}
	return at
}
