package agent

import (
	"context"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// audits are made one at a time. The struct belongs to the agent's goroutine.
type audits struct {
	busy  bool
	again bool                    // asked for while one was under way
	gone  map[types.UID]time.Time // pods that have left lately: a list may still show them
}

// audit lists the runtime beside all workers and lets each compare. What
// nobody knows is ended.
func (a *Agent) audit(ctx context.Context) {
	if a.audits.busy {
		a.audits.again = true
		return
	}
	a.audits.busy = true
	began := time.Now()
	a.wg.Go(func() {
		listed, err := a.Runtime.List(ctx)
		a.call(ctx, func() {
			a.audits.busy = false
			if err != nil {
				a.Log.Debug("audit", "err", err)
			} else {
				a.audited(ctx, began, listed)
			}
			if a.audits.again {
				a.audits.again = false
				a.audit(ctx)
			}
		})
	})
}

func (a *Agent) audited(ctx context.Context, began time.Time, listed map[types.UID]RuntimePod) {
	a.Metrics.audited()
	for uid, e := range a.workers {
		seen := listed[uid]
		e.inbox.put(func(p *messages) {
			p.audit = &observation{started: began, sandboxes: seen.Sandboxes, containers: seen.Containers}
		})
	}
	maps.DeleteFunc(a.audits.gone, func(_ types.UID, at time.Time) bool { return at.Before(began) })
	if a.desired.allReady(len(a.Sources)) {
		for uid, seen := range listed {
			if _, left := a.audits.gone[uid]; !left && seen.Pod != nil && a.unknown(uid) {
				a.orphan(seen.Pod, "Orphaned")
			}
		}
		a.sweepHost(ctx)
	}
}
