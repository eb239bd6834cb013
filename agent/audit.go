package agent

import (
	"context"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// audits run one at a time. The struct belongs to the agent's goroutine.
type audits struct {
	running bool
	again   bool                    // requested while one was running
	last    time.Time               // when the last list started; zero: never
	deleted map[types.UID]time.Time // recently deleted pods, which a list may still contain
}

// audit lists the runtime concurrently with the workers, and lets each worker compare the
// list with its observed state. An unknown pod is terminated.
func (a *Agent) audit(ctx context.Context) {
	if a.audits.running {
		a.audits.again = true
		return
	}
	a.audits.running = true
	started := time.Now()
	a.wg.Go(func() {
		listed, err := a.Runtime.List(ctx)
		took := time.Since(started)
		a.call(ctx, func() {
			a.audits.running = false
			if err != nil {
				a.Log.Debug("audit failed", "err", err)
			} else {
				a.relisted(started, took)
				a.applyAudit(ctx, started, listed)
			}
			if a.audits.again {
				a.audits.again = false
				a.audit(ctx)
			}
		})
	})
}

// relisted records that the runtime was listed.
func (a *Agent) relisted(started time.Time, took time.Duration) {
	var interval time.Duration
	if !a.audits.last.IsZero() {
		interval = started.Sub(a.audits.last)
	}
	a.audits.last = started
	if a.Metrics.Relisted != nil {
		a.Metrics.Relisted(started, interval, took)
	}
}

func (a *Agent) applyAudit(ctx context.Context, started time.Time, listed map[types.UID]RuntimePod) {
	tick(a.Metrics.AuditFinished)
	for uid, w := range a.workers {
		w.Audit(started, listed[uid].listing())
	}
	maps.DeleteFunc(a.audits.deleted, func(_ types.UID, at time.Time) bool { return at.Before(started) })
	if !a.desired.allReady(len(a.Sources)) {
		return
	}
	for uid, p := range listed {
		if _, removed := a.audits.deleted[uid]; !removed && p.Pod != nil && a.isOrphan(uid) {
			a.proveOwner(uid)
			a.terminateOrphan(p.Pod, "Orphaned")
		}
	}
	a.cleanHost(ctx)
}
