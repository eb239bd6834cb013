package agent

import (
	"cmp"
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
)

// evictionGrace is what an evicted pod gets, whatever it asks for, unless who
// evicts gives it more: it takes what others need.
const evictionGrace = time.Second

// Evict asks for the end of a pod that takes more than it may, and reports
// whether there was such a pod.
func (a *Agent) Evict(ctx context.Context, uid types.UID, why *plan.Excess) (told bool) {
	reply := make(chan bool, 1)
	a.call(ctx, func() {
		e, known := a.workers[uid]
		if known {
			a.end(e, plan.End{Reason: "Evicted", Message: why.Message, Detail: why.Detail, Grace: cmp.Or(why.Grace, evictionGrace)})
		}
		reply <- known
	})
	select {
	case told = <-reply:
		return told
	case <-a.left:
	case <-ctx.Done():
	}
	return false
}
