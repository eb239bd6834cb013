// Package placements compares the decisions of berth's scheduler with those of kube-scheduler.
//
// Each cluster follows from its seed: nodes with labels, taints, images and resources, Services, ReplicaSets,
// PodDisruptionBudgets, and pods that are created one after another. kube-scheduler, which considers all nodes
// (percentageOfNodesToScore=100), binds them or preempts others. After each of its decisions, berth's placement decides
// about the same pod in the same cluster. Both must find the same nodes feasible, give them the same scores, and, if no
// node is feasible, report the same message and choose the same victims. The winner may be any of the nodes with the
// highest score.
//
// Some pods have scheduling gates, and some of these a nominated node. They must stay without a node until the last
// gate is removed. Each has a twin, which berth's scheduler itself is responsible for.
//
// The scores are in the log of kube-scheduler at verbosity 10.
package placements
