// Package placement selects the node for a pod, or explains why there is none.
//
// It contains the cluster cache (nodes, bound and assumed pods, nominated pods, namespace labels)
// and the filter, score and preemption algorithms. The predicates shared with the agent come from
// package admission. Binding, preempting, waiting and retrying are in package scheduler.
//
// Invariants:
//
//	P1 No filter rejects the pod on the selected node. Scheduling pods one by one never
//	   overcommits a node.
//	P2 Schedule and Preempt do not modify the cluster.
//	P3 Without the victims of a Preemption, the pod fits the node. Every victim is necessary,
//	   unless a disruption budget led to another choice.
//	P4 The result depends only on the cluster and the pod.
package placement
