package allocator

import (
	"testing"

	"berth/admission"
)

func TestNodeStateReportsUpdates(t *testing.T) {
	t.Parallel()
	var got []admission.Node
	s := NewNodeState(admission.Node{Name: "n"}, func(n admission.Node) { got = append(got, n) })
	s.SetSupplementalGroupsPolicy(true) // unchanged
	s.Update(func(n *admission.Node) { n.ShuttingDown = true })
	s.SetSupplementalGroupsPolicy(false)
	s.SetSupplementalGroupsPolicy(false) // unchanged
	if len(got) != 2 || got[0].NoSupplementalGroupsPolicy || !got[1].NoSupplementalGroupsPolicy ||
		!got[1].ShuttingDown || got[1].Name != "n" {
		t.Errorf("got updates %+v", got)
	}
}
