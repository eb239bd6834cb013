// Package explain puts what the agent knows of a pod into the words of the
// node's own commands: what it waits for and what comes next (`berth why`),
// what would be done for a manifest (`berth plan`), what was done and how long
// it took (`berth timeline`).
//
// It also turns what the agent tells of its pods and of the node into the shapes
// of nodeapi, so that the command that joins them has nothing to choose.
//
// It only reads: its answers come from a snapshot of the last pass, or, for a
// plan, from plan.Decide itself, driven through an obedient imagined host.
package explain
