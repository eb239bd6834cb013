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

// terminated is why pods end with their node, in the kubelet's words.
const (
	terminated        = "Terminated"
	terminatedMessage = "Pod was terminated in response to imminent node shutdown."
)

// ShutdownPod asks for the end of a pod because the node goes down, and reports whether
// there was such a pod.
func (a *Agent) ShutdownPod(ctx context.Context, uid types.UID, grace time.Duration) (told bool) {
	return a.endFor(ctx, uid, plan.End{Reason: terminated, Message: terminatedMessage, Grace: grace})
}

// EvictPod asks for the end of a pod that takes more than it may, and reports
// whether there was such a pod.
func (a *Agent) EvictPod(ctx context.Context, uid types.UID, why *plan.Excess) (told bool) {
	return a.endFor(ctx, uid, plan.End{Reason: "Evicted", Message: why.Message, Detail: why.Detail, Grace: cmp.Or(why.Grace, evictionGrace), Node: why.Node})
}

// endFor asks for the end of a pod for the node's sake.
func (a *Agent) endFor(ctx context.Context, uid types.UID, end plan.End) (told bool) {
	reply := make(chan bool, 1)
	a.call(ctx, func() {
		e, known := a.workers[uid]
		if known {
			a.end(e, end)
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
