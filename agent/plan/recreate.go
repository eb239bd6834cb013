package plan

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/podspec"
)

// ReasonRecreate is the reason of a terminated pod that will be recreated.
const ReasonRecreate = "RecreatePending"

// recreate plans the recreation of a static pod on a standalone node that was terminated because of
// a shortage on the node. No controller would replace it, unless it belongs to a workload. The delay grows with each
// termination that follows soon after the previous one.
func (d *decider) recreate() {
	e := d.mem.Termination
	if !e.NodeCaused || e.RemovePod || d.Limits.RecreateBase == 0 || !podspec.IsStatic(d.Pod) ||
		metav1.GetControllerOfNoCopy(d.Pod) != nil || d.Pod.Spec.RestartPolicy != corev1.RestartPolicyAlways {
		return
	}
	wait := backoffDelay(d.Limits.RecreateBase, d.mem.RecreateCount, d.Limits.RecreateMax)
	at := e.RequestedAt.Add(wait)
	d.report(Reason{Code: ReasonRecreate,
		Message: fmt.Sprintf("the pod will be recreated %s after its termination, once the node has no pressure", wait),
		Until:   at})
	if d.Now.Before(at) {
		d.wakeAt(at)
		return
	}
	d.out.Recreate = true
}

// RecreateCount returns the number of consecutive recreations, including the next one.
func (l Limits) RecreateCount(m Memory) int {
	switch {
	case m.Termination == nil || !m.Termination.NodeCaused:
		return 0
	case m.Termination.RequestedAt.Sub(m.StartTime) >= l.RecreateMax:
		return 1
	}
	return m.RecreateCount + 1
}
