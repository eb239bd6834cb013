// Package admission answers one question: does a pod fit a node? It is asked by
// the agent before a pod may start and by a scheduler before it chooses a node,
// so that both mean the same.
//
// It owns the rules, one file per reason, with the kubelet's reasons and
// messages, and who would have to go for a critical pod (preempt.go). It never
// reserves, evicts or remembers anything: what is taken is the caller's Used.
//
// Invariants:
//
//	A1 Pods that were let in one by one, each added to Used, never take more
//	   than the node has, and never the same port of the host twice.
//	A2 Check changes none of its arguments.
//	A3 Used.Remove undoes Used.Add of the same pod.
//	A4 With those gone whom Preempt names, the pod fits; none of them could be
//	   spared, none is critical, and none goes while only lesser ones would do.
package admission
