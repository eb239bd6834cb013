// Package shutdown implements the graceful shutdown of a node: it terminates the pods group by
// group, each group within its own period, and waits until their final status is reported.
//
// A node has one Manager. Callers of Run during a shutdown wait for the same result. Package
// node/shutdown decides the groups and their order. Pods are terminated like for any other reason.
// The Manager does not kill anything itself. What has not terminated in time is left to the system.
//
// Goroutines: one per shutdown, which ends with it.
package shutdown
