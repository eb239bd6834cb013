package eviction

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/node/pressure"
)

// MonitorOptions are what Pressure needs of its surroundings. Every field is
// needed but those that say otherwise.
type MonitorOptions struct {
	Config              pressure.Config
	Read                func(ctx context.Context) (pressure.Reading, error)
	Notify              <-chan struct{}   // look now; nil: nobody alarms
	OnObserved          func(Observation) // told after every look
	OnConditionsChanged func(Observation) // told when the node has come under a pressure or out of one
	Log                 *slog.Logger

	// Reclaim frees what v asks for, and reports whether to look again at once.
	// look looks meanwhile. Nil: nothing is freed.
	Reclaim func(ctx context.Context, v Observation, look func(context.Context) (Observation, bool)) (again bool)
}

// Observation is the node as the last look has it.
type Observation struct {
	pressure.Reading
	pressure.Evaluation
}

// Monitor looks at the node's signals and tells the pressures that they amount to.
type Monitor struct {
	MonitorOptions
	latest atomic.Pointer[Observation]

	// Of Run alone.
	state              pressure.State
	lastReadErr        string // why signals could not be read, as it was logged
	disagreementLogged bool   // it was logged that the sources disagree
}

// NewMonitor returns a Pressure that has not looked.
func NewMonitor(o MonitorOptions) *Monitor { return &Monitor{MonitorOptions: o} }

// Latest is the last look; nil: there was none yet.
func (p *Monitor) Latest() *Observation { return p.latest.Load() }

const apart = time.Second // between two looks, however often it is alarmed

// Run looks every 10 s, when it is alarmed, and when time alone changes the
// answer, until ctx ends.
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
			case <-time.After(time.Until(began.Add(apart))):
			}
		}
		began = time.Now()
		timer.Reset(p.synchronize(ctx))
	}
}

// synchronize looks once, acts if something asks for it, and says when to look again.
func (p *Monitor) synchronize(ctx context.Context) time.Duration {
	v, ok := p.observe(ctx)
	if !ok {
		return every
	}
	if len(v.Reclaim) > 0 && p.Reclaim != nil && p.Reclaim(ctx, v, p.observe) {
		return 0
	}
	if v = *p.latest.Load(); !v.RecheckAt.IsZero() {
		return min(every, time.Until(v.RecheckAt))
	}
	return every
}

// observe reads the signals and tells what has come of it.
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
		p.Log.Warn("not all signals of the node can be read: their pressures stay as they are", "err", err)
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
	if doubted := len(v.Unconfirmed) > 0; doubted != p.disagreementLogged {
		if p.disagreementLogged = doubted; doubted {
			p.Log.Info("no pressure: the sources do not agree", "signal", v.Unconfirmed[0].String())
		}
	}
	return v, true
}

func (p *Monitor) reportChanges(was *Observation, v Observation) {
	for _, x := range v.Pressures {
		if was == nil || !was.Has(x.Condition) {
			p.Log.Warn("the node is under pressure", "condition", string(x.Condition), "why", x.Message())
		}
	}
	if was != nil {
		for _, x := range was.Pressures {
			if !v.Has(x.Condition) {
				p.Log.Info("the node is under pressure no more", "condition", string(x.Condition))
			}
		}
	}
	p.OnConditionsChanged(v)
}

// HasCondition reports whether the node is under a pressure; before the first look it is
// not.
func (p *Monitor) HasCondition(of corev1.NodeConditionType) bool {
	v := p.latest.Load()
	return v != nil && v.Has(of)
}
