package systemd

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// LoopMonitor tracks when each main loop last made progress. Its Healthy method is the health check
// of Watchdog.Run. The zero value is ready for use.
type LoopMonitor struct {
	mu    sync.Mutex
	loops []*Loop
}

// Loop is a main loop.
type Loop struct {
	name      string
	timeout   time.Duration // maximum time between beats
	createdAt time.Time     // with the monotonic clock, so that changes of the wall clock have no effect
	last      atomic.Int64  // nanoseconds after createdAt
}

// Watch adds a loop that must call Beat at least once per timeout, also when idle. Adding it counts as a
// beat. Watch panics if timeout is not positive.
func (p *LoopMonitor) Watch(name string, timeout time.Duration) *Loop {
	if timeout <= 0 {
		panic(fmt.Sprintf("loop %s: timeout %v is not positive", name, timeout))
	}
	l := &Loop{name: name, timeout: timeout, createdAt: time.Now()}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loops = append(p.loops, l)
	return l
}

// Forget removes a loop that has stopped.
func (p *LoopMonitor) Forget(l *Loop) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loops = slices.DeleteFunc(p.loops, func(x *Loop) bool { return x == l })
}

// Beat records progress. It is cheap and never blocks.
func (l *Loop) Beat() { l.last.Store(int64(time.Since(l.createdAt))) }

// silent returns the time since the last beat.
func (l *Loop) silent() time.Duration {
	return time.Since(l.createdAt) - time.Duration(l.last.Load())
}

// Healthy reports whether all loops make progress, and if not, which loops hang. The reason is
// stable while the same loops hang.
func (p *LoopMonitor) Healthy() (ok bool, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var hung []string
	for _, l := range p.loops {
		if l.silent() > l.timeout {
			hung = append(hung, fmt.Sprintf("%s made no progress for %v", l.name, l.timeout))
		}
	}
	return len(hung) == 0, strings.Join(hung, "; ")
}
