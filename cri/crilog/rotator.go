package crilog

import (
	"context"
	"sync"
	"time"
)

// Log is the log of a container that runs.
type Log struct {
	Path   string
	Reopen func() error // lets the runtime open the file again
	Failed func(error)  // told when it could not be rotated; nil: nobody is
}

// Rotator keeps the logs of running containers to their size. Nothing is asked
// of the runtime but to open a file that was moved: sizes are read from the
// files, once per interval.
type Rotator struct {
	MaxSize  int64 // bytes; negative: logs are left to grow
	MaxFiles int   // of one log with the current one
	Workers  int   // logs that are rotated at once; 0 is 1
	Interval time.Duration
	Logs     func() []Log // those there are now
	Rotated  func(n int)  // told after a round in which n logs were rotated; nil: nobody is
	Now      func() time.Time
}

// Run rotates until ctx ends; rotations under way are then ended in order.
func (r *Rotator) Run(ctx context.Context) {
	if r.MaxSize < 0 {
		return
	}
	tick := time.NewTicker(r.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			r.Round(ctx)
		}
	}
}

// Round looks at every log once and returns when all are done.
func (r *Rotator) Round(ctx context.Context) {
	logs := make(chan Log)
	var wg sync.WaitGroup
	counts := make([]int, max(r.Workers, 1))
	for i := range counts {
		wg.Go(func() {
			for l := range logs {
				if r.one(l) {
					counts[i]++
				}
			}
		})
	}
	for _, l := range r.Logs() {
		if ctx.Err() != nil {
			break
		}
		logs <- l
	}
	close(logs)
	wg.Wait()
	n := 0
	for _, c := range counts {
		n += c
	}
	if n > 0 && r.Rotated != nil {
		r.Rotated(n)
	}
}

func (r *Rotator) one(l Log) bool {
	done, err := Rotate(l.Path, Rotation{MaxSize: r.MaxSize, MaxFiles: r.MaxFiles, Now: r.Now(), Reopen: l.Reopen})
	if err != nil && l.Failed != nil {
		l.Failed(err)
	}
	return done
}
