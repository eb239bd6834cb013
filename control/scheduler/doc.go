// Package scheduler gives pods their nodes: it watches, asks placement, and binds.
//
// It owns one goroutine (Run) with the picture of the cluster and the queue of
// pods that wait; what watches see and what calls to the server came to is told
// to that goroutine through its inbox. A pod counts as placed from the moment of
// the choice, before the server has answered, so that the next choice needs no
// wait. Calls to the server (bind, status, the end of victims) have a goroutine
// each, which Run waits for. Those that write of one pod come one at a time, and
// why it has no node is not written any more once it has had another turn.
//
//	             no node              told, or 5 min
//	active ──► choose ──► waiting ────────────────┐
//	  ▲          │ node                           ▼
//	  │          ▼             refused         backing off (1 s … 10 s)
//	  │       assumed ──► bind ───────────────────┤
//	  │                    │ bound                │
//	  └────────────────────┼──────────────────────┘
//	                       ▼ seen bound: forgotten here, kept in the picture
//
// It never decides where a pod goes (placement does) and never starts one.
package scheduler
