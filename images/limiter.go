package images

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// pullLimiter limits the number of concurrent pulls and the rate at which they start, and starts
// them in the order of their priority. A token of the rate limiter is taken only together with a
// free slot, so a token is never spent on a pull that then waits for a slot while a more urgent
// one arrives. A pull that does not fit on the disk stays in the queue without blocking the pulls
// behind it: see space.go.
//
//	enqueue ──► queue ──(disk space, slot and token)──► running ──► release
//	              └──(ctx ends)──► removed
type pullLimiter struct {
	now   func() time.Time
	rate  *rate.Limiter
	space func() (s DiskSpace, known bool) // called with the lock held; nil: never known

	mu      sync.Mutex
	slots   int            // free
	queue   []*pullRequest // next one first
	seq     uint64
	running map[*pullRequest]bool
	sizes   map[string]pullSize // by pullRequest.ref
	timer   *time.Timer         // set while the queue waits for a token or for disk space
	closed  bool                // no pull starts any more
}

// pullRequest is a queued or running pull.
type pullRequest struct {
	pullSpec
	seq       uint64
	started   chan struct{} // closed when it may start
	startedAt time.Time     // zero: queued

	present      bool          // the image is on the node: the pull needs no disk space
	waitReason   string        // why it waits for disk space; empty: it does not
	waitingSince time.Time     // since when it waits only because of its size; zero: it does not
	reportedAt   time.Time     // last update of waitReason
	changed      chan struct{} // waitReason was updated; capacity 1
	freeAtStart  uint64        // free bytes when it started
	exclusive    bool          // no other pull ran concurrently, and freeAtStart is known
}

// pullSpec describes the pull of a request.
type pullSpec struct {
	ref      string // of the image
	priority int32
	critical bool // for a pod that does not wait for disk space
}

func newPullLimiter(slots int, qps float64, burst int, now func() time.Time) *pullLimiter {
	limit := rate.Inf
	if qps > 0 {
		limit = rate.Limit(qps)
	}
	return &pullLimiter{
		now: now, rate: rate.NewLimiter(limit, max(1, burst)), slots: slots,
		running: map[*pullRequest]bool{}, sizes: map[string]pullSize{},
	}
}

// enqueue adds a request to the queue without waiting.
func (l *pullLimiter) enqueue(spec pullSpec) *pullRequest {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq++
	r := &pullRequest{pullSpec: spec, seq: l.seq, started: make(chan struct{}), changed: make(chan struct{}, 1)}
	l.queue = append(l.queue, r)
	l.dispatch()
	return r
}

// wait waits until the request may start, and calls onChange whenever the reason why it waits for
// disk space has changed. After an error, the request holds nothing. Otherwise the caller must
// release it.
func (l *pullLimiter) wait(ctx context.Context, r *pullRequest, onChange func()) error {
	for waiting := true; waiting; {
		select {
		case <-r.started:
			if ctx.Err() == nil {
				return nil
			}
			waiting = false
		case <-r.changed:
			onChange()
		case <-ctx.Done():
			waiting = false
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !r.startedAt.IsZero() {
		l.releaseLocked(r)
		return ctx.Err()
	}
	l.queue = slices.DeleteFunc(l.queue, func(o *pullRequest) bool { return o == r })
	l.dispatch()
	return ctx.Err()
}

// release frees the slot of a request.
func (l *pullLimiter) release(r *pullRequest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.releaseLocked(r)
}

func (l *pullLimiter) releaseLocked(r *pullRequest) {
	delete(l.running, r)
	l.slots++
	l.dispatch()
}

// raisePriority moves a queued request forward when a more urgent waiter joins it.
func (l *pullLimiter) raisePriority(r *pullRequest, spec pullSpec) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.priority, r.critical = max(r.priority, spec.priority), r.critical || spec.critical
	l.dispatch()
}

// markPresent lets a request start without disk space.
func (l *pullLimiter) markPresent(r *pullRequest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.present = true
	l.dispatch()
}

// recheck starts the requests for which there is enough disk space now.
func (l *pullLimiter) recheck() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dispatch()
}

// position returns when the request started, or the number of requests ahead of it in the queue
// and why it waits for disk space.
func (l *pullLimiter) position(r *pullRequest) (startedAt time.Time, ahead int, waitReason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return r.startedAt, max(0, slices.Index(l.queue, r)), r.waitReason
}

// dispatch starts the requests that may start. It is called with the lock held after every change.
func (l *pullLimiter) dispatch() {
	slices.SortFunc(l.queue, func(a, b *pullRequest) int {
		return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.seq, b.seq))
	})
	for l.slots > 0 && !l.closed {
		r := l.nextRunnable()
		if r == nil {
			break
		}
		if delay := l.takeToken(); delay > 0 {
			l.scheduleDispatch(delay)
			return
		}
		l.start(r)
	}
	waiting := slices.ContainsFunc(l.queue, func(r *pullRequest) bool { return r.waitReason != "" })
	if waiting && !l.closed {
		l.scheduleDispatch(spaceRecheckInterval)
		return
	}
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
}

// start lets a request start.
func (l *pullLimiter) start(r *pullRequest) {
	l.queue = slices.DeleteFunc(l.queue, func(o *pullRequest) bool { return o == r })
	l.slots--
	s, known := l.diskSpace()
	r.exclusive, r.freeAtStart, r.waitReason = known && len(l.running) == 0, s.Free, ""
	for o := range l.running {
		o.exclusive = false
	}
	l.running[r] = true
	r.startedAt = l.now()
	close(r.started)
}

// takeToken takes a token, or returns the delay until one is available.
func (l *pullLimiter) takeToken() time.Duration {
	now := l.now()
	reservation := l.rate.ReserveN(now, 1)
	delay := reservation.DelayFrom(now)
	if delay > 0 {
		reservation.CancelAt(now)
	}
	return delay
}

func (l *pullLimiter) scheduleDispatch(delay time.Duration) {
	if l.timer != nil {
		l.timer.Stop()
	}
	l.timer = time.AfterFunc(delay, l.recheck)
}

// close starts no more requests. Those in the queue wait until their contexts end.
func (l *pullLimiter) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.dispatch()
}
