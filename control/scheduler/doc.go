// Package scheduler binds pods to nodes. Package placement selects the nodes.
//
// One goroutine (Run) owns the cluster cache and the scheduling queue. Informer events and the
// results of API calls are posted to its inbox. A pod is assumed on its node before the binding is
// confirmed, so that the next attempt does not wait for the API server. API calls (binding, status,
// preemption) run in their own goroutines, which Run waits for. Calls for one pod are serialized,
// and a failure is not written after a newer attempt has started.
//
//	             no node              event, or 5 min
//	active ──► schedule ─► unschedulable ─────────┐
//	  ▲          │ node                           ▼
//	  │          ▼             rejected        backoff (1 s … 10 s)
//	  │       assumed ──► bind ───────────────────┤
//	  │                    │ bound                │
//	  └────────────────────┼──────────────────────┘
//	                       ▼ observed as bound: removed from the queue, kept in the cache
package scheduler
