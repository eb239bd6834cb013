package plan

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// ReasonRecreate is told of a pod that is over and runs again later.
const ReasonRecreate = "Returns"

// recreate has a pod begin anew that went for what the node lacked, though nothing was
// wrong with it: of a file on a node without a server nobody makes another. It waits
// longer each time that it goes soon after.
func (d *decider) recreate() {
	e := d.mem.Termination
	if !e.NodeCaused || e.RemovePod || d.Limits.RecreateBase == 0 || !podspec.IsStatic(d.Pod) || d.Pod.Spec.RestartPolicy != corev1.RestartPolicyAlways {
		return
	}
	wait := backoffDelay(d.Limits.RecreateBase, d.mem.RecreateCount, d.Limits.RecreateMax)
	at := e.RequestedAt.Add(wait)
	d.report(Reason{Code: ReasonRecreate, Message: fmt.Sprintf("it is made anew %s after it had to go, once the node is short of nothing", wait), Until: at})
	if d.Now.Before(at) {
		d.wakeAt(at)
		return
	}
	d.out.Recreate = true
}

// RecreateCount is how often a pod that begins anew has done so in a row.
func (l Limits) RecreateCount(m Memory) int {
	switch {
	case m.Termination == nil || !m.Termination.NodeCaused:
		return 0
	case m.Termination.RequestedAt.Sub(m.StartTime) >= l.RecreateMax:
		return 1
	}
	return m.RecreateCount + 1
}
