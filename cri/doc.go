// Package cri speaks to the container runtime: the runtime and image services
// of the container runtime interface (CRI) over gRPC, one file per verb.
//
// It owns the connection, a deadline for each verb, the mapping of the
// runtime's errors to the kinds of package plan, the log links beside the
// kubelet's log layout, and the reading of termination messages. Package
// criconfig says what a pod's sandbox and containers look like; this package
// carries it over and brings back what the runtime shows.
//
// It never decides whether, when or how often something is done, never retries
// what failed for good, never pulls images and keeps nothing of a pod in
// memory but the path of its network namespace, which it can read again.
//
// Invariants, each checked by a test of the same name:
//
//	R1 Objects that berth did not make are never shown and never touched.
//	R2 A call that was cut off and made again doubles nothing and leaks nothing:
//	   what it had made is found by its labels and attempt, and taken over if it
//	   runs or removed if it does not.
//	R3 Stop and remove of what is gone succeed.
//	R4 Every call has an end: its deadline, or that of the context given.
//	R5 Every error is a *plan.Error whose kind was decided here.
//	R6 Events are hints: losing some, or the whole stream, costs only time.
//	R7 What the runtime has forgotten is ended only if it bears a sign that berth
//	   made it, or if nothing runs in it, and after the runtime was asked again.
//
// Goroutines: none of its own but one that waits for the header of the stream of
// events, for which Events waits. Events and Poll run on the caller's goroutine
// and call back on it; gRPC's own end with Close.
package cri
