package crilog

import (
	"context"
	"sync"
	"time"
)

// Log is the log of a running container.
type Log struct {
	Path    string
	Reopen  func() error // makes the runtime reopen the file
	OnError func(error)  // called if the rotation fails; may be nil
}

// Rotator limits the size of the logs of running containers. The runtime is asked only to reopen a
// renamed file. Sizes are read from the files: from each once per interval, and from a growing file
// as often as its growth rate requires.
type Rotator struct {
	MaxSize       int64         // bytes; negative: logs are not rotated
	MaxFiles      int           // per log, including the current file
	Workers       int           // concurrent rotations; 0 means 1
	CompressDelay time.Duration // how long a rotated file is unchanged before it is compressed
	Interval      time.Duration
	Logs          func() []Log    // the current logs
	Changed       <-chan struct{} // readable when Logs may have changed; nil: checked once per interval
	Growth        GrowthWatcher   // reports logs that start to grow; nil: all logs are checked all the time
	OnRotated     func(n int)     // called after n logs were rotated; may be nil
	Now           func() time.Time
}

// GrowthWatcher reports files that grow, each once until it is armed again.
type GrowthWatcher interface {
	Arm(path string) error
	Disarm(path string)
	Grown() <-chan string // their paths, also of deleted files
}

// Run rotates logs until ctx ends. Rotations in progress are completed.
func (r *Rotator) Run(ctx context.Context) {
	if r.MaxSize < 0 {
		return
	}
	w := &watcher{Rotator: r, watermarks: map[string]*watermark{}}
	var grown <-chan string
	if r.Growth != nil {
		grown = r.Growth.Grown()
	}
	tick := time.NewTicker(r.Interval)
	defer tick.Stop()
	timer := time.NewTimer(0) // check the existing logs immediately
	defer timer.Stop()
	w.listAt = time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			w.audit(ctx)
		case <-r.Changed:
			w.logsChanged(time.Now())
		case path := <-grown:
			w.wake(path)
		case <-timer.C:
		}
		w.check(ctx)
		timer.Stop()
		if next := w.next(); !next.IsZero() {
			timer.Reset(max(0, time.Until(next)))
		}
	}
}

// RunOnce checks every log once and returns when all rotations are complete.
func (r *Rotator) RunOnce(ctx context.Context) { r.rotate(ctx, r.Logs()) }

// result is the result of checking one log.
type result struct{ moved, failed bool }

// rotate rotates those of the logs that are too large and returns a result for each.
func (r *Rotator) rotate(ctx context.Context, logs []Log) []result {
	ends := make([]result, len(logs))
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(max(r.Workers, 1), len(logs)) {
		wg.Go(func() {
			for i := range next {
				ends[i] = r.rotateLog(logs[i])
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

func (r *Rotator) rotateLog(l Log) result {
	done, err := Rotate(l.Path, Rotation{
		MaxSize: r.MaxSize, MaxFiles: r.MaxFiles, CompressDelay: r.CompressDelay, Now: r.Now(), Reopen: l.Reopen,
	})
	if err != nil && l.OnError != nil {
		l.OnError(err)
	}
	return result{done, err != nil}
}
