package server

import (
	"context"
	"sync"
	"time"
)

const (
	maxCachedReviews = 2048             // maximum number of cached results
	maxReviews       = 32               // concurrent reviews of both kinds together
	reviewTimeout    = 10 * time.Second // timeout of one review
)

// reviewCache caches the results of reviews for their TTL, and merges concurrent reviews of the
// same key.
type reviewCache[K comparable, V any] struct {
	limit chan struct{}

	mu       sync.Mutex
	cached   map[K]cachedReview[V]
	inFlight map[K]chan struct{} // closed when the review has finished
}

type cachedReview[V any] struct {
	value   V
	expires time.Time
}

func newReviewCache[K comparable, V any](asking chan struct{}) *reviewCache[K, V] {
	return &reviewCache[K, V]{limit: asking, cached: map[K]cachedReview[V]{}, inFlight: map[K]chan struct{}{}}
}

// get returns the result for key from the cache or from review, which also returns the TTL of its
// result. Errors are not cached.
func (a *reviewCache[K, V]) get(
	ctx context.Context,
	key K,
	ask func(context.Context) (V, time.Duration, error),
) (V, error) {
	var none V
	for {
		a.mu.Lock()
		if had, ok := a.cached[key]; ok && time.Now().Before(had.expires) {
			a.mu.Unlock()
			return had.value, nil
		}
		other, busy := a.inFlight[key]
		if !busy {
			done := make(chan struct{})
			a.inFlight[key] = done
			a.mu.Unlock()
			return a.run(ctx, key, done, ask)
		}
		a.mu.Unlock()
		select {
		case <-ctx.Done():
			return none, ctx.Err()
		case <-other:
		}
	}
}

// run runs a review for all waiters. It is not canceled when the first of them leaves.
func (a *reviewCache[K, V]) run(
	ctx context.Context,
	key K,
	done chan struct{},
	ask func(context.Context) (V, time.Duration, error),
) (v V, err error) {
	var good time.Duration
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.inFlight, key)
		close(done)
		if err == nil && good > 0 {
			a.add(key, v, good)
		}
	}()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reviewTimeout)
	defer cancel()
	select {
	case a.limit <- struct{}{}:
		defer func() { <-a.limit }()
	case <-ctx.Done():
		return v, ctx.Err()
	}
	v, good, err = ask(ctx)
	return v, err
}

// add stores a result, evicting expired ones first.
func (a *reviewCache[K, V]) add(key K, v V, good time.Duration) {
	now := time.Now()
	if len(a.cached) >= maxCachedReviews {
		for k, had := range a.cached {
			if now.After(had.expires) {
				delete(a.cached, k)
			}
		}
	}
	for k := range a.cached { // still full: evict any entry
		if len(a.cached) < maxCachedReviews {
			break
		}
		delete(a.cached, k)
	}
	a.cached[key] = cachedReview[V]{v, now.Add(good)}
}
