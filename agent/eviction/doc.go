// Package eviction finds pods that must go: those that take more than their own
// limits let them (Limits), and, when the node runs short, those that go first in
// the order of package node/pressure (Pressure looks, Relief frees).
//
// It reads the board, has pods measured, and asks the agent to end one. It ends
// nothing itself, and decides nothing about a pod that has no limit on a node that
// has enough. Of disk it tries first what costs nobody anything: the ladder.
//
// Goroutines: Limits.Run and Pressure.Run are two of the agent's owner, who waits for
// them. Disk.Measure has up to four, and waits for them.
package eviction
