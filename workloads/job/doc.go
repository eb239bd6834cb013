// Package job decides what a Job needs next: pods to create and delete, tracking finalizers to remove, and the status.
// It is pure. DecideTTL and DecideOrphan decide about finished Jobs and about pods whose Job no longer exists.
//
// # Counting
//
// Each pod has the finalizer batch.kubernetes.io/job-tracking until it is counted, so that no pod disappears
// uncounted. A finished pod is counted in three decisions, each of which observes the writes of the one before:
//
//  1. its UID enters status.uncountedTerminatedPods, or its index enters status.completedIndexes;
//  2. its finalizer is removed, because the persisted status now knows the pod;
//  3. its UID moves from status.uncountedTerminatedPods to the counter.
//
// A controller that is killed between any two writes continues at the same step.
//
// # Invariants
//
//   - J1: A pod is created only if fewer than parallelism pods are active and fewer than the remaining completions.
//   - J2: No pod is created for an index that has succeeded or failed, or for an index that has an active pod.
//   - J3: Each finished pod is counted once. Pods that the decision deletes because of suspension, a lower
//     parallelism or a met success policy are not counted.
//   - J4: No finalizer of a finished pod is removed before the persisted status knows the pod.
//   - J5: The condition Complete or Failed is added only when no pod is active, terminating or uncounted, and with
//     SuccessCriteriaMet or FailureTarget beside it.
//   - J6: A finished Job creates and deletes no pods and changes no status.
//   - J7: All active pods have the finalizer, except for those about to be deleted.
//   - J8: Rejected creations and deletions of pods stop neither the counting of finished pods nor the deadline.
//   - J9: After a failure, no pod is created before the back-off ends, even if the failed pod is gone.
//
// # Differences from upstream
//
// Upstream keeps the number of consecutive failures for the back-off in memory and loses it at a restart. This package
// derives it from the existing pods then. An active pod without the finalizer gets it again; upstream does not count
// such a pod.
//
// Upstream repeats a status that the API rejects in these cases:
//
//   - A suspended Job ends. Here it gets a start time.
//   - Two pods of an index end differently, and the index has a back-off limit. Here it is completed or failed by what
//     the status knows first.
//   - Completions become fewer together with parallelism, which then changes alone. Here status.succeeded does not
//     decrease before both are equal.
package job
