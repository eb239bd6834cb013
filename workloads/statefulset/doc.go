// Package statefulset decides what a StatefulSet needs next, with the semantics of upstream's controller.
//
// A pod is a member of the set if its name is <set>-<ordinal>. The desired ordinals are spec.ordinals.start and the
// spec.replicas-1 that follow. A decision has these steps:
//
//  1. Adopt and release pods and ControllerRevisions, and find the revisions: the update revision is that of the
//     template, the current revision is that of the last completed rollout.
//  2. Delete failed and succeeded pods. Create missing pods after their claims, in the order of ordinals.
//  3. Delete pods of ordinals that are not desired, the highest ordinal first.
//  4. Delete pods that do not have the update revision, the highest ordinal first, not below the partition.
//  5. Delete the oldest revisions beyond spec.revisionHistoryLimit.
//
// With podManagementPolicy OrderedReady, a step is complete only when its pods are available, and one decision starts
// or stops one pod.
//
// # Invariants
//
// The model world (TestSim) checks these against what really happened:
//
//	S1 No two pods of one ordinal exist, and no pod beyond the desired ordinals is created.
//	S2 OrderedReady: a pod is created only while all pods of lower ordinals are available. A pod is deleted to scale
//	   down only when no pod of a higher ordinal exists.
//	S3 A rolling update makes a pod unavailable only if, counted with that pod, at most maxUnavailable pods of desired
//	   ordinals are unavailable.
//	S4 No pod of an ordinal below the partition is deleted for an update, and such a pod is created with the current
//	   revision.
//	S5 A claim exists before its pod is created. The controller deletes no claim. A claim gets an owner reference to
//	   the set or the pod only if the retention policy says so.
//	S6 No two revisions of a set have the same data. A revision that a pod or the status names is not deleted.
//	S7 When nothing fails any more, the set becomes stable: all desired pods exist at their revision, the status is
//	   that of the pods, and decisions are empty.
//
// # Broken rollouts
//
// With OrderedReady, a pod that never becomes ready stops a rollout. Upstream's controller does not replace it when
// the template is fixed (kubernetes/kubernetes#67250). If the set has the annotation AnnotationReplaceBrokenPods,
// Decide replaces unavailable pods that a rolling update has to replace anyway without waiting until they are
// available. This makes no available pod unavailable.
package statefulset
