package images

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"berth/agent/plan"
)

// inflightPulls runs at most one pull per key and shares its result among all waiters.
//
//	       first waiter              last waiter leaves
//	(none) ───────────► in progress ───────────────────► canceled
//	                       │ ends                           │ ends
//	                       ▼                                ▼
//	                     (none)                           (none)
//
// A caller that arrives while a pull is being canceled waits for its end and then starts a new
// one, so two pulls with the same key never overlap.
type inflightPulls struct {
	mu     sync.Mutex
	pulls  map[string]*inflightPull
	closed bool
	wg     sync.WaitGroup
}

// inflightPull is a pull in progress.
type inflightPull struct {
	done   chan struct{}
	cancel context.CancelFunc
	image  plan.Image // with err, valid after done is closed
	err    error

	// The fields below are guarded by inflightPulls.mu.

	waiters     int    // 0: canceled
	name        string // full name of the image
	requestedAt time.Time
	request     *pullRequest
	pods        []string // namespace/name of the waiting pods, one entry per waiter
}

// waiter is a caller that shares a pull. Both functions may be nil and are called with the lock
// held.
type waiter struct {
	onJoin  func(*inflightPull)
	onLeave func(*inflightPull)
}

// pullFunc is the pull that the waiters share.
type pullFunc func(context.Context, *inflightPull) (plan.Image, error)

func newInflightPulls() *inflightPulls {
	return &inflightPulls{pulls: map[string]*inflightPull{}}
}

// do returns the result of the pull with that key, and starts it if necessary. The context of the
// pull has the values of the first waiter's context and ends when the last waiter has left. The
// error is that of the pull. If left is true, the waiter left before the end and the error is that
// of ctx.
func (p *inflightPulls) do(ctx context.Context, key string, w waiter,
	pull pullFunc) (image plan.Image, left bool, err error) {
	in, err := p.join(ctx, key, w, pull)
	if err != nil {
		return image, true, err
	}
	defer p.leave(in, w)
	select {
	case <-in.done:
		return in.image, false, in.err
	case <-ctx.Done():
		return image, true, ctx.Err()
	}
}

func (p *inflightPulls) join(ctx context.Context, key string, w waiter, pull pullFunc) (*inflightPull, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		in, joined, err := p.tryJoin(ctx, key, w, pull)
		if joined || err != nil {
			return in, err
		}
		select {
		case <-in.done:
		case <-ctx.Done():
		}
	}
}

// tryJoin joins the pull with that key or starts it. It does not join a pull that is being
// canceled.
func (p *inflightPulls) tryJoin(ctx context.Context, key string, w waiter,
	pull pullFunc) (in *inflightPull, joined bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, false, errClosed
	}
	in, exists := p.pulls[key]
	if exists && in.waiters == 0 {
		return in, false, nil
	}
	if !exists {
		in = &inflightPull{done: make(chan struct{})}
		p.pulls[key] = in
	}
	in.waiters++
	if w.onJoin != nil {
		w.onJoin(in)
	}
	if !exists {
		p.start(ctx, key, in, pull)
	}
	return in, true, nil
}

// start starts the pull after its first waiter was counted.
func (p *inflightPulls) start(ctx context.Context, key string, in *inflightPull, pull pullFunc) {
	ctx, in.cancel = context.WithCancel(context.WithoutCancel(ctx))
	p.wg.Go(func() {
		defer in.cancel()
		image, err := pull(ctx, in)
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.pulls, key)
		in.image, in.err = image, err
		close(in.done)
	})
}

func (p *inflightPulls) leave(in *inflightPull, w waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.onLeave != nil {
		w.onLeave(in)
	}
	if in.waiters--; in.waiters == 0 {
		in.cancel()
	}
}

// each calls f for every pull, with the lock held.
func (p *inflightPulls) each(f func(*inflightPull)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, in := range p.pulls {
		f(in)
	}
}

// close cancels all pulls, waits for their end, and refuses new ones.
func (p *inflightPulls) close() {
	p.mu.Lock()
	p.closed = true
	for _, in := range p.pulls {
		in.cancel()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

// statusCalls shares image status calls to the runtime among concurrent callers. A call is not
// canceled when its callers leave: it is short and bounded.
type statusCalls struct {
	group  singleflight.Group
	ctx    context.Context // ends with close
	cancel context.CancelFunc

	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup
}

func newStatusCalls() *statusCalls {
	s := &statusCalls{}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// do returns the result of call, or of the call with the same key that is in progress. The context
// of call has the values of the first caller's context and ends only with close.
func (s *statusCalls) do(ctx context.Context, key string,
	call func(context.Context) (imageStatus, error)) (imageStatus, error) {
	if err := ctx.Err(); err != nil {
		return imageStatus{}, err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return imageStatus{}, errClosed
	}
	s.wg.Add(1)
	s.mu.Unlock()
	results := s.group.DoChan(key, func() (any, error) {
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		defer context.AfterFunc(s.ctx, cancel)()
		return call(ctx)
	})
	select {
	case r := <-results:
		s.wg.Done()
		status, _ := r.Val.(imageStatus)
		return status, r.Err
	case <-ctx.Done():
		go func() { // close waits for the call
			<-results
			s.wg.Done()
		}()
		return imageStatus{}, ctx.Err()
	}
}

// close cancels all calls, waits for their end, and refuses new ones.
func (s *statusCalls) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.wg.Wait()
}
