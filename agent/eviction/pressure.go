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

// PressureOptions are what Pressure needs of its surroundings. Every field is
// needed but those that say otherwise.
type PressureOptions struct {
	Config  pressure.Config
	Read    func(ctx context.Context) (pressure.Reading, error)
	Alarm   <-chan struct{} // look now; nil: nobody alarms
	Looked  func(View)      // told after every look
	Changed func(View)      // told when the node has come under a pressure or out of one
	Log     *slog.Logger

	// Relieve frees what v asks for, and reports whether to look again at once.
	// look looks meanwhile. Nil: nothing is freed.
	Relieve func(ctx context.Context, v View, look func(context.Context) (View, bool)) (again bool)
}

// View is the node as the last look has it.
type View struct {
	pressure.Reading
	pressure.Verdict
}

// Pressure looks at the node's signals and tells the pressures that they amount to.
type Pressure struct {
	PressureOptions
	now atomic.Pointer[View]

	// Of Run alone.
	state   pressure.State
	unread  string // why signals could not be read, as it was logged
	doubted bool   // it was logged that the sources disagree
}

// NewPressure returns a Pressure that has not looked.
func NewPressure(o PressureOptions) *Pressure { return &Pressure{PressureOptions: o} }

// Now is the last look; nil: there was none yet.
func (p *Pressure) Now() *View { return p.now.Load() }

const apart = time.Second // between two looks, however often it is alarmed

// Run looks every 10 s, when it is alarmed, and when time alone changes the
// answer, until ctx ends.
func (p *Pressure) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var began time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-p.Alarm:
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Until(began.Add(apart))):
			}
		}
		began = time.Now()
		timer.Reset(p.round(ctx))
	}
}

// round looks once, acts if something asks for it, and says when to look again.
func (p *Pressure) round(ctx context.Context) time.Duration {
	v, ok := p.look(ctx)
	if !ok {
		return every
	}
	if len(v.Act) > 0 && p.Relieve != nil && p.Relieve(ctx, v, p.look) {
		return 0
	}
	if v = *p.now.Load(); !v.Wake.IsZero() {
		return min(every, time.Until(v.Wake))
	}
	return every
}

// look reads the signals and tells what has come of it.
func (p *Pressure) look(ctx context.Context) (View, bool) {
	r, err := p.Read(ctx)
	if ctx.Err() != nil {
		return View{}, false
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != p.unread && text != "" {
		p.Log.Warn("not all signals of the node can be read: their pressures stay as they are", "err", err)
	}
	p.unread = text
	var v View
	v.Reading = r
	p.state, v.Verdict = p.Config.Step(p.state, r)
	was := p.now.Swap(&v)
	p.Looked(v)
	if was == nil && len(v.Pressures) > 0 || was != nil && !slices.Equal(was.Conditions(), v.Conditions()) {
		p.tell(was, v)
	}
	if doubted := len(v.Doubted) > 0; doubted != p.doubted {
		if p.doubted = doubted; doubted {
			p.Log.Info("no pressure: the sources do not agree", "signal", v.Doubted[0].String())
		}
	}
	return v, true
}

func (p *Pressure) tell(was *View, v View) {
	for _, x := range v.Pressures {
		if was == nil || !was.Has(x.Condition) {
			p.Log.Warn("the node is under pressure", "condition", string(x.Condition), "why", x.Why())
		}
	}
	if was != nil {
		for _, x := range was.Pressures {
			if !v.Has(x.Condition) {
				p.Log.Info("the node is under pressure no more", "condition", string(x.Condition))
			}
		}
	}
	p.Changed(v)
}

// Has reports whether the node is under a pressure; before the first look it is
// not.
func (p *Pressure) Has(of corev1.NodeConditionType) bool {
	v := p.now.Load()
	return v != nil && v.Has(of)
}
