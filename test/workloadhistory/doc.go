// Package workloadhistory checks invariants of workloads over the complete history of a control server's store. Unlike
// a watch of the API, the store has all changes while the server is killed and started.
//
// The invariants hold after every change, however often the controllers are killed, as long as no user scales a
// workload or deletes a pod, and no pod becomes unready by itself:
//
//	D1  The ReplicaSets of a Deployment have at most replicas + maxSurge replicas together.
//	D2  The deletion of an available pod leaves a Deployment with at least replicas - maxUnavailable available pods,
//	    if the controller knew that the pod was available when it scaled its ReplicaSet down.
//	D3  A ReplicaSet never has more active pods than the most replicas it was ever scaled to.
//	D4  With the strategy Recreate, no pod is created while an older ReplicaSet has pods that have not terminated.
//	S1  With the policy OrderedReady, a pod of a StatefulSet is created only if all pods before it are ready.
//	S2  With the policy OrderedReady, the deletion of a ready pod leaves at most one pod unavailable.
//	E1  A node has at most one active pod of a DaemonSet, two with maxSurge, and one of each revision.
//	E2  The deletion of a pod that the controller knew as available leaves at most maxUnavailable nodes without an
//	    available pod of a DaemonSet.
//	J1  No pod is created for an index of a Job that has succeeded, that has an active pod, or that has failed
//	    backoffLimitPerIndex + 1 times. Without indexes, active and succeeded pods are never more than completions.
//	J2  A Job never has more active pods than parallelism, and no pod is created after it has finished.
//	J3  The counts in the status of a Job never decrease and are never higher than the pods that have terminated. At
//	    its end they are equal, and so are the completed and the failed indexes.
//	R1  No two ReplicaSets of a Deployment, and no two ControllerRevisions of an owner, have the same revision number
//	    or the same pod template.
//	R2  A revision is deleted only if revisionHistoryLimit old ones are left, and never one that is in use.
package workloadhistory
