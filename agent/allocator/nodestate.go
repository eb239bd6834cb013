package allocator

import (
	"sync"

	"berth/admission"
)

// NodeState is the node for the admission of pods. The API server updates labels and taints, the
// node itself pressure conditions, devices and features of the runtime. It is safe for concurrent
// use.
type NodeState struct {
	mu       sync.Mutex
	node     admission.Node
	onUpdate func(admission.Node)
}

// NewNodeState returns the state of a node. onUpdate is called after each update, in order.
func NewNodeState(n admission.Node, onUpdate func(admission.Node)) *NodeState {
	return &NodeState{node: n, onUpdate: onUpdate}
}

// Update changes the node.
func (s *NodeState) Update(change func(*admission.Node)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.node)
	s.onUpdate(s.node)
}

// SetSupplementalGroupsPolicy sets whether the runtime supports supplementalGroupsPolicy. This can
// change with its version. Without a change, onUpdate is not called.
func (s *NodeState) SetSupplementalGroupsPolicy(supported bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.node.NoSupplementalGroupsPolicy == supported {
		s.node.NoSupplementalGroupsPolicy = !supported
		s.onUpdate(s.node)
	}
}
