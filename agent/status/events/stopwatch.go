package events

import (
	"sync"
	"time"
)

// Stopwatch adds up the time during which at least one of many things is under
// way: two at once count once.
type Stopwatch struct {
	mu    sync.Mutex
	n     int
	since time.Time
	sum   time.Duration
}

// Start begins one thing; the function that it returns ends it.
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

// Total is the sum so far.
func (s *Stopwatch) Total() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n > 0 {
		return s.sum + time.Since(s.since)
	}
	return s.sum
}
