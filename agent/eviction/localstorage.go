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

// LocalStorageOptions configures a LocalStorageEnforcer. Every field is required.
type LocalStorageOptions struct {
	Pods func() []*status.Snapshot // all pods of the node
	// ExceedsVolumeLimit measures the volumes of a pod. A nil result means that no limit is exceeded.
	ExceedsVolumeLimit func(ctx context.Context, pod *corev1.Pod) (*plan.Eviction, error)
	NewMeasurement     func(context.Context) MeasureFunc // starts a round of measurements
	// Evict terminates the pod and reports whether it could.
	Evict func(ctx context.Context, uid types.UID, why *plan.Eviction) (ok bool)

	OnEvicted  func(signal string) // counts evictions
	Standalone bool                // no API server: see podspec.IsCritical
	Log        *slog.Logger
}

// LocalStorageEnforcer evicts pods whose volumes or containers, or both together, exceed their
// local storage limits.
type LocalStorageEnforcer struct {
	LocalStorageOptions
	measurements map[types.UID]measurement // owned by Run
	last         atomic.Pointer[map[types.UID]pressure.Usage]
}

// measurement is the last measurement of a pod.
type measurement struct {
	evicted bool   // eviction requested
	failed  string // the error that was logged
	began   time.Time
	took    time.Duration   // duration of the measurement
	use     *pressure.Usage // last complete measurement; nil: none
}

// NewLocalStorageEnforcer returns an enforcer. Run starts it.
func NewLocalStorageEnforcer(o LocalStorageOptions) *LocalStorageEnforcer {
	return &LocalStorageEnforcer{LocalStorageOptions: o}
}

const (
	interval    = 10 * time.Second // as upstream
	timeout     = time.Minute      // timeout of measuring one pod
	part        = 20               // measurements take at most 1/part of the time
	maxInterval = 10 * time.Minute // longest interval between measurements of a pod
	quickLimit  = interval / part  // a pod that takes longer has its own interval
)

// Run measures all pods every 10 s, one after another, until ctx ends. Pods that take long to
// measure are measured less often.
func (l *LocalStorageEnforcer) Run(ctx context.Context) {
	timer := time.NewTimer(interval)
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

// LastUsage returns the last complete measurement of a pod that has limits. It is safe for
// concurrent use.
func (l *LocalStorageEnforcer) LastUsage(uid types.UID) (u pressure.Usage, known bool) {
	if all := l.last.Load(); all != nil {
		u, known = (*all)[uid]
	}
	return u, known
}

// intervalFor returns the interval between measurements that take the given time.
func intervalFor(took time.Duration) time.Duration {
	return min(max(part*took, interval), maxInterval)
}

// measureAll measures the pods that are due. It returns the time spent on quick measurements. Slow
// measurements share a separate part of the time.
func (l *LocalStorageEnforcer) measureAll(ctx context.Context) (took time.Duration) {
	was, slow := l.measurements, 0
	for _, p := range was {
		if p.took > quickLimit {
			slow++
		}
	}
	l.measurements = map[types.UID]measurement{}
	use, last := l.NewMeasurement(ctx), map[types.UID]pressure.Usage{}
	for _, s := range l.Pods() {
		p := was[s.Pod.UID]
		postponed := p.took > quickLimit && time.Since(p.began) < intervalFor(time.Duration(slow)*p.took)
		if !p.evicted && !postponed && evictable(s, l.Standalone) {
			p = l.measure(ctx, s, use, p)
			if p.took <= quickLimit {
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

// measure measures a pod, and evicts it if it exceeds a limit.
func (l *LocalStorageEnforcer) measure(
	ctx context.Context,
	s *status.Snapshot,
	use MeasureFunc,
	was measurement,
) measurement {
	p := measurement{began: time.Now(), use: was.use}
	excess, err := l.exceeds(ctx, s, func(ctx context.Context, s *status.Snapshot) (pressure.Usage, error) {
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
			l.Log.Warn("pod disk usage unknown, storage limits not enforced",
				"pod", s.Pod.Namespace+"/"+s.Pod.Name, "podUID", string(s.Pod.UID), "err", err)
		}
	case excess != nil && l.Evict(ctx, s.Pod.UID, excess):
		p.evicted = true
		l.OnEvicted(excess.Signal)
	}
	return p
}

// exceeds measures what the pod has limits for.
func (l *LocalStorageEnforcer) exceeds(
	ctx context.Context,
	s *status.Snapshot,
	use MeasureFunc,
) (excess *plan.Eviction, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if podspec.HasEmptyDirSizeLimit(s.Pod) {
		excess, err = l.ExceedsVolumeLimit(ctx, s.Pod)
	}
	if _, limited := podspec.EphemeralStorageLimit(s.Pod); !limited || excess != nil {
		return excess, err
	}
	u, failed := use(ctx, s)
	if x := pressure.ExceededLimit(s.Pod, u); x != nil { // a partial measurement is enough
		return &plan.Eviction{Signal: x.Signal, Message: x.Message}, nil
	}
	return nil, errors.Join(err, failed)
}

// evictable reports whether a pod may be evicted.
func evictable(s *status.Snapshot, standalone bool) bool {
	terminated := s.Status.Phase == corev1.PodSucceeded || s.Status.Phase == corev1.PodFailed ||
		!s.Memory.FinishedAt.IsZero()
	terminating := s.Termination != nil || s.Memory.Termination != nil
	return s.Syncs > 0 && !terminated && !terminating && !podspec.IsCritical(s.Pod, standalone)
}
