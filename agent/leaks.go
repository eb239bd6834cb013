package agent

import (
	"context"
	"sync"
	"time"

	"berth/agent/plan"
)

// LeakFinder finds leaked objects: what is left of pod sandboxes that the runtime no
// longer knows, because a call was interrupted or the runtime died during it. No list
// of the runtime has them, and no CRI call removes them.
type LeakFinder interface {
	// Find lists what was created for this agent and is unused at this moment. What
	// is being created or removed may be among it. With deep it also looks where
	// reading costs more. Everything that it lists may be removed until it is called
	// again.
	Find(ctx context.Context, deep bool) ([]Leak, error)
}

// Leak is one leaked object.
type Leak struct {
	Kind      string // for users: shim, socket, lease, attachment, address, network, rules, chain, netns
	Name      string // its ID or path
	Ownership Ownership
	Remove    func(context.Context) error
}

// Ownership says how certain it is that a leaked object was created for this agent.
type Ownership int

const (
	Marked             Ownership = iota + 1 // it has the agent's label or name
	Unreferenced                            // it has no mark, and nothing uses it
	UnreferencedShared                      // likewise, in a place that other runtimes use as well
)

// minAge is how long an object must have been seen before it is removed: what another
// agent is creating in the same runtime looks the same for a while.
func (o Ownership) minAge() time.Duration {
	switch o {
	case Marked:
		return 5 * time.Second
	case Unreferenced:
		return 20 * time.Second
	default:
		return 5 * time.Minute
	}
}

const (
	leakScanDelay    = time.Second      // from a suspicion to the first scan
	leakScanInterval = 5 * time.Second  // between scans during a suspicion
	leakSuspicion    = 15 * time.Second // how long a suspicion lasts: a runtime may give up late
	leakDeepInterval = 10 * time.Minute // between deep scans without a suspicion
	leakRetryDelay   = 30 * time.Second // after a removal that failed
	leakScanTimeout  = 2 * time.Minute  // of one scan with all removals
)

// leaks runs the scans, one at a time: deep ones for a while after a suspicion, and a
// cheap one with every audit. The struct belongs to the agent's goroutine, and
// sightings to the scan while one runs.
type leaks struct {
	calls        *sandboxCalls
	timer        *time.Timer
	due          time.Time // when the timer fires; zero: not set
	scanning     bool
	suspectUntil time.Time
	lastDeep     time.Time
	sightings    map[string]sighting
}

// sighting is what is remembered of a leaked object.
type sighting struct {
	first time.Time
	retry time.Time // not removed before; zero: no removal was tried
}

func newLeaks() leaks {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return leaks{calls: newSandboxCalls(), timer: t, sightings: map[string]sighting{}}
}

// suspectLeaks has scans run soon and for a while: a call was interrupted, by a restart
// of the agent or otherwise, or the runtime was restarted.
func (a *Agent) suspectLeaks() {
	a.leaks.suspectUntil = time.Now().Add(leakSuspicion)
	a.leaks.schedule(leakScanDelay)
}

func (l *leaks) schedule(in time.Duration) {
	if at := time.Now().Add(in); l.due.IsZero() || at.Before(l.due) {
		l.due = at
		l.timer.Reset(in)
	}
}

// collectLeaks scans once and removes the leaked objects that are old enough.
func (a *Agent) collectLeaks(ctx context.Context) {
	l := &a.leaks
	if a.Leaks == nil || l.scanning {
		return
	}
	now := time.Now()
	deep := now.Before(l.suspectUntil) || len(l.sightings) > 0 || now.Sub(l.lastDeep) >= leakDeepInterval
	if deep {
		l.lastDeep = now
	}
	l.scanning = true
	a.wg.Go(func() {
		next := a.scanLeaks(ctx, deep)
		a.call(ctx, func() {
			l.scanning = false
			if time.Now().Before(l.suspectUntil) {
				l.schedule(leakScanInterval)
			}
			if next > 0 {
				l.schedule(next)
			}
		})
	})
}

