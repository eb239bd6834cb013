// Package controllers implements the controllers of the control server, with one file per
// controller. Every controller has the name of its counterpart in kube-controller-manager.
//
// A controller follows informers, which add the keys of affected objects to its work queue. A sync
// of one key compares the current objects with the desired state and makes the missing changes.
// Syncs are level-triggered: a key may be queued twice, late or for no reason. All changes go
// through the API, so a second instance or upstream's implementation can run at the same time.
//
// Goroutines: Run starts the workers of one controller and returns when all of them have ended. The
// only other goroutines are the parallel API calls of a batch, which the sync waits for.
package controllers
