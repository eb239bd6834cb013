// Package placement answers which node a pod should run on, and if none, why.
//
// It owns the picture of the cluster that the answer is taken from: the nodes,
// the pods on them (also those that are only assumed to be), the pods that wait
// for room on a node, and the labels of the namespaces. The rules that agent and
// scheduler share come from admission. It never binds, deletes, waits or reads a
// clock: package scheduler does what is answered here.
//
// Invariants:
//
//	P1 A chosen node is one on which no rule refuses the pod; placing pods one by
//	   one never takes more of a node than it has.
//	P2 Choose and Preempt change nothing of the cluster.
//	P3 With the victims of a Preemption gone, the pod fits the node; without any
//	   one of them it would not, unless a disruption budget made another choice.
//	P4 The same cluster and pod give the same answer.
package placement
