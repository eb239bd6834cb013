package eviction

import (
	"context"
	"errors"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/board"
	"berth/agent/plan"
	"berth/node/pressure"
	"berth/podspec"
)

// Options are what Limits needs of its surroundings. Every field is needed.
type Options struct {
	Pods  func() []*board.Snapshot                                               // all there are
	Over  func(ctx context.Context, pod *corev1.Pod) (*plan.Excess, error)       // measures volumes; nil: within all their limits
	Disk  func() func(context.Context, *board.Snapshot) (pressure.Use, error)    // begins a round of measuring all that pods have on the disk
	Evict func(ctx context.Context, uid types.UID, why *plan.Excess) (told bool) // asks for the pod's end

	Evicted    func(signal string) // counts
	Standalone bool                // no server: see podspec.Critical
	Log        *slog.Logger
}

// Limits evicts pods of which the volumes, the containers or all together take more
// of the disk than they may.
type Limits struct {
	Options
	told   map[types.UID]bool   // asked to end, and still there
	failed map[types.UID]string // why a pod could not be measured, as it was logged
}

// NewLimits returns Limits that has not begun.
func NewLimits(o Options) *Limits {
	return &Limits{Options: o, told: map[types.UID]bool{}, failed: map[types.UID]string{}}
}

const (
	every = 10 * time.Second // as the kubelet
	bound = time.Minute      // of measuring one pod
)

// Run measures every 10 s, one pod after the other, until ctx ends.
func (l *Limits) Run(ctx context.Context) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			l.round(ctx)
		}
	}
}

func (l *Limits) round(ctx context.Context) {
	told, failed := l.told, l.failed
	l.told, l.failed = map[types.UID]bool{}, map[types.UID]string{}
	use := l.Disk()
	for _, s := range l.Pods() {
		uid := s.Pod.UID
		if told[uid] {
			l.told[uid] = true
			continue
		}
		if !evictable(s, l.Standalone) {
			continue
		}
		over, err := l.over(ctx, s, use)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			l.failed[uid] = err.Error()
			if failed[uid] != err.Error() {
				l.Log.Warn("what a pod has on the disk is not known: its limit is not kept",
					"pod", s.Pod.Namespace+"/"+s.Pod.Name, "uid", string(uid), "err", err)
			}
		case over != nil && l.Evict(ctx, uid, over):
			l.told[uid] = true
			l.Evicted(over.Signal)
		}
	}
}

// over measures what a pod has limits of.
func (l *Limits) over(ctx context.Context, s *board.Snapshot, use func(context.Context, *board.Snapshot) (pressure.Use, error)) (over *plan.Excess, err error) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	if podspec.DiskLimited(s.Pod) {
		over, err = l.Over(ctx, s.Pod)
	}
	if _, limited := podspec.StorageLimit(s.Pod); !limited || over != nil {
		return over, err
	}
	u, failed := use(ctx, s)
	if x := pressure.OverLimit(s.Pod, u); x != nil { // even if something could not be read
		return &plan.Excess{Signal: x.Signal, Message: x.Message}, nil
	}
	return nil, errors.Join(err, failed)
}

// evictable reports whether a pod may still be ended for what it takes.
func evictable(s *board.Snapshot, standalone bool) bool {
	over := s.Status.Phase == corev1.PodSucceeded || s.Status.Phase == corev1.PodFailed || !s.Memory.Finished.IsZero()
	ending := s.End != nil || s.Memory.End != nil
	return s.Passes > 0 && !over && !ending && !podspec.Critical(s.Pod, standalone)
}
