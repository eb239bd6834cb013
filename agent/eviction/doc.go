// Package eviction evicts pods that exceed their own local storage limits (LocalStorageEnforcer),
// and reclaims resources when the node is under pressure. Monitor observes the node's eviction
// signals. Reclaimer reclaims node-level resources first (ReclaimLevel) and then evicts pods in the
// order of the eviction ranking of package node/pressure.
//
// The package reads the status cache, has pods measured, and asks the agent to terminate a pod. It
// does not terminate pods itself. A pod without a limit on a node without pressure is never
// evicted.
//
// Goroutines: LocalStorageEnforcer.Run and Monitor.Run run on goroutines of their caller.
// PodMeter.Measure starts up to four goroutines and waits for them.
package eviction
