// Package deployment decides what a Deployment needs next: which ReplicaSets it creates, scales and deletes, and its
// status. Names, numbers, annotations, conditions and events are those of kube-controller-manager, so that either can
// take over from the other.
//
// # One decision
//
//  1. ReplicaSets are adopted and released. A decision with such writes has no others.
//  2. A Deployment that is paused, or whose ReplicaSets were sized for another number of replicas, only has its
//     existing ReplicaSets scaled: the only active one in full, several in proportion to their size.
//  3. Otherwise the ReplicaSet of the template is created if there is none, gets the newest revision, and the strategy
//     decides. RollingUpdate either scales the new ReplicaSet up or old ones down in one decision, unhealthy replicas
//     first. Recreate scales the old ones to zero and waits until none of their pods exists.
//  4. When the Deployment is complete, old ReplicaSets beyond revisionHistoryLimit are deleted.
//
// # Invariants
//
// The model world (TestModelWorld) checks, with late watches and an executor that is killed between any two writes:
//
//	D1 The replicas of all ReplicaSets together are never scaled up above replicas + maxSurge. While a decision that
//	   scales in proportion, and so both adds and removes replicas, is executed, the total may be above.
//	D2 No decision scales ReplicaSets down so that fewer than replicas − maxUnavailable pods that are available stay,
//	   unless the Deployment itself was scaled, or does not use RollingUpdate.
//	D3 There is at most one ReplicaSet of a Deployment per template.
//	D4 A ReplicaSet that becomes the new one has a higher revision than all others.
//	D5 Only old ReplicaSets without replicas are deleted, and those of the revisionHistoryLimit newest revisions stay.
//	D6 With Recreate, no pod of a new ReplicaSet is created while one of an old ReplicaSet runs.
//	D7 ReplicaSets of other owners are not changed.
//	D8 When nothing changes any more, the ReplicaSet of the template has all replicas, all others have none, at most
//	   revisionHistoryLimit old ones are left, and the status is what the pods of the world show.
//
// # Differences from kube-controller-manager
//
//   - The annotation deprecated.deployment.rollback.to is not acted on: kubectl rolls back by writing the template.
//   - A Deployment whose ReplicaSets cannot be scaled further although their desired-replicas annotations differ goes
//     on with its rollout. kube-controller-manager ends each pass there.
//   - Recreate also waits until the status of each old ReplicaSet is about its scale-down. Otherwise a late watch of
//     the pods makes old and new ones run at once.
//   - Available replicas beyond the size of a ReplicaSet, as an old status shows them after a scale-down, do not count
//     when old ReplicaSets are scaled down. kube-controller-manager ends the pass with an error instead.
package deployment
