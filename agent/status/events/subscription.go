package events

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
)

// Subscription receives all events recorded after Subscribe. Its buffer is limited: a slow
// subscriber loses the oldest events, see Dropped.
type Subscription struct {
	C <-chan corev1.Event // closed by Close

	events *Recorder
	c      chan corev1.Event
	once   sync.Once

	mu      sync.Mutex
	dropped int
	closed  bool
}

// Subscribe returns the known events and a subscription for later ones, without a gap between them.
// buffer is the number of events that may be pending, at least 1. The caller must close the
// subscription.
func (r *Recorder) Subscribe(buffer int) ([]corev1.Event, *Subscription) {
	c := make(chan corev1.Event, max(buffer, 1))
	s := &Subscription{C: c, c: c, events: r}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.subs[s] = struct{}{}
	return r.all(), s
}

// offer sends an event without blocking. Only Record calls it, one call at a time, so that the
// space of a dropped event is not used by another one.
func (s *Subscription) offer(ev corev1.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	for {
		select {
		case s.c <- ev:
			return
		default:
		}
		select {
		case <-s.c:
			s.dropped++
		default:
		}
	}
}

// Dropped returns the number of events lost since the last call.
func (s *Subscription) Dropped() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.dropped
	s.dropped = 0
	return n
}

// Close ends the subscription and closes C. It may be called more than once.
func (s *Subscription) Close() {
	s.once.Do(func() {
		s.events.mu.Lock()
		delete(s.events.subs, s)
		s.events.mu.Unlock()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.closed = true
		close(s.c)
	})
}

// watchBuffer is the number of events buffered for a slow watcher.
const watchBuffer = 256

// Watch calls send with each known event that matches, and then with later ones until ctx ends or
// send returns an error. It calls missed with the number of events lost since the last event.
func (r *Recorder) Watch(
	ctx context.Context,
	matches func(*corev1.Event) bool,
	send func(*corev1.Event) error,
	missed func(int) error,
) error {
	existing, sub := r.Subscribe(watchBuffer)
	defer sub.Close()
	for _, e := range existing {
		if matches(&e) {
			if err := send(&e); err != nil {
				return err
			}
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-sub.C:
			if n := sub.Dropped(); n > 0 {
				if err := missed(n); err != nil {
					return err
				}
			}
			if !matches(&e) {
				continue
			}
			if err := send(&e); err != nil {
				return err
			}
		}
	}
}
