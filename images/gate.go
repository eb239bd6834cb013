package images

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

// gate lets pulls begin: at most so many at once, at most at a rate, and in the
// order of their priority. Slots and rate are one thing, so that a token is
// never spent on somebody who then waits for a slot while a more urgent pull
// arrives. Who does not fit on the disk stays in the queue, and holds up nobody
// behind: see space.go.
//
//	enter ──► queue ──(room, slot and token)──► inside ──► leave
//	            └──(ctx ends)──► gone
type gate struct {
	now   func() time.Time
	qps   float64 // pulls that may begin per second; 0: any number
	burst float64
	space func() (s DiskSpace, known bool) // asked with the lock held; nil: never known

	mu     sync.Mutex
	slots  int // free
	tokens float64
	filled time.Time // when tokens was true
	queue  []*ticket // best first
	serial uint64
	inside map[*ticket]bool
	needs  map[string]need // by ticket.ref
	timer  *time.Timer     // runs while the head of the queue waits for a token, or somebody for room
	closed bool            // nobody begins any more
}

// ticket is one place in the queue.
type ticket struct {
	wants
	serial uint64
	begin  chan struct{} // closed when it may begin
	began  time.Time     // zero: still in the queue

	here  bool          // what is pulled is on the node already: it needs no room
	held  string        // why it waits for room; empty: it does not
	since time.Time     // since when it is held for its size alone; zero: it is not
	told  time.Time     // when held was told last
	news  chan struct{} // held has changed; capacity 1
	free  uint64        // bytes that were free when it began
	alone bool          // no other was inside with it, and free is known
}

// wants is what is asked for by a ticket.
type wants struct {
	ref      string // what is pulled
	priority int32
	critical bool // for a pod that waits for no room
}

func newGate(slots int, qps float64, burst int, now func() time.Time) *gate {
	b := float64(max(1, burst))
	return &gate{
		now: now, qps: qps, burst: b, slots: slots, tokens: b, filled: now(),
		inside: map[*ticket]bool{}, needs: map[string]need{},
	}
}

// join takes a place in the queue; it does not wait.
func (g *gate) join(w wants) *ticket {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.serial++
	t := &ticket{wants: w, serial: g.serial, begin: make(chan struct{}), news: make(chan struct{}, 1)}
	g.queue = append(g.queue, t)
	g.dispatch()
	return t
}

// wait waits until the ticket may begin, and calls news whenever why it waits for
// room has changed. Who gets an error holds nothing; who gets none must leave.
func (g *gate) wait(ctx context.Context, t *ticket, news func()) error {
	for waiting := true; waiting; {
		select {
		case <-t.begin:
			if ctx.Err() == nil {
				return nil
			}
			waiting = false
		case <-t.news:
			news()
		case <-ctx.Done():
			waiting = false
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !t.began.IsZero() {
		g.out(t)
		return ctx.Err()
	}
	g.queue = slices.DeleteFunc(g.queue, func(o *ticket) bool { return o == t })
	g.dispatch()
	return ctx.Err()
}

// leave gives the slot back.
func (g *gate) leave(t *ticket) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.out(t)
}

func (g *gate) out(t *ticket) {
	delete(g.inside, t)
	g.slots++
	g.dispatch()
}

// raise moves a waiting ticket forward when somebody more urgent joins it.
func (g *gate) raise(t *ticket, w wants) {
	g.mu.Lock()
	defer g.mu.Unlock()
	t.priority, t.critical = max(t.priority, w.priority), t.critical || w.critical
	g.dispatch()
}

// letIn has a ticket wait for no room any more.
func (g *gate) letIn(t *ticket) {
	g.mu.Lock()
	defer g.mu.Unlock()
	t.here = true
	g.dispatch()
}

// look looks whether there is room now.
func (g *gate) look() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dispatch()
}

// place tells when the ticket began, or how many are before it in the queue and
// why it waits for room.
func (g *gate) place(t *ticket) (began time.Time, before int, held string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return t.began, max(0, slices.Index(g.queue, t)), t.held
}

// dispatch lets begin who may. It is called with the lock held whenever
// something changed.
func (g *gate) dispatch() {
	slices.SortFunc(g.queue, func(a, b *ticket) int {
		return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.serial, b.serial))
	})
	for g.slots > 0 && !g.closed {
		t := g.next()
		if t == nil {
			break
		}
		if wait := g.token(); wait > 0 {
			g.later(wait)
			return
		}
		g.admit(t)
	}
	if slices.ContainsFunc(g.queue, func(t *ticket) bool { return t.held != "" }) && !g.closed {
		g.later(lookAgain)
		return
	}
	if g.timer != nil {
		g.timer.Stop()
		g.timer = nil
	}
}

// admit lets a ticket begin.
func (g *gate) admit(t *ticket) {
	g.queue = slices.DeleteFunc(g.queue, func(o *ticket) bool { return o == t })
	g.slots--
	s, known := g.room()
	t.alone, t.free, t.held = known && len(g.inside) == 0, s.Free, ""
	for o := range g.inside {
		o.alone = false
	}
	g.inside[t] = true
	t.began = g.now()
	close(t.begin)
}

// token takes a token, or says how long it is until there is one.
func (g *gate) token() time.Duration {
	if g.qps <= 0 {
		return 0
	}
	now := g.now()
	if d := now.Sub(g.filled); d > 0 {
		g.tokens = min(g.burst, g.tokens+d.Seconds()*g.qps)
	}
	g.filled = now
	if g.tokens >= 1 {
		g.tokens--
		return 0
	}
	// A nanosecond more: rounding must not wake us just before the token is there.
	return time.Duration((1-g.tokens)/g.qps*float64(time.Second)) + time.Nanosecond
}

func (g *gate) later(d time.Duration) {
	if g.timer != nil {
		g.timer.Stop()
	}
	g.timer = time.AfterFunc(d, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.dispatch()
	})
}

// close lets nobody begin any more; those in the queue wait for their contexts.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	g.dispatch()
}
