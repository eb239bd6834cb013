package eviction

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/agent/status"
	"berth/node/pressure"
	"berth/podspec"
)

// LocalStorageOptions are what Limits needs of its surroundings. Every field is needed.
type LocalStorageOptions struct {
	Pods               func() []*status.Snapshot                                              // all there are
	ExceedsVolumeLimit func(ctx context.Context, pod *corev1.Pod) (*plan.Excess, error)       // measures volumes; nil: within all their limits
	NewMeasurement     func(context.Context) MeasureFunc                                      // begins a round of measuring all that pods have on the disk
	Evict              func(ctx context.Context, uid types.UID, why *plan.Excess) (told bool) // asks for the pod's end

	OnEvicted  func(signal string) // counts
	Standalone bool                // no server: see podspec.Critical
	Log        *slog.Logger
}

// LocalStorageEnforcer evicts pods of which the volumes, the containers or all together take more
// of the disk than they may.
type LocalStorageEnforcer struct {
	LocalStorageOptions
	measurements map[types.UID]measurement // of Run alone
	last         atomic.Pointer[map[types.UID]pressure.Usage]
}

// measurement is what is known of a pod from before.
type measurement struct {
	told   bool   // asked to end, and still there
	failed string // why it could not be measured, as it was logged
	began  time.Time
	took   time.Duration   // to measure it
	use    *pressure.Usage // all that it had on the disk when that was last counted; nil: never
}

// NewLocalStorageEnforcer returns Limits that has not begun.
func NewLocalStorageEnforcer(o LocalStorageOptions) *LocalStorageEnforcer {
	return &LocalStorageEnforcer{LocalStorageOptions: o}
}

const (
	every  = 10 * time.Second // as the kubelet
	bound  = time.Minute      // of measuring one pod
	part   = 20               // measuring takes one in so many of the time
	seldom = 10 * time.Minute // but is not further apart than that
	quick  = every / part     // of measuring one pod: it keeps no other waiting
)

// Run measures every 10 s, one pod after the other, until ctx ends. What takes long
// is done less often.
func (l *LocalStorageEnforcer) Run(ctx context.Context) {
	timer := time.NewTimer(every)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			began := time.Now()
			timer.Reset(time.Until(began.Add(intervalFor(l.measureAll(ctx)))))
		}
	}
}

// LastUsage is what a pod that has limits had on the disk when all of it was last counted.
// It may be asked for at any time, from any goroutine.
func (l *LocalStorageEnforcer) LastUsage(uid types.UID) (u pressure.Usage, known bool) {
	if all := l.last.Load(); all != nil {
		u, known = (*all)[uid]
	}
	return u, known
}

// intervalFor is how far apart the beginnings of what takes so long must be.
func intervalFor(took time.Duration) time.Duration {
	return min(max(part*took, every), seldom)
}

// measureAll measures those whose turn it is. It returns how long the quick ones have taken;
// the others, all together, have a share of the time for themselves.
func (l *LocalStorageEnforcer) measureAll(ctx context.Context) (took time.Duration) {
	was, slow := l.measurements, 0
	for _, p := range was {
		if p.took > quick {
			slow++
		}
	}
	l.measurements = map[types.UID]measurement{}
	use, last := l.NewMeasurement(ctx), map[types.UID]pressure.Usage{}
	for _, s := range l.Pods() {
		p := was[s.Pod.UID]
		rests := p.took > quick && time.Since(p.began) < intervalFor(time.Duration(slow)*p.took)
		if !p.told && !rests && evictable(s, l.Standalone) {
			p = l.measure(ctx, s, use, p)
			if p.took <= quick {
				took += p.took
			}
		}
		if ctx.Err() != nil {
			return 0
		}
		l.measurements[s.Pod.UID] = p
		if p.use != nil {
			last[s.Pod.UID] = *p.use
		}
	}
	l.last.Store(&last)
	return took
}

// measure measures a pod, and asks for its end if it is over a limit.
func (l *LocalStorageEnforcer) measure(ctx context.Context, s *status.Snapshot, use MeasureFunc, was measurement) measurement {
	p := measurement{began: time.Now(), use: was.use}
	over, err := l.exceeds(ctx, s, func(ctx context.Context, s *status.Snapshot) (pressure.Usage, error) {
		u, err := use(ctx, s)
		if err == nil {
			p.use = &u
		}
		return u, err
	})
	p.took = time.Since(p.began)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		p.failed = err.Error()
		if p.failed != was.failed {
			l.Log.Warn("what a pod has on the disk is not known: its limit is not kept",
				"pod", s.Pod.Namespace+"/"+s.Pod.Name, "uid", string(s.Pod.UID), "err", err)
		}
	case over != nil && l.Evict(ctx, s.Pod.UID, over):
		p.told = true
		l.OnEvicted(over.Signal)
	}
	return p
}

// exceeds measures what a pod has limits of.
func (l *LocalStorageEnforcer) exceeds(ctx context.Context, s *status.Snapshot, use MeasureFunc) (over *plan.Excess, err error) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	if podspec.HasEmptyDirSizeLimit(s.Pod) {
		over, err = l.ExceedsVolumeLimit(ctx, s.Pod)
	}
	if _, limited := podspec.EphemeralStorageLimit(s.Pod); !limited || over != nil {
		return over, err
	}
	u, failed := use(ctx, s)
	if x := pressure.ExceededLimit(s.Pod, u); x != nil { // even if something could not be read
		return &plan.Excess{Signal: x.Signal, Message: x.Message}, nil
	}
	return nil, errors.Join(err, failed)
}

// evictable reports whether a pod may still be ended for what it takes.
func evictable(s *status.Snapshot, standalone bool) bool {
	over := s.Status.Phase == corev1.PodSucceeded || s.Status.Phase == corev1.PodFailed || !s.Memory.Finished.IsZero()
	ending := s.End != nil || s.Memory.End != nil
	return s.Passes > 0 && !over && !ending && !podspec.IsCritical(s.Pod, standalone)
}
