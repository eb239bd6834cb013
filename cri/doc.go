// Package cri is a client of the container runtime: the runtime and image services of the Container
// Runtime Interface (CRI) over gRPC, one file per verb.
//
// It owns the connection, a deadline for each verb, the mapping of runtime errors to the error
// kinds of package plan, the log links next to the kubelet's log layout, and the reading of
// termination messages. Package criconfig builds the configuration of sandboxes and containers.
// This package sends it and returns the state that the runtime reports.
//
// It never decides whether, when or how often an operation is done. It never retries a permanent
// failure and never pulls images. The only pod state that it keeps in memory is the path of each
// network namespace, which it can read again.
//
// Invariants, each checked by a test in test/cri that is marked with the number:
//
//	R1 Objects that berth did not create are never returned and never changed.
//	R2 A call that is interrupted and repeated creates nothing twice and leaks nothing.
//	   Its objects are found by their labels and attempt. They are adopted if they run
//	   and removed if they do not.
//	R3 Stopping or removing an object that does not exist succeeds.
//	R4 Every call ends: at its deadline, or with the caller's context.
//	R5 Every error is a *plan.Error whose kind is decided in this package.
//	R6 Events are hints. Losing some of them, or the whole stream, costs only time.
//	R7 A leaked task is deleted only if there is evidence that berth created it or if
//	   nothing runs in it, and only after the runtime was asked again.
//
// Goroutines: one waits for the header of the event stream, and Events waits for that goroutine.
// Events and Poll run and call back on the caller's goroutine. The goroutines of gRPC end with
// Close.
package cri
