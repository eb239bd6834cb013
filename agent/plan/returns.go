package plan

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// ReasonReturns is told of a pod that is over and runs again later.
const ReasonReturns = "Returns"

// comeBack has a pod begin anew that went for what the node lacked, though nothing was
// wrong with it: of a file on a node without a server nobody makes another. It waits
// longer each time that it goes soon after.
func (d *decider) comeBack() {
	e := d.mem.End
	if !e.Node || e.Forget || d.Limits.ReturnBase == 0 || !podspec.IsStatic(d.Pod) || d.Pod.Spec.RestartPolicy != corev1.RestartPolicyAlways {
		return
	}
	wait := doubled(d.Limits.ReturnBase, d.mem.Returned, d.Limits.ReturnMax)
	at := e.At.Add(wait)
	d.why(Reason{Code: ReasonReturns, Detail: fmt.Sprintf("it is made anew %s after it had to go, once the node is short of nothing", wait), Until: at})
	if d.Now.Before(at) {
		d.wakeAt(at)
		return
	}
	d.out.Again = true
}

// Returned is how often a pod that begins anew has done so in a row.
func (l Limits) Returned(m Memory) int {
	switch {
	case m.End == nil || !m.End.Node:
		return 0
	case m.End.At.Sub(m.Started) >= l.ReturnMax:
		return 1
	}
	return m.Returned + 1
}
