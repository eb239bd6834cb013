// Package admission checks whether a pod fits a node. The agent uses it before it starts a pod, and
// the scheduler to filter nodes, with the same result.
//
// The package owns the node predicates, one file per reason, with the kubelet's reasons and
// messages, and selects the pods to preempt for a critical pod (preempt.go). It never reserves,
// evicts or stores anything. The resources in use are the caller's Used.
//
// # Invariants
//
//	A1 Pods admitted one by one, each added to Used, never exceed the
//	   allocatable resources of the node and never share a host port.
//	A2 Check does not change its arguments.
//	A3 Used.Remove reverts Used.Add of the same pod.
//	A4 Without the pods that PodsToPreempt returns, the pod fits. The set is
//	   minimal, contains no critical pod, and no pod of a higher QoS class
//	   while those of lower classes suffice.
package admission
