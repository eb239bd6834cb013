package pod

import (
	"testing"

	"berth/agent/hostfake"
	"berth/agent/plan"
)

// A wish that comes before the worker has read of the end does not undo it.
func TestUpdateKeepsUnreadTermination(t *testing.T) {
	t.Parallel()
	w := &Worker{inbox: newInbox()}
	w.Update(Desired{Termination: &plan.Termination{Reason: "Evicted"}})
	w.Update(Desired{Pod: hostfake.PodOf("p", "a")})
	if p := w.inbox.take(); p.desired.Termination == nil || p.desired.Pod == nil {
		t.Errorf("%+v", p.desired)
	}
}
