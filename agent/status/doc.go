// Package status caches the newest snapshot of every pod for readers such as ps, why, logs, metrics
// and eviction, so that they never wait for a worker.
//
// It owns the snapshots, their subscribers, and queries on a snapshot: the instance of a container,
// the network of a pod, whether a container will run again. Only package agent writes to it. It
// makes no decisions and calls no other component.
//
// Goroutines: none. Watch and WaitForNextRun block the caller.
package status
