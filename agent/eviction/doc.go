// Package eviction finds pods that take more of the node than they may.
//
// It reads the board, has the pods that have limits of their own measured, and
// asks the agent to end those that are over. It ends nothing itself, and
// decides nothing about a pod that has no limit.
//
// Goroutines: none of its own. Limits.Run is one of the agent's owner, who waits
// for it.
package eviction
