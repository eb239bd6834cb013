package events

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
)

// Subscription is a view of all events told from one moment on. It is bounded:
// who does not keep up loses the oldest and is told so by Missed.
type Subscription struct {
	C <-chan corev1.Event // closed by Close

	events *Recorder
	c      chan corev1.Event
	once   sync.Once

	mu      sync.Mutex
	dropped int
	closed  bool
}

// Subscribe returns what is known and a subscription to what is told after
// that, without a gap between the two. buffer is the number of events that may
// wait; at least 1. Close it.
func (e *Recorder) Subscribe(buffer int) ([]corev1.Event, *Subscription) {
	c := make(chan corev1.Event, max(buffer, 1))
	s := &Subscription{C: c, c: c, events: e}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.subs[s] = struct{}{}
	return e.all(), s
}

// offer hands over an event without ever blocking. Only Record calls it, one
// at a time, so that room made by dropping the oldest is not taken by another.
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

// Dropped returns how many events this subscriber has lost since it last asked.
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
