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

// ReclaimerOptions are what Relief needs of its surroundings. Every field is needed.
type ReclaimerOptions struct {
	Statuses    *status.Board
	Ready       func() bool // all pods of the node are known: nothing is freed before
	Measure     func(ctx context.Context, of pressure.Signal, pods []*status.Snapshot) []pressure.Candidate
	Levels      []ReclaimLevel // what is tried before pods, in order
	Evict       func(ctx context.Context, uid types.UID, why *plan.Excess) (told bool)
	OnEvicted   func(signal string)          // counts
	RecordEvent func(reason, message string) // a warning of the node

	MaxGrace   time.Duration // of pods that go for a soft threshold
	Standalone bool          // no server: see podspec.Critical
	Log        *slog.Logger
}

// ReclaimLevel is a step of the ladder by which disk is freed before a pod has to go.
type ReclaimLevel struct {
	Name      string
	AppliesTo func(pressure.Signal) bool // it can free what the signal is about
	// Reclaim frees it, and may end as soon as there is enough: it asks when it could go on
	// or stop.
	Reclaim func(ctx context.Context, enough func() bool) error
}

// Reclaimer frees what the node is short of: by the ladder, then by ending one pod.
type Reclaimer struct {
	ReclaimerOptions
	eventRecorded     map[pressure.Signal]bool // the node was told that this is being freed
	noCandidateLogged map[pressure.Signal]bool // it was logged that nobody can go for it
	lastReclaim       time.Time                // when something was freed last, or tried

	// The pod that went last for a soft threshold, and until when no other does.
	evicting types.UID
	until    time.Time
}

// NewReclaimer returns a Relief that has freed nothing.
func NewReclaimer(o ReclaimerOptions) *Reclaimer {
	return &Reclaimer{ReclaimerOptions: o, eventRecorded: map[pressure.Signal]bool{}, noCandidateLogged: map[pressure.Signal]bool{}}
}

const (
	cleanup    = 30 * time.Second // that a pod which has to go may take beyond its grace before the next is chosen; as upstream
	rungBound  = 2 * time.Minute
	inEvent    = 5  // ranked pods in an event
	inLog      = 20 // and in the log
	leastGrace = time.Second
	calm       = time.Minute // without a need, after which a new one is told anew
)

// Reclaim frees what v asks for, the most urgent first, and reports whether a pod has
// gone, after which the node is to be looked at again. What nothing can be done for
// keeps nothing else from being freed.
func (r *Reclaimer) Reclaim(ctx context.Context, v Observation, look func(context.Context) (Observation, bool)) (again bool) {
	if !r.Ready() {
		return false
	}
	if time.Since(r.lastReclaim) > calm {
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
		if v, known = r.reclaimLevels(ctx, v, s, look); !known {
			return false
		}
		if m, short := v.thresholdMet(s); !short {
			delete(r.eventRecorded, s)
		} else if r.evictOne(ctx, v, m, look) {
			return true
		}
	}
	return false
}

// reclaimLevels tries one rung after the other and measures what each has freed, until the
// signal is low no more. It returns the last look, and whether it is known how the
// node stands.
func (r *Reclaimer) reclaimLevels(ctx context.Context, v Observation, s pressure.Signal, look func(context.Context) (Observation, bool)) (Observation, bool) {
	for _, rung := range r.Levels {
		if !rung.AppliesTo(s) {
			continue
		}
		before := v.Levels[s].Available
		bounded, cancel := context.WithTimeout(ctx, rungBound)
		err := rung.Reclaim(bounded, func() bool {
			now, ok := look(bounded)
			_, short := now.thresholdMet(s)
			return !ok || !short
		})
		cancel()
		now, ok := look(ctx)
		if !ok {
			return v, false
		}
		v = now
		freed := max(0, v.Levels[s].Available-before)
		if err != nil || freed > 0 {
			r.Log.Info("freed what nobody needs", "what", rung.Name, "signal", string(s), "freed", s.Format(freed), "err", err)
		}
		if _, short := v.thresholdMet(s); !short {
			break
		}
	}
	return v, true
}

