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
// arrives.
//
//	enter ──► queue ──(slot and token)──► inside ──► leave
//	            └──(ctx ends)──► gone
type gate struct {
	now   func() time.Time
	qps   float64 // pulls that may begin per second; 0: any number
	burst float64

	mu     sync.Mutex
	slots  int // free
	tokens float64
	filled time.Time // when tokens was true
	queue  []*ticket // best first
	serial uint64
	timer  *time.Timer // runs while the head of the queue waits for a token
	closed bool        // nobody begins any more
}

// ticket is one place in the queue.
type ticket struct {
	priority int32
	serial   uint64
	begin    chan struct{} // closed when it may begin
	began    time.Time     // zero: still in the queue
}

func newGate(slots int, qps float64, burst int, now func() time.Time) *gate {
	b := float64(max(1, burst))
	return &gate{now: now, qps: qps, burst: b, slots: slots, tokens: b, filled: now()}
}

// join takes a place in the queue; it does not wait.
func (g *gate) join(priority int32) *ticket {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.serial++
	t := &ticket{priority: priority, serial: g.serial, begin: make(chan struct{})}
	g.queue = append(g.queue, t)
	g.dispatch()
	return t
}

// wait waits until the ticket may begin. Who gets an error holds nothing; who
// gets none must leave.
func (g *gate) wait(ctx context.Context, t *ticket) error {
	select {
	case <-t.begin:
		if ctx.Err() == nil {
			return nil
		}
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !t.began.IsZero() {
		g.slots++
		g.dispatch()
		return ctx.Err()
	}
	g.queue = slices.DeleteFunc(g.queue, func(o *ticket) bool { return o == t })
	g.dispatch()
	return ctx.Err()
}

// leave gives the slot back.
func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.slots++
	g.dispatch()
}

// raise moves a waiting ticket forward when somebody more urgent joins it.
func (g *gate) raise(t *ticket, priority int32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if priority > t.priority {
		t.priority = priority
		g.dispatch()
	}
}

// place tells when the ticket began, or how many are before it in the queue.
func (g *gate) place(t *ticket) (began time.Time, before int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return t.began, max(0, slices.Index(g.queue, t))
}

// dispatch lets begin who may. It is called with the lock held whenever
// something changed.
func (g *gate) dispatch() {
	slices.SortFunc(g.queue, func(a, b *ticket) int {
		return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.serial, b.serial))
	})
	for len(g.queue) > 0 && g.slots > 0 && !g.closed {
		if wait := g.token(); wait > 0 {
			g.later(wait)
			return
		}
		t := g.queue[0]
		g.queue = g.queue[1:]
		g.slots--
		t.began = g.now()
		close(t.begin)
	}
	if g.timer != nil {
		g.timer.Stop()
		g.timer = nil
	}
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
