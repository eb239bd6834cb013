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

// ReliefOptions are what Relief needs of its surroundings. Every field is needed.
type ReliefOptions struct {
	Board   *status.Board
	Ready   func() bool // all pods of the node are known: nothing is freed before
	Measure func(ctx context.Context, of pressure.Signal, pods []*status.Snapshot) []pressure.Candidate
	Rungs   []Rung // what is tried before pods, in order
	Evict   func(ctx context.Context, uid types.UID, why *plan.Excess) (told bool)
	Evicted func(signal string)          // counts
	Tell    func(reason, message string) // a warning of the node

	MaxGrace   time.Duration // of pods that go for a soft threshold
	Standalone bool          // no server: see podspec.Critical
	Log        *slog.Logger
}

// Rung is a step of the ladder by which disk is freed before a pod has to go.
type Rung struct {
	Name   string
	Serves func(pressure.Signal) bool // it can free what the signal is about
	// Free frees it, and may end as soon as there is enough: it asks when it could go on
	// or stop.
	Free func(ctx context.Context, enough func() bool) error
}

// Relief frees what the node is short of: by the ladder, then by ending one pod.
type Relief struct {
	ReliefOptions
	told   map[pressure.Signal]bool // the node was told that this is being freed
	nobody map[pressure.Signal]bool // it was logged that nobody can go for it
	last   time.Time                // when something was freed last, or tried

	// The pod that went last for a soft threshold, and until when no other does.
	going types.UID
	until time.Time
}

// NewRelief returns a Relief that has freed nothing.
func NewRelief(o ReliefOptions) *Relief {
	return &Relief{ReliefOptions: o, told: map[pressure.Signal]bool{}, nobody: map[pressure.Signal]bool{}}
}

const (
	cleanup    = 30 * time.Second // that a pod which has to go may take beyond its grace before the next is chosen; as upstream
	rungBound  = 2 * time.Minute
	inEvent    = 5  // ranked pods in an event
	inLog      = 20 // and in the log
	leastGrace = time.Second
	calm       = time.Minute // without a need, after which a new one is told anew
)

// Free frees what v asks for, the most urgent first, and reports whether a pod has
// gone, after which the node is to be looked at again. What nothing can be done for
// keeps nothing else from being freed.
func (r *Relief) Free(ctx context.Context, v View, look func(context.Context) (View, bool)) (again bool) {
	if !r.Ready() {
		return false
	}
	if time.Since(r.last) > calm {
		clear(r.told)
		clear(r.nobody)
	}
	defer func() { r.last = time.Now() }()
	tried := map[pressure.Signal]bool{}
	for ctx.Err() == nil {
		next := slices.IndexFunc(v.Act, func(m pressure.Met) bool { return !tried[m.Signal] })
		if next < 0 {
			return false
		}
		s := v.Act[next].Signal
		tried[s] = true
		if !r.told[s] {
			r.told[s] = true
			r.Tell("EvictionThresholdMet", "Attempting to reclaim "+string(s.Resource()))
		}
		var known bool
		if v, known = r.climb(ctx, v, s, look); !known {
			return false
		}
		if m, short := v.met(s); !short {
			delete(r.told, s)
		} else if r.endOne(ctx, v, m, look) {
			return true
		}
	}
	return false
}