// thresholdMet is what asks for more of a signal now, hard before soft.
func (v Observation) thresholdMet(s pressure.Signal) (m pressure.ThresholdMet, short bool) {
	for _, m := range v.Reclaim {
		if m.Signal == s {
			return m, true
		}
	}
	return m, false
}

// Rank measures the pods that may go, and ranks them by who goes first for a
// signal. It may be asked for at any time, from any goroutine.
func (r *Reclaimer) Rank(ctx context.Context, s pressure.Signal, split pressure.FileSystemLayout) []pressure.Ranked {
	var pods []*status.Snapshot
	for _, p := range r.Statuses.All() {
		if p.Verdict.State == plan.OK && evictable(p, r.Standalone) {
			pods = append(pods, p)
		}
	}
	return pressure.Rank(s, split, r.Measure(ctx, s, pods))
}

// evictOne ends the first pod in the order of going for m, and waits until it has
// given back what it had. It reports whether there was one.
func (r *Reclaimer) evictOne(ctx context.Context, v Observation, m pressure.ThresholdMet, look func(context.Context) (Observation, bool)) bool {
	if !m.Hard && time.Now().Before(r.until) && r.stillPresent(r.evicting) { // a hard threshold came between
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
		r.Log.Warn("a pod is evicted", "pod", first.Pod.Namespace+"/"+first.Pod.Name, "uid", string(first.Pod.UID),
			"why", m.String(), "grace", why.Grace, "order", pressure.Explain(m.Signal, ranked, inLog))
		until := time.Now().Add(why.Grace + cleanup)
		if !m.Hard {
			r.evicting, r.until = first.Pod.UID, until
		}
		r.waitForTermination(ctx, first.Pod.UID, until, func() bool {
			now, ok := look(ctx)
			return ok && !m.Hard && now.newHardThreshold(v)
		})
		return true
	}
	if !r.noCandidateLogged[m.Signal] && ctx.Err() == nil {
		r.noCandidateLogged[m.Signal] = true
		r.Log.Error("the node is short of something, and no pod is left that may be ended for it", "why", m.String())
	}
	return false
}

func (r *Reclaimer) evictionReason(m pressure.ThresholdMet, first pressure.Ranked, all []pressure.Ranked) *plan.Excess {
	grace := leastGrace
	if !m.Hard {
		grace = max(grace, min(r.MaxGrace, podspec.GracePeriod(first.Pod)))
	}
	return &plan.Excess{
		Signal: string(m.Signal), Message: pressure.Message(m, first), Grace: grace, Node: true,
		Detail: fmt.Sprintf("%s. The order of going: %s", m, pressure.Explain(m.Signal, all, inEvent)),
	}
}

// newHardThreshold reports whether a hard threshold has come to ask for something since.
func (v Observation) newHardThreshold(was Observation) bool {
	for _, m := range v.Reclaim {
		if m.Hard && !slices.ContainsFunc(was.Reclaim, func(x pressure.ThresholdMet) bool { return x.Hard && x.Signal == m.Signal }) {
			return true
		}
	}
	return false
}

// stillPresent reports whether a pod has not ended yet, or not given its volumes back.
func (r *Reclaimer) stillPresent(uid types.UID) bool {
	s, known := r.Statuses.Get(uid)
	over := known && (s.Status.Phase == corev1.PodFailed || s.Status.Phase == corev1.PodSucceeded)
	return known && (!over || len(s.Seen.Volumes) > 0)
}

// waitForTermination waits until a pod is there no more, or that time has come. Every 10 s it asks
// whether something cannot wait for that.
func (r *Reclaimer) waitForTermination(ctx context.Context, uid types.UID, until time.Time, urgent func() bool) {
	changed, stop := r.Statuses.Changes()
	defer stop()
	bound, tick := time.NewTimer(time.Until(until)), time.NewTicker(every)
	defer bound.Stop()
	defer tick.Stop()
	for r.stillPresent(uid) {
		select {
		case <-ctx.Done():
			return
		case <-bound.C:
			r.Log.Warn("an evicted pod takes long to go", "uid", string(uid))
			return
		case <-tick.C:
			if urgent() {
				return
			}
		case <-changed:
		}
	}
}
