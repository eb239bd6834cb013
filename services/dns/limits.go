package dns

import (
	"net/netip"
	"sync"
)

// limits bounds what clients have at once: all together, and each alone, so that no client takes
// everything. It is safe for concurrent use.
type limits struct {
	total, each int

	mu    sync.Mutex
	count int
	by    map[netip.Addr]int
}

func newLimits(total, each int) *limits {
	return &limits{total: total, each: each, by: map[netip.Addr]int{}}
}

// acquire takes one for a client. It returns false if a limit is reached.
func (l *limits) acquire(client netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count >= l.total || l.by[client] >= l.each {
		return false
	}
	l.count++
	l.by[client]++
	return true
}

// release gives back what acquire has taken.
func (l *limits) release(client netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count--
	if l.by[client]--; l.by[client] == 0 {
		delete(l.by, client)
	}
}
