// Package apiserver is the status manager. It sends the status of the node's pods and their events
// to the API server, manages the mirror pods of static pods, and deletes the object of a pod once
// nothing of the pod is left on the node.
//
// It owns what has been sent for each pod and what has to be sent next. It does not read from the
// server: the source that watches the server reports the objects. It makes no decisions about a
// pod.
//
//	status cache ──► status ──differs from the server's──► patch ──► synced
//	                   └──pod removed, object has a deletionTimestamp──► last patch ──► delete
//
// Invariants, each checked by a test:
//
//	P1 SetPodStatus never waits for the server. While a request is in flight, only
//	   the newest status of the pod is kept.
//	P2 A patch contains only fields and conditions of this node, and needs no read.
//	P3 Patches and deletions have a UID precondition. Another pod with the same
//	   name is not affected.
//	P4 An object is deleted only after its last status was sent and nothing of the
//	   pod is left.
//	P5 A status that another client has overwritten is sent again.
//	P6 A request that fails temporarily is retried. A permanent rejection is logged
//	   once.
//	P7 The status of a pod that is starting is sent with a delay. A running pod is
//	   reported immediately.
//	P8 An object exists as long as the source reports it. Until then NotFound and
//	   Conflict are retried like other errors. An object that the source has never
//	   reported is considered deleted after such an error.
//
// Goroutines: Run starts a limited number of requests and waits for all of them.
package apiserver
