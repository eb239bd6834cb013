// Package allocator admits pods to the node, reserves their resources and assigns start slots.
//
// A pod is checked by package admission and its resources are reserved in one step, so that
// concurrent requests never overcommit the node. An admitted pod is never checked again, but it may
// be preempted by a critical pod, whose resources are then reserved. The package does not know the
// runtime or the state of pods. Its callers report when a pod has started and when it has
// terminated.
//
// Goroutines: Allocator.Run owns all state and is started by package agent.
package allocator
