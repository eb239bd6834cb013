package pod

import (
	"testing"

	"berth/agent/hostfake"
	"berth/agent/plan"
)

// An update that arrives before the worker has read a termination does not revert it.
func TestUpdateKeepsUnreadTermination(t *testing.T) {
	t.Parallel()
	w := &Worker{inbox: newInbox()}
	w.Update(Desired{Termination: &plan.Termination{Reason: "Evicted"}})
	w.Update(Desired{Pod: hostfake.PodOf("p", "a")})
	if m := w.inbox.take(); m.desired.Termination == nil || m.desired.Pod == nil {
		t.Errorf("got %+v, want the pod and the termination", m.desired)
	}
}
