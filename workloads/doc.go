// Package workloads decides what Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs and CronJobs need next. Each
// kind has a package of its own below this one with a pure function:
//
//	Decide(in Input) workloads.Decision[Status]
//
// Input holds the time, the object, its children as observed, and what else the kind depends on. Decide has no
// clock and no client, and does not modify its input. The control server executes decisions through its reconciler
// (control/controllers).
//
// # Contract
//
// The executor
//   - calls Decide for an object with observations that include every write of its earlier decisions, so that nothing
//     is created twice when a watch is late;
//   - applies Writes in order. Neighboring writes of the same verb and type are independent of each other and may run
//     concurrently;
//   - ends at the first error, calls Decide again with the error as WriteError, and uses only the status, the events
//     and the wake time of that decision; then it retries with back-off, and at the wake time at the latest;
//   - retries without a WriteError if a write fails because the observation is outdated: the decided or the written
//     object has changed or is gone, or an unobserved object has the name of the one to create;
//   - limits how many objects one sync creates and deletes, and decides again instead of writing more;
//   - writes the status, and Annotations with it, last. A decision whose correctness needs a persisted status does
//     not emit the writes that depend on it: the next decision does, when it observes the status;
//   - may be killed between any two writes.
package workloads
