package crilog

import (
	"context"
	"sync"
	"time"
)

// Log is the log of a container that runs.
type Log struct {
	Path    string
	Reopen  func() error // lets the runtime open the file again
	OnError func(error)  // told when it could not be rotated; nil: nobody is
}

// Rotator keeps the logs of running containers to their size. Nothing is asked
// of the runtime but to open a file that was moved: sizes are read from the
// files, of each once per interval, and of one that grows as often as its growth
// asks for.
type Rotator struct {
	MaxSize       int64         // bytes; negative: logs are left to grow
	MaxFiles      int           // of one log with the current one
	PerMinute     int64         // bytes of one minute that rotated files keep; 0: all
	Workers       int           // logs that are rotated at once; 0 is 1
	CompressDelay time.Duration // how long a rotated file is left alone before it is compressed
	Interval      time.Duration
	Logs          func() []Log    // those there are now
	Changed       <-chan struct{} // readable when these may be others; nil: looked at once per interval
	Growth        GrowthWatcher   // tells of logs that begin to grow; nil: all are looked at all the time
	OnRotated     func(n int)     // told after a round in which n logs were rotated; nil: nobody is
	Dropped       func(Loss)      // told of lines that were dropped; nil: nobody is. From any goroutine
	Now           func() time.Time
}

// GrowthWatcher tells of files that grow: of each once, until it is set again.
type GrowthWatcher interface {
	Arm(path string) error
	Disarm(path string)
	Grown() <-chan string // their paths, also of files that are gone
}

// Run rotates until ctx ends; rotations under way are then ended in order.
func (r *Rotator) Run(ctx context.Context) {
	if r.MaxSize < 0 {
		return
	}
	w := &watchman{Rotator: r, marks: map[string]*mark{}}
	var grown <-chan string
	if r.Growth != nil {
		grown = r.Growth.Grown()
	}
	tick := time.NewTicker(r.Interval)
	defer tick.Stop()
	timer := time.NewTimer(0) // those that are there now
	defer timer.Stop()
	w.renew = time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			w.audit(ctx)
		case <-r.Changed:
			w.changed(time.Now())
		case path := <-grown:
			w.wake(path)
		case <-timer.C:
		}
		w.look(ctx)
		timer.Stop()
		if next := w.next(); !next.IsZero() {
			timer.Reset(max(0, time.Until(next)))
		}
	}
}

// RunOnce looks at every log once and returns when all are done.
func (r *Rotator) RunOnce(ctx context.Context) { r.rotate(ctx, r.Logs()) }

// result is how the look at one log has ended.
type result struct{ moved, failed bool }

// rotate rotates those of the logs that are too big and says which were.
func (r *Rotator) rotate(ctx context.Context, logs []Log) []result {
	ends := make([]result, len(logs))
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(max(r.Workers, 1), len(logs)) {
		wg.Go(func() {
			for i := range next {
				ends[i] = r.one(logs[i])
			}
		})
	}
	for i := range logs {
		if ctx.Err() != nil {
			break
		}
		next <- i
	}
	close(next)
	wg.Wait()
	n := 0
	for _, e := range ends {
		if e.moved {
			n++
		}
	}
	if n > 0 && r.OnRotated != nil {
		r.OnRotated(n)
	}
	return ends
}

func (r *Rotator) one(l Log) result {
	done, err := Rotate(l.Path, Rotation{
		MaxSize: r.MaxSize, MaxFiles: r.MaxFiles, PerMinute: r.PerMinute, CompressDelay: r.CompressDelay, Now: r.Now(), Reopen: l.Reopen, Dropped: r.Dropped,
	})
	if err != nil && l.OnError != nil {
		l.OnError(err)
	}
	return result{done, err != nil}
}
