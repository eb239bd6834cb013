// Package localworkloads runs the Deployments, StatefulSets, DaemonSets, Jobs and CronJobs of manifest files on this
// node, without an API server. It executes the decisions of package workloads against a small store of objects: the
// workloads, their ReplicaSets, ControllerRevisions and Jobs, and the pods, which the agent runs.
//
//	files ──► Source ──► Reconciler ──► Source ──► agent
//	                      │  ▲
//	             decisions│  │pod status
//	             store ◄──┘  └── status cache
//
// The Reconciler is a state machine without goroutines, clocks and files: tests drive it directly. The Source wraps the
// source of the manifest files and owns a Reconciler. It starts nothing until a file defines a workload or the local
// store has one.
//
// # Durability
//
// All changes that follow from one input are one transaction of the local store. The Source sends pods to the agent
// only after the transaction is on disk, or after a bounded time if the disk fails. Names and UIDs of objects are
// derived from those of their owner and from a number that is part of the same transaction. An agent that is killed
// before a transaction therefore makes the same decision again. The events of an object are part of the transaction of
// the decision that recorded them.
//
// # Invariants
//
// The model world (TestModelWorld) checks, with an agent that is killed before and after any transaction:
//
//	L1 Two pods never have the same UID, and a restart of the agent neither creates nor deletes a pod.
//	L2 A Job that has finished does not create a pod again while its file is unchanged, also after its
//	   ttlSecondsAfterFinished.
//	L3 No index of an Indexed Job completes twice.
//	L4 When nothing changes any more, each Deployment has the replicas of its specification, all of the newest
//	   template.
//	L5 When a file is deleted, all its objects and pods are deleted.
//
// Further tests check:
//
//	L6 A Preview changes nothing. If every pod becomes ready, the pods that it names are created and deleted, and no
//	   others (TestPreviewPredicts).
//	L7 The local store has the events of existing objects and of no others (TestEventsOfWorkloadsSurviveRestart).
//	L8 A pod whose owner is unreadable in the local store is deleted when the files have been read, unless the owner
//	   is a workload of a file, which is created again with the same UID (TestUnreadableOwner).
//
// # Differences from an API server
//
//   - A file that changes a field that an API server does not allow to be changed replaces the workload with its pods.
//   - A pod that fails is replaced after a delay that grows from 10 s to 5 min, because no scheduler keeps a pod
//     pending that the node rejects. Of the failed pods of a ReplicaSet, the newest stays.
//   - Decisions are suspended while the node shuts down.
//
// Goroutines: one per Source with workloads, which watches the status cache. It ends with Source.Run. A node without
// workloads has no Reconciler, and TestMemoryWithNoWorkloads limits the memory that it needs for this package.
package localworkloads
