package server

import (
	"context"
	"sync"
	"time"
)

const (
	maxAnswers  = 2048             // kept at once; more are asked for again
	maxReviews  = 32               // under way at once, of both kinds together
	reviewBound = 10 * time.Second // for one of them
)

// answers keeps what a server has said for as long as it is good, and asks each
// question once at a time.
type answers[K comparable, V any] struct {
	asking chan struct{}

	mu    sync.Mutex
	kept  map[K]answer[V]
	under map[K]chan struct{} // closed when the question has been asked
}

type answer[V any] struct {
	value V
	until time.Time
}

func newAnswers[K comparable, V any](asking chan struct{}) *answers[K, V] {
	return &answers[K, V]{asking: asking, kept: map[K]answer[V]{}, under: map[K]chan struct{}{}}
}

// get returns the answer to a question, from memory or from ask, which tells too
// how long its answer is good. Errors are not kept.
func (a *answers[K, V]) get(ctx context.Context, key K, ask func(context.Context) (V, time.Duration, error)) (V, error) {
	var none V
	for {
		a.mu.Lock()
		if had, ok := a.kept[key]; ok && time.Now().Before(had.until) {
			a.mu.Unlock()
			return had.value, nil
		}
		other, busy := a.under[key]
		if !busy {
			done := make(chan struct{})
			a.under[key] = done
			a.mu.Unlock()
			return a.ask(ctx, key, done, ask)
		}
		a.mu.Unlock()
		select {
		case <-ctx.Done():
			return none, ctx.Err()
		case <-other:
		}
	}
}

// ask asks, for all who wait: also if the first of them has gone.
func (a *answers[K, V]) ask(ctx context.Context, key K, done chan struct{}, ask func(context.Context) (V, time.Duration, error)) (v V, err error) {
	var good time.Duration
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.under, key)
		close(done)
		if err == nil && good > 0 {
			a.keep(key, v, good)
		}
	}()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reviewBound)
	defer cancel()
	select {
	case a.asking <- struct{}{}:
		defer func() { <-a.asking }()
	case <-ctx.Done():
		return v, ctx.Err()
	}
	v, good, err = ask(ctx)
	return v, err
}

// keep puts an answer in, in the place of old ones.
func (a *answers[K, V]) keep(key K, v V, good time.Duration) {
	now := time.Now()
	if len(a.kept) >= maxAnswers {
		for k, had := range a.kept {
			if now.After(had.until) {
				delete(a.kept, k)
			}
		}
	}
	for k := range a.kept { // still full: any may go
		if len(a.kept) < maxAnswers {
			break
		}
		delete(a.kept, k)
	}
	a.kept[key] = answer[V]{v, now.Add(good)}
}
