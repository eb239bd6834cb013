// Package workloads decides what Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs and CronJobs need next. Each
// kind has a package of its own below this one with a pure function:
//
//	Decide(in Input) workloads.Decision[Status]
//
// Input holds the time, the object, its children as observed, and what else the kind depends on. Decide has no
// clock and no client, and does not modify its input. Two executors execute decisions: the reconciler of the control
// server (control/controllers) against the API, and that of the agent (agent/localworkloads) against its local store,
// for the workloads of manifest files.
//
// Package autoscaling decides about HorizontalPodAutoscalers. Its Decide has another signature, because an autoscaler
// has no children: it returns the replicas of the scale target, the status and what the next decision has to remember.
// Only the control server executes it. The contract below is not about it.
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
//   - may limit how many objects one sync creates and deletes. It then calls Decide with the first write that it has
//     left out and ErrTruncated as WriteError, uses that decision as after a failure, and decides again at once;
//   - writes the status, and Annotations with it, last. A decision whose correctness needs a persisted status does
//     not emit the writes that depend on it: the next decision does, when it observes the status;
//   - may be killed between any two writes.
package workloads
