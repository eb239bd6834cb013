package keylock

import (
	"context"
	"sync"
)

// Locks has a lock for each key in use. The zero value is ready to use. It is safe for concurrent use.
type Locks[K comparable] struct {
	mu   sync.Mutex
	held map[K]*lock
}

type lock struct {
	token chan struct{} // capacity 1
	users int           // that hold it or wait for it
}

// Lock waits for the lock of a key. It returns an error if ctx ends before.
func (l *Locks[K]) Lock(ctx context.Context, key K) (unlock func(), err error) {
	l.mu.Lock()
	of := l.held[key]
	if of == nil {
		of = &lock{token: make(chan struct{}, 1)}
		if l.held == nil {
			l.held = map[K]*lock{}
		}
		l.held[key] = of
	}
	of.users++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if of.users--; of.users == 0 {
			delete(l.held, key)
		}
	}
	select {
	case of.token <- struct{}{}:
		return func() { <-of.token; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
