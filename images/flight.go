package images

import (
	"context"
	"sync"
)

// flights runs at most one call per key and shares its end among all who ask
// while it is under way. T is what a call returns, D what is known of it
// meanwhile.
//
//	       first asker              last asker leaves
//	(none) ───────────► under way ───────────────────► called off
//	                       │ ends                          │ ends
//	                       ▼                               ▼
//	                     (none)                          (none)
//
// Who asks while a call is being called off waits for its end and then begins a
// new one, so two calls of one key never overlap.
type flights[T, D any] struct {
	mu     sync.Mutex
	open   map[string]*flight[T, D]
	closed bool
	wg     sync.WaitGroup
}

type flight[T, D any] struct {
	ended  chan struct{}
	cancel context.CancelFunc
	askers int // 0: called off
	state  *D  // guarded by flights.mu
	value  T   // with err readable after ended
	err    error
}

// asker is how somebody takes part in a flight. Both functions may be nil and
// are called with the lock held.
type asker[D any] struct {
	joins  func(*D)
	leaves func(*D)
}

func newFlights[T, D any]() *flights[T, D] {
	return &flights[T, D]{open: map[string]*flight[T, D]{}}
}

// do returns the end of the call of that key, which it begins if need be. The
// context of call ends when the last asker has left; it carries the values of
// the first one's. The error is the call's; early says that it is that of ctx,
// because the asker left before the end.
func (f *flights[T, D]) do(ctx context.Context, key string, a asker[D], call func(context.Context, *D) (T, error)) (value T, early bool, err error) {
	fl, err := f.join(ctx, key, a, call)
	if err != nil {
		return value, true, err
	}
	defer f.leave(fl, a)
	select {
	case <-fl.ended:
		return fl.value, false, fl.err
	case <-ctx.Done():
		return value, true, ctx.Err()
	}
}

func (f *flights[T, D]) join(ctx context.Context, key string, a asker[D], call func(context.Context, *D) (T, error)) (*flight[T, D], error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		fl, in, err := f.tryJoin(ctx, key, a, call)
		if in || err != nil {
			return fl, err
		}
		select {
		case <-fl.ended:
		case <-ctx.Done():
		}
	}
}

// tryJoin joins the flight of that key or begins it. It does not get in while
// the flight is being called off.
func (f *flights[T, D]) tryJoin(ctx context.Context, key string, a asker[D], call func(context.Context, *D) (T, error)) (fl *flight[T, D], in bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, false, errClosed
	}
	fl, there := f.open[key]
	if there && fl.askers == 0 {
		return fl, false, nil
	}
	if !there {
		fl = &flight[T, D]{ended: make(chan struct{}), state: new(D)}
		f.open[key] = fl
	}
	fl.askers++
	if a.joins != nil {
		a.joins(fl.state)
	}
	if !there {
		f.run(ctx, key, fl, call)
	}
	return fl, true, nil
}

// run begins the call once its first asker is counted.
func (f *flights[T, D]) run(ctx context.Context, key string, fl *flight[T, D], call func(context.Context, *D) (T, error)) {
	ctx, fl.cancel = context.WithCancel(context.WithoutCancel(ctx))
	f.wg.Go(func() {
		defer fl.cancel()
		value, err := call(ctx, fl.state)
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.open, key)
		fl.value, fl.err = value, err
		close(fl.ended)
	})
}

func (f *flights[T, D]) leave(fl *flight[T, D], a asker[D]) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if a.leaves != nil {
		a.leaves(fl.state)
	}
	if fl.askers--; fl.askers == 0 {
		fl.cancel()
	}
}

// each shows the state of every flight, with the lock held.
func (f *flights[T, D]) each(show func(*D)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fl := range f.open {
		show(fl.state)
	}
}

// close calls everything off, waits for its end, and lets nobody in any more.
func (f *flights[T, D]) close() {
	f.mu.Lock()
	f.closed = true
	for _, fl := range f.open {
		fl.cancel()
	}
	f.mu.Unlock()
	f.wg.Wait()
}
