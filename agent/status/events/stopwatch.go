package events

import (
	"sync"
	"time"
)

// Stopwatch measures the time during which at least one operation is in progress. Concurrent
// operations count once. It is safe for concurrent use.
type Stopwatch struct {
	mu    sync.Mutex
	n     int
	since time.Time
	sum   time.Duration
}

// Start starts an operation. The returned function ends it.
func (s *Stopwatch) Start() (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n == 0 {
		s.since = time.Now()
	}
	s.n++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.n--
		if s.n == 0 {
			s.sum += time.Since(s.since)
		}
	}
}

// Total returns the time measured so far.
func (s *Stopwatch) Total() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n > 0 {
		return s.sum + time.Since(s.since)
	}
	return s.sum
}