// scanLeaks is one scan. It returns when the next one is useful; zero: the next audit is
// soon enough.
func (a *Agent) scanLeaks(ctx context.Context, deep bool) (next time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, leakScanTimeout)
	defer cancel()
	l := &a.leaks
	// Before the scan: a call that ends during it may have created what it finds.
	started, oldestCall := time.Now(), l.calls.oldest()
	found, err := a.Leaks.Find(ctx, deep)
	if err != nil {
		a.Log.Debug("leak scan failed", "err", err)
		return 0
	}
	present := make(map[string]bool, len(found))
	seenAt := time.Now()
	for _, leak := range found {
		key := leak.Kind + " " + leak.Name
		present[key] = true
		s, seen := l.sightings[key]
		if !seen {
			s = sighting{first: seenAt}
		}
		wait := s.wait(leak.Ownership, started, oldestCall)
		if wait == 0 && a.removeLeak(ctx, leak) {
			delete(l.sightings, key)
			next = leakScanDelay // others may have depended on it
			continue
		}
		if wait == 0 {
			s.retry, wait = seenAt.Add(leakRetryDelay), leakRetryDelay
		}
		l.sightings[key] = s
		if next == 0 || wait < next {
			next = wait
		}
	}
	if deep {
		for key := range l.sightings {
			if !present[key] {
				delete(l.sightings, key)
			}
		}
	}
	return next
}

// wait returns how long a leaked object must not be removed yet; zero: it may be.
// oldestCall is when the oldest call in progress that creates a sandbox started: an
// object that was seen before belongs to none of them.
func (s sighting) wait(o Ownership, now, oldestCall time.Time) time.Duration {
	removable := s.first.Add(o.minAge())
	if s.retry.After(removable) {
		removable = s.retry
	}
	switch {
	case now.Before(removable):
		return max(removable.Sub(now), leakScanDelay)
	case !oldestCall.IsZero() && !oldestCall.After(s.first):
		return leakScanInterval
	}
	return 0
}

func (a *Agent) removeLeak(ctx context.Context, leak Leak) bool {
	if err := leak.Remove(ctx); err != nil {
		a.Log.Warn("leftover of an interrupted CRI call not removed", "kind", leak.Kind, "name", leak.Name, "err", err)
		return false
	}
	a.Log.Info("removed leftover of an interrupted CRI call", "kind", leak.Kind, "name", leak.Name)
	if a.Metrics.LeakRemoved != nil {
		a.Metrics.LeakRemoved(leak.Kind)
	}
	return true
}

// sandboxCalls tracks the calls in progress that create a sandbox: until such a call
// ends no list has its sandbox. Any goroutine.
type sandboxCalls struct {
	mu      sync.Mutex
	last    int
	started map[int]time.Time
	failed  chan struct{} // readable: a call about a sandbox has failed; capacity 1
}

func newSandboxCalls() *sandboxCalls {
	return &sandboxCalls{started: map[int]time.Time{}, failed: make(chan struct{}, 1)}
}

// actionStarted notes an action. The returned function notes its end.
func (c *sandboxCalls) actionStarted(a plan.Action) (done func(error)) {
	switch a.(type) {
	case plan.RunSandbox:
	case plan.StopSandbox, plan.RemoveSandbox:
		return c.done
	default:
		return func(error) {}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	key := c.last
	c.started[key] = time.Now()
	return func(err error) {
		c.mu.Lock()
		delete(c.started, key)
		c.mu.Unlock()
		c.done(err)
	}
}

func (c *sandboxCalls) done(err error) {
	if err == nil {
		return
	}
	select {
	case c.failed <- struct{}{}:
	default:
	}
}

// oldest returns when the oldest call that creates a sandbox started; zero: none is in
// progress.
func (c *sandboxCalls) oldest() (at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, started := range c.started {
		if at.IsZero() || started.Before(at) {
			at = started
		}
	}
	return at
}
