package eviction

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/node/pressure"
	"berth/nodeapi"
)

// MonitorOptions configures a Monitor. Every field is required unless stated otherwise.
type MonitorOptions struct {
	Config              pressure.Config
	Read                func(ctx context.Context) (pressure.Reading, error)
	Notify              <-chan struct{}   // triggers an observation; may be nil
	OnObserved          func(Observation) // called after every observation
	OnConditionsChanged func(Observation) // called when a pressure condition has changed
	Log                 *slog.Logger

	// Reclaim reclaims what v asks for, and reports whether to observe again at once. observe takes
	// another observation meanwhile. If nil, nothing is reclaimed.
	Reclaim func(ctx context.Context, v Observation, observe func(context.Context) (Observation, bool)) (again bool)
}

// Observation is the state of the node at one time.
type Observation struct {
	pressure.Reading
	pressure.Evaluation
}

// Monitor observes the eviction signals of the node and derives its pressure conditions.
type Monitor struct {
	MonitorOptions
	latest atomic.Pointer[Observation]

	// Owned by Run.
	state              pressure.State
	lastReadErr        string // the read error that was logged
	disagreementLogged bool   // the disagreement of sources was logged
}

// NewMonitor returns a Monitor. Run starts it.
func NewMonitor(o MonitorOptions) *Monitor { return &Monitor{MonitorOptions: o} }

// Latest returns the last observation, or nil before the first one. It is safe for concurrent use.
func (p *Monitor) Latest() *Observation { return p.latest.Load() }

const minInterval = time.Second // shortest interval between observations

// Run observes the node every 10 s, when it is notified, and when a time in the last verdict has
// come, until ctx ends.
func (p *Monitor) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var began time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-p.Notify:
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Until(began.Add(minInterval))):
			}
		}
		began = time.Now()
		timer.Reset(p.synchronize(ctx))
	}
}

// synchronize observes the node, reclaims resources if needed, and returns when to observe again.
func (p *Monitor) synchronize(ctx context.Context) time.Duration {
	v, ok := p.observe(ctx)
	if !ok {
		return interval
	}
	if len(v.Reclaim) > 0 && p.Reclaim != nil && p.Reclaim(ctx, v, p.observe) {
		return 0
	}
	if v = *p.latest.Load(); !v.RecheckAt.IsZero() {
		return min(interval, time.Until(v.RecheckAt))
	}
	return interval
}

// observe reads the signals and reports changes.
func (p *Monitor) observe(ctx context.Context) (Observation, bool) {
	r, err := p.Read(ctx)
	if ctx.Err() != nil {
		return Observation{}, false
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != p.lastReadErr && text != "" {
		p.Log.Warn("eviction signals unreadable, pressure conditions unchanged", "err", err)
	}
	p.lastReadErr = text
	var v Observation
	v.Reading = r
	p.state, v.Evaluation = p.Config.Evaluate(p.state, r)
	was := p.latest.Swap(&v)
	p.OnObserved(v)
	if was == nil && len(v.Pressures) > 0 || was != nil && !slices.Equal(was.Conditions(), v.Conditions()) {
		p.reportChanges(was, v)
	}
	if disagree := len(v.Unconfirmed) > 0; disagree != p.disagreementLogged {
		if p.disagreementLogged = disagree; disagree {
			p.Log.Info("memory pressure sources disagree, no pressure reported", "signal", v.Unconfirmed[0].String())
		}
	}
	return v, true
}

func (p *Monitor) reportChanges(was *Observation, v Observation) {
	for _, x := range v.Pressures {
		if was == nil || !was.Has(x.Condition) {
			p.Log.Warn("node under pressure", "condition", string(x.Condition), "reason", x.Message())
		}
	}
	if was != nil {
		for _, x := range was.Pressures {
			if !v.Has(x.Condition) {
				p.Log.Info("node no longer under pressure", "condition", string(x.Condition))
			}
		}
	}
	p.OnConditionsChanged(v)
}

// HasCondition reports whether the node has a pressure condition. Before the first observation it
// has none.
func (p *Monitor) HasCondition(of corev1.NodeConditionType) bool {
	v := p.latest.Load()
	return v != nil && v.Has(of)
}

// Warnings returns the pressure conditions of the node as warnings for users.
func (p *Monitor) Warnings() (out []nodeapi.Warning) {
	if v := p.latest.Load(); v != nil {
		for _, x := range v.Pressures {
			out = append(out, nodeapi.Warning{Object: "node", Field: string(x.Condition), Message: x.Message()})
		}
	}
	return out
}

// AvailableAmounts returns the available amount of each signal, by its name.
func (v Observation) AvailableAmounts() map[string]int64 {
	out := make(map[string]int64, len(v.Levels))
	for s, l := range v.Levels {
		out[string(s)] = l.Available
	}
	return out
}

// ConditionStates returns whether the node has each pressure condition, by its name.
func (v Observation) ConditionStates() map[string]bool {
	out := map[string]bool{}
	for _, c := range pressure.NodeConditions {
		out[string(c)] = v.Has(c)
	}
	return out
}
