// Package explain converts the agent's view of a pod to the responses of the node's commands: what the
// pod is waiting for and what happens next (berth why), what applying a manifest would do (berth plan),
// and the executed actions with their durations (berth timeline).
//
// It also converts pods and the state of the node to nodeapi types, so that cmd/berth only connects
// packages.
//
// The package only reads. Its input is a snapshot of the last sync. A plan is computed with plan.Decide
// on a simulated host on which every action succeeds.
package explain
