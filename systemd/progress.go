package systemd

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// LoopMonitor knows the main loops and when each was last seen at work. Its
// Healthy is what Watchdog.Run asks. The zero value is ready for use.
type LoopMonitor struct {
	mu    sync.Mutex
	loops []*Loop
}

// Loop is one main loop. It says so itself when it makes progress.
type Loop struct {
	name  string
	quiet time.Duration
	birth time.Time    // carries the monotonic clock: a stepped wall clock is no hang
	last  atomic.Int64 // nanoseconds after birth
}

// Watch adds a loop that must call Beat at least every quiet, also when it has
// nothing to do. It counts as having just done so. A quiet of zero or less
// panics: no loop could keep to it.
func (p *LoopMonitor) Watch(name string, quiet time.Duration) *Loop {
	if quiet <= 0 {
		panic(fmt.Sprintf("loop %s: quiet time %v is not positive", name, quiet))
	}
	l := &Loop{name: name, quiet: quiet, birth: time.Now()}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loops = append(p.loops, l)
	return l
}

// Forget takes a loop out that has ended as it should.
func (p *LoopMonitor) Forget(l *Loop) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loops = slices.DeleteFunc(p.loops, func(x *Loop) bool { return x == l })
}

// Beat says that the loop makes progress. It is cheap and never blocks.
func (l *Loop) Beat() { l.last.Store(int64(time.Since(l.birth))) }

// silent is how long the loop has been without a beat.
func (l *Loop) silent() time.Duration {
	return time.Since(l.birth) - time.Duration(l.last.Load())
}

// Healthy reports whether all loops make progress, and if not, which do not.
// The reason stays the same while the same loops hang.
func (p *LoopMonitor) Healthy() (ok bool, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var hung []string
	for _, l := range p.loops {
		if l.silent() > l.quiet {
			hung = append(hung, fmt.Sprintf("%s made no progress for %v", l.name, l.quiet))
		}
	}
	return len(hung) == 0, strings.Join(hung, "; ")
}
