package agent

import (
	"context"
	"sync"
	"time"

	"berth/agent/plan"
)

// LeakFinder finds leaked objects: resources of pod sandboxes that the runtime no longer
// knows, because a call was interrupted or the runtime crashed during it. The runtime
// does not list them, and no CRI call removes them.
type LeakFinder interface {
	// Find lists objects that were created for this agent and are unused now. They may
	// include objects that are being created or removed. With deep it also searches
	// where that is more expensive. The listed objects may be removed until the next
	// call.
	Find(ctx context.Context, deep bool) ([]Leak, error)
}

// Leak is one leaked object.
type Leak struct {
	Kind      string // for the log and metrics: shim, socket, lease, attachment, address, network, rules, chain, netns
	Name      string // its ID or path
	Ownership Ownership
	Remove    func(context.Context) error
}

// Ownership is the evidence that a leaked object was created for this agent.
type Ownership int

const (
	Marked             Ownership = iota + 1 // has the agent's label or name
	Unreferenced                            // has no mark and is unused
	UnreferencedShared                      // likewise, in a location shared with other runtimes
)

// minAge is the minimum time between the first observation and the removal of an object:
// an object that another agent is creating in the same runtime looks like a leak at first.
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
	leakScanInterval = 5 * time.Second  // between scans during a suspicion, which grows with its age
	leakSuspicion    = 2 * time.Minute  // duration of a suspicion: a runtime on a busy host may fail a call late
	leakDeepInterval = 10 * time.Minute // between deep scans without a suspicion
	leakRetryDelay   = 30 * time.Second // after a removal that failed
	leakScanTimeout  = 2 * time.Minute  // of one scan with all removals
)

// leaks runs the scans, one at a time: deep ones for a while after a suspicion, and a
// cheap one with every audit. The struct belongs to the agent's goroutine, and
// leakStates to the scan while one runs.
type leaks struct {
	calls        *sandboxCalls
	timer        *time.Timer
	due          time.Time // when the timer fires; zero: not set
	scanning     bool
	suspectSince time.Time
	lastDeep     time.Time
	leakStates   map[string]leakState
}

// leakState is the state of a leaked object between scans.
type leakState struct {
	first time.Time
	retry time.Time // earliest next removal; zero: none was attempted
}

func newLeaks() leaks {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return leaks{calls: newSandboxCalls(), timer: t, leakStates: map[string]leakState{}}
}

// suspectLeaks starts deep scans for a while, because a call was interrupted or the
// runtime was restarted.
func (a *Agent) suspectLeaks() {
	a.leaks.suspectSince = time.Now()
	a.leaks.schedule(leakScanDelay)
}

// suspicion returns the age of the suspicion, and whether there is one.
func (l *leaks) suspicion(now time.Time) (age time.Duration, suspected bool) {
	age = now.Sub(l.suspectSince)
	return age, !l.suspectSince.IsZero() && age < leakSuspicion
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
	_, suspected := l.suspicion(now)
	deep := suspected || len(l.leakStates) > 0 || now.Sub(l.lastDeep) >= leakDeepInterval
	if deep {
		l.lastDeep = now
	}
	l.scanning = true
	a.wg.Go(func() {
		next := a.scanLeaks(ctx, deep)
		a.call(ctx, func() {
			l.scanning = false
			if age, suspected := l.suspicion(time.Now()); suspected {
				l.schedule(max(leakScanInterval, age/2))
			}
			if next > 0 {
				l.schedule(next)
			}
		})
	})
}

// scanLeaks runs one scan. It returns the time of the next one. Zero: with the next audit.
func (a *Agent) scanLeaks(ctx context.Context, deep bool) (next time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, leakScanTimeout)
	defer cancel()
	l := &a.leaks
	// Before the scan, because a call that ends during it may have created a found object.
	started, oldestCall := time.Now(), l.calls.oldest()
	found, err := a.Leaks.Find(ctx, deep)
	if err != nil {
		a.Log.Debug("leak scan failed", "err", err)
		return 0
	}
	present := make(map[string]bool, len(found))
	observedAt := time.Now()
	for _, leak := range found {
		key := leak.Kind + " " + leak.Name
		present[key] = true
		s, known := l.leakStates[key]
		if !known {
			s = leakState{first: observedAt}
		}
		wait := s.wait(leak.Ownership, started, oldestCall)
		if wait == 0 && a.removeLeak(ctx, leak) {
			delete(l.leakStates, key)
			next = leakScanDelay // the removal of others may have depended on it
			continue
		}
		if wait == 0 {
			s.retry, wait = observedAt.Add(leakRetryDelay), leakRetryDelay
		}
		l.leakStates[key] = s
		if next == 0 || wait < next {
			next = wait
		}
	}
	if deep {
		for key := range l.leakStates {
			if !present[key] {
				delete(l.leakStates, key)
			}
		}
	}
	return next
}

// wait returns the time until a leaked object may be removed. Zero: it may be removed
// now. oldestCall is the start of the oldest call in progress that creates a sandbox: an
// object that was observed before belongs to no such call.
func (s leakState) wait(o Ownership, now, oldestCall time.Time) time.Duration {
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
		a.Log.Warn("leaked object not removed", "kind", leak.Kind, "name", leak.Name, "err", err)
		return false
	}
	a.Log.Info("leaked object removed", "kind", leak.Kind, "name", leak.Name)
	if a.Metrics.LeakRemoved != nil {
		a.Metrics.LeakRemoved(leak.Kind)
	}
	return true
}

// sandboxCalls tracks the calls in progress that create a sandbox, because no list
// contains a sandbox until its call ends. It is safe for concurrent use.
type sandboxCalls struct {
	mu      sync.Mutex
	last    int
	started map[int]time.Time
	failed  chan struct{} // readable after a failed call about a sandbox; capacity 1
}

func newSandboxCalls() *sandboxCalls {
	return &sandboxCalls{started: map[int]time.Time{}, failed: make(chan struct{}, 1)}
}

// actionStarted records the start of an action. The returned function records its end.
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

// oldest returns the start of the oldest call in progress that creates a sandbox. Zero:
// there is none.
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
