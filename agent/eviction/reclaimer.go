package eviction

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/agent/status"
	"berth/node/pressure"
	"berth/podspec"
)

// ReclaimerOptions configures a Reclaimer. Every field is required.
type ReclaimerOptions struct {
	Statuses    *status.Cache
	Ready       func() bool // all pods of the node are known; nothing is reclaimed before
	Measure     func(ctx context.Context, of pressure.Signal, pods []*status.Snapshot) []pressure.Candidate
	Levels      []ReclaimLevel // tried in this order before pods are evicted
	Evict       func(ctx context.Context, uid types.UID, why *plan.Eviction) (ok bool)
	OnEvicted   func(signal string)          // counts evictions
	RecordEvent func(reason, message string) // records a warning event of the node

	MaxGrace   time.Duration // of pods evicted for a soft threshold
	Standalone bool          // no API server: see podspec.IsCritical
	Log        *slog.Logger
}

// ReclaimLevel is a way to reclaim a resource of the node without evicting pods.
type ReclaimLevel struct {
	Name      string
	AppliesTo func(pressure.Signal) bool // can reclaim the resource of the signal
	// Reclaim reclaims the resource. It may return as soon as enough reports true.
	Reclaim func(ctx context.Context, enough func() bool) error
}

// Reclaimer reclaims the resources that the node is short of: by the reclaim levels, then by
// evicting one pod.
type Reclaimer struct {
	ReclaimerOptions
	eventRecorded     map[pressure.Signal]bool // an event was recorded for the signal
	noCandidateLogged map[pressure.Signal]bool // the lack of candidates was logged
	lastReclaim       time.Time                // time of the last attempt

	// The last pod evicted for a soft threshold. No other one is evicted for one before until.
	evicting types.UID
	until    time.Time
}

// NewReclaimer returns a Reclaimer.
func NewReclaimer(o ReclaimerOptions) *Reclaimer {
	return &Reclaimer{
		ReclaimerOptions:  o,
		eventRecorded:     map[pressure.Signal]bool{},
		noCandidateLogged: map[pressure.Signal]bool{},
	}
}

const (
	cleanupTimeout = 30 * time.Second // allowed beyond the grace period before the next eviction; as upstream
	levelTimeout   = 2 * time.Minute
	rankedInEvent  = 5  // ranked pods listed in an event
	rankedInLog    = 20 // ranked pods listed in the log
	minGrace       = time.Second
	resetAfter     = time.Minute // without pressure, after which it is reported again
)

// Reclaim reclaims what v asks for, the most urgent signal first. It reports whether a pod was
// evicted, after which the node has to be observed again. A signal for which nothing can be
// reclaimed does not block others.
func (r *Reclaimer) Reclaim(
	ctx context.Context,
	v Observation,
	observe func(context.Context) (Observation, bool),
) (again bool) {
	if !r.Ready() {
		return false
	}
	if time.Since(r.lastReclaim) > resetAfter {
		clear(r.eventRecorded)
		clear(r.noCandidateLogged)
	}
	defer func() { r.lastReclaim = time.Now() }()
	tried := map[pressure.Signal]bool{}
	for ctx.Err() == nil {
		next := slices.IndexFunc(v.Reclaim, func(m pressure.ThresholdMet) bool { return !tried[m.Signal] })
		if next < 0 {
			return false
		}
		s := v.Reclaim[next].Signal
		tried[s] = true
		if !r.eventRecorded[s] {
			r.eventRecorded[s] = true
			r.RecordEvent("EvictionThresholdMet", "Attempting to reclaim "+string(s.Resource()))
		}
		var known bool
		if v, known = r.reclaimLevels(ctx, v, s, observe); !known {
			return false
		}
		if m, met := v.thresholdMet(s); !met {
			delete(r.eventRecorded, s)
		} else if r.evictOne(ctx, v, m, observe) {
			return true
		}
	}
	return false
}

// reclaimLevels tries the reclaim levels in order and logs how much each one has freed, until the
// threshold is no longer met. It returns the last observation, and whether observations succeeded.
func (r *Reclaimer) reclaimLevels(
	ctx context.Context,
	v Observation,
	s pressure.Signal,
	observe func(context.Context) (Observation, bool),
) (Observation, bool) {
	for _, level := range r.Levels {
		if !level.AppliesTo(s) {
			continue
		}
		before := v.Levels[s].Available
		bounded, cancel := context.WithTimeout(ctx, levelTimeout)
		err := level.Reclaim(bounded, func() bool {
			now, ok := observe(bounded)
			_, met := now.thresholdMet(s)
			return !ok || !met
		})
		cancel()
		now, ok := observe(ctx)
		if !ok {
			return v, false
		}
		v = now
		freed := max(0, v.Levels[s].Available-before)
		if err != nil || freed > 0 {
			r.Log.Info("node resources reclaimed", "level", level.Name, "signal", string(s),
				"freed", s.Format(freed), "err", err)
		}
		if _, met := v.thresholdMet(s); !met {
			break
		}
	}
	return v, true
}

