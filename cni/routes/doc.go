// Package routes decides how this host reaches the pods of other nodes: which routes it needs to
// their pod CIDRs, and which traffic it masquerades. It is pure: it maps an observed state to a
// plan and performs no actions.
//
// A route to a node's pod CIDR uses the node's address as next hop. Both hosts therefore have to be
// on the same network. A node behind a router is reported as a problem, because only the routers in
// between could forward to its pods.
//
// Traffic that leaves the pod CIDRs of all nodes is masqueraded. Traffic between pods keeps its
// addresses.
//
// Invariants:
//
//	R1 Only routes with berth's protocol are removed. If another component has a
//	   route to the same destination, it stays and no second one is added.
//	R2 No route overlaps this node's own pod CIDRs, a network that the host is
//	   on, or the pod CIDR of a node that registered earlier.
//	R3 After a plan was executed, the plan for the resulting state is empty.
//	R4 The order of nodes, links and routes does not matter.
package routes
