package nodeservices

import (
	"context"
	"math/rand/v2"
	"time"

	"berth/services/enablement"
)

const (
	// recheckInterval is the time between two questions to the API server, plus up to a quarter of it.
	recheckInterval = time.Minute
	// recheckCount is how many answers in a row must differ from the decision: while a server is upgraded, its
	// replicas differ.
	recheckCount = 2
)

// ControlPlaneChanged waits until the API server answers in a way that leads to other decisions than those
// in force: it is of another kind now, or publishes the addresses that network policies select. It returns
// false when ctx ends.
func ControlPlaneChanged(ctx context.Context, s *Services, p *Policies) bool {
	for different := 0; different < recheckCount; {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(recheckInterval + rand.N(recheckInterval/4)):
		}
		if s.differs(ctx) || p.differs(ctx) {
			different++
		} else {
			different = 0
		}
	}
	return true
}

// differs reports whether the API server answers, and leads to another decision.
func (s *Services) differs(ctx context.Context) bool {
	decided, known := s.Decision()
	if !known || s.opt.Standalone {
		return false
	}
	now, answered := enablement.Ask(ctx, s.enablement())
	return answered && now != decided
}

// differs reports whether the API server answers, and offers another source of addresses.
func (p *Policies) differs(ctx context.Context) bool {
	select {
	case <-p.decided:
	default:
		return false
	}
	if p.opt.Setting == enablement.Off {
		return false
	}
	now, err := p.ask(ctx)
	if err != nil || now == p.current {
		return false
	}
	return enabled(p.opt.Setting, now) || enabled(p.opt.Setting, p.current)
}