// climb tries one rung after the other and measures what each has freed, until the
// signal is low no more. It returns the last look, and whether it is known how the
// node stands.
func (r *Relief) climb(ctx context.Context, v View, s pressure.Signal, look func(context.Context) (View, bool)) (View, bool) {
	for _, rung := range r.Rungs {
		if !rung.Serves(s) {
			continue
		}
		before := v.Levels[s].Available
		bounded, cancel := context.WithTimeout(ctx, rungBound)
		err := rung.Free(bounded, func() bool {
			now, ok := look(bounded)
			_, short := now.met(s)
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
			r.Log.Info("freed what nobody needs", "what", rung.Name, "signal", string(s), "freed", s.Amount(freed), "err", err)
		}
		if _, short := v.met(s); !short {
			break
		}
	}
	return v, true
}

// met is what asks for more of a signal now, hard before soft.
func (v View) met(s pressure.Signal) (m pressure.Met, short bool) {
	for _, m := range v.Act {
		if m.Signal == s {
			return m, true
		}
	}
	return m, false
}

// Order measures the pods that may go, and ranks them by who goes first for a
// signal. It may be asked for at any time, from any goroutine.
func (r *Relief) Order(ctx context.Context, s pressure.Signal, split pressure.Split) []pressure.Ranked {
	var pods []*status.Snapshot
	for _, p := range r.Board.All() {
		if p.Verdict.State == plan.OK && evictable(p, r.Standalone) {
			pods = append(pods, p)
		}
	}
	return pressure.Rank(s, split, r.Measure(ctx, s, pods))
}

// endOne ends the first pod in the order of going for m, and waits until it has
// given back what it had. It reports whether there was one.
func (r *Relief) endOne(ctx context.Context, v View, m pressure.Met, look func(context.Context) (View, bool)) bool {
	if !m.Hard && time.Now().Before(r.until) && r.there(r.going) { // a hard threshold came between
		return false
	}
	ranked := r.Order(ctx, m.Signal, v.Split)
	for _, first := range ranked {
		why := r.why(m, first, ranked)
		if ctx.Err() != nil || !r.Evict(ctx, first.Pod.UID, why) {
			continue
		}
		delete(r.nobody, m.Signal)
		r.Evicted(string(m.Signal))
		r.Log.Warn("a pod is evicted", "pod", first.Pod.Namespace+"/"+first.Pod.Name, "uid", string(first.Pod.UID),
			"why", m.String(), "grace", why.Grace, "order", pressure.Explain(m.Signal, ranked, inLog))
		until := time.Now().Add(why.Grace + cleanup)
		if !m.Hard {
			r.going, r.until = first.Pod.UID, until
		}
		r.gone(ctx, first.Pod.UID, until, func() bool {
			now, ok := look(ctx)
			return ok && !m.Hard && now.harder(v)
		})
		return true
	}
	if !r.nobody[m.Signal] && ctx.Err() == nil {
		r.nobody[m.Signal] = true
		r.Log.Error("the node is short of something, and no pod is left that may be ended for it", "why", m.String())
	}
	return false
}

func (r *Relief) why(m pressure.Met, first pressure.Ranked, all []pressure.Ranked) *plan.Excess {
	grace := leastGrace
	if !m.Hard {
		grace = max(grace, min(r.MaxGrace, podspec.Grace(first.Pod)))
	}
	return &plan.Excess{
		Signal: string(m.Signal), Message: pressure.Message(m, first), Grace: grace, Node: true,
		Detail: fmt.Sprintf("%s. The order of going: %s", m, pressure.Explain(m.Signal, all, inEvent)),
	}
}

// harder reports whether a hard threshold has come to ask for something since.
func (v View) harder(was View) bool {
	for _, m := range v.Act {
		if m.Hard && !slices.ContainsFunc(was.Act, func(x pressure.Met) bool { return x.Hard && x.Signal == m.Signal }) {
			return true
		}
	}
	return false
}

// there reports whether a pod has not ended yet, or not given its volumes back.
func (r *Relief) there(uid types.UID) bool {
	s, known := r.Board.Get(uid)
	over := known && (s.Status.Phase == corev1.PodFailed || s.Status.Phase == corev1.PodSucceeded)
	return known && (!over || len(s.Seen.Volumes) > 0)
}

// gone waits until a pod is there no more, or that time has come. Every 10 s it asks
// whether something cannot wait for that.
func (r *Relief) gone(ctx context.Context, uid types.UID, until time.Time, urgent func() bool) {
	changed, stop := r.Board.Changes()
	defer stop()
	bound, tick := time.NewTimer(time.Until(until)), time.NewTicker(every)
	defer bound.Stop()
	defer tick.Stop()
	for r.there(uid) {
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