// thresholdMet returns the most urgent threshold of a signal that is met, hard before soft.
func (v Observation) thresholdMet(s pressure.Signal) (m pressure.ThresholdMet, met bool) {
	for _, m := range v.Reclaim {
		if m.Signal == s {
			return m, true
		}
	}
	return m, false
}

// Rank measures the evictable pods and returns the eviction ranking for a signal. It is safe for
// concurrent use.
func (r *Reclaimer) Rank(ctx context.Context, s pressure.Signal, split pressure.FileSystemLayout) []pressure.Ranked {
	var pods []*status.Snapshot
	for _, p := range r.Statuses.List() {
		if p.Verdict.State == plan.Admitted && evictable(p, r.Standalone) {
			pods = append(pods, p)
		}
	}
	return pressure.Rank(s, split, r.Measure(ctx, s, pods))
}

// evictOne evicts the first pod of the ranking for m, and waits until it has released its
// resources. It reports whether a pod was evicted.
func (r *Reclaimer) evictOne(
	ctx context.Context,
	v Observation,
	m pressure.ThresholdMet,
	observe func(context.Context) (Observation, bool),
) bool {
	if !m.Hard && time.Now().Before(r.until) && r.stillPresent(r.evicting) { // a hard threshold interrupted the wait
		return false
	}
	ranked := r.Rank(ctx, m.Signal, v.Layout)
	for _, first := range ranked {
		why := r.evictionReason(m, first, ranked)
		if ctx.Err() != nil || !r.Evict(ctx, first.Pod.UID, why) {
			continue
		}
		delete(r.noCandidateLogged, m.Signal)
		r.OnEvicted(string(m.Signal))
		r.Log.Warn("pod evicted", "pod", first.Pod.Namespace+"/"+first.Pod.Name, "podUID", string(first.Pod.UID),
			"reason", m.String(), "grace", why.Grace, "ranking", pressure.Explain(m.Signal, ranked, rankedInLog))
		until := time.Now().Add(why.Grace + cleanupTimeout)
		if !m.Hard {
			r.evicting, r.until = first.Pod.UID, until
		}
		r.waitForTermination(ctx, first.Pod.UID, until, func() bool {
			now, ok := observe(ctx)
			return ok && !m.Hard && now.newHardThreshold(v)
		})
		return true
	}
	if !r.noCandidateLogged[m.Signal] && ctx.Err() == nil {
		r.noCandidateLogged[m.Signal] = true
		r.Log.Error("no pod left to evict", "reason", m.String())
	}
	return false
}

func (r *Reclaimer) evictionReason(
	m pressure.ThresholdMet,
	first pressure.Ranked,
	all []pressure.Ranked,
) *plan.Eviction {
	grace := minGrace
	if !m.Hard {
		grace = max(grace, min(r.MaxGrace, podspec.GracePeriod(first.Pod)))
	}
	return &plan.Eviction{
		Signal: string(m.Signal), Message: pressure.Message(m, first), Grace: grace, NodeCaused: true,
		EventDetail: fmt.Sprintf("%s. Eviction ranking: %s", m, pressure.Explain(m.Signal, all, rankedInEvent)),
	}
}

// newHardThreshold reports whether a hard threshold is met that was not met in the earlier
// observation.
func (v Observation) newHardThreshold(was Observation) bool {
	for _, m := range v.Reclaim {
		if m.Hard &&
			!slices.ContainsFunc(
				was.Reclaim,
				func(x pressure.ThresholdMet) bool { return x.Hard && x.Signal == m.Signal },
			) {
			return true
		}
	}
	return false
}

// stillPresent reports whether a pod has not terminated yet, or still has volumes.
func (r *Reclaimer) stillPresent(uid types.UID) bool {
	s, known := r.Statuses.Get(uid)
	terminated := known && (s.Status.Phase == corev1.PodFailed || s.Status.Phase == corev1.PodSucceeded)
	return known && (!terminated || len(s.Observed.Volumes) > 0)
}

// waitForTermination waits until a pod has terminated and released its volumes, or the deadline.
// Every 10 s it checks whether something more urgent has come up.
func (r *Reclaimer) waitForTermination(ctx context.Context, uid types.UID, until time.Time, urgent func() bool) {
	changed, stop := r.Statuses.Subscribe()
	defer stop()
	bound, tick := time.NewTimer(time.Until(until)), time.NewTicker(interval)
	defer bound.Stop()
	defer tick.Stop()
	for r.stillPresent(uid) {
		select {
		case <-ctx.Done():
			return
		case <-bound.C:
			r.Log.Warn("evicted pod not terminated in time", "podUID", string(uid))
			return
		case <-tick.C:
			if urgent() {
				return
			}
		case <-changed:
		}
	}
}
