// Package replicaset decides what a ReplicaSet needs next: which pods it adopts, releases, creates and deletes, and its
// status. A ReplicationController is decided as the ReplicaSet with the same fields. Conditions, events and the order
// in which pods are deleted are those of kube-controller-manager.
//
// # One decision
//
//  1. Active pods are adopted and released. A decision with such writes has no others.
//  2. Missing pods are created, or surplus ones deleted in the order of Ranking. A set that is being deleted does
//     neither.
//  3. The status counts the active pods of the set, and the terminating ones separately.
//
// # Invariants
//
// The model world (TestModelWorld) checks, with late watches and an executor that is killed between any two writes:
//
//	S1 A decision creates or deletes as many active pods as the set has too few or too many, never both.
//	S2 No pod is created while the server has as many active pods of the set as it wants, unless a pod was changed by
//	   another party since the observation.
//	S3 Only active pods of the set are deleted, and none comes after a kept one by its node or phase.
//	S4 Pods of other owners are not changed.
//	S5 A set that is being deleted creates, deletes, adopts and releases nothing.
//	S6 When nothing changes any more, the set has the wanted number of active pods, none that its selector does not
//	   match, no active orphan matches its selector, and its status is what the pods of the world show.
package replicaset
