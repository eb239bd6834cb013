// Package controllers implements the controllers of the control server, with one file per
// controller. Every controller has the name of its counterpart in kube-controller-manager.
//
// A controller follows informers, which add the keys of affected objects to its work queue. A sync
// of one key compares the current objects with the desired state and makes the missing changes.
// Syncs are level-triggered: a key may be queued twice, late or for no reason. All changes go
// through the API, so a second instance or upstream's implementation can run at the same time.
//
// # How to add a workload kind
//
// A workload kind is a pure function Decide in a package below workloads, and a file here that describes the kind to
// the reconciler in a workload value: its objects and children as object types (newObjectType joins an informer with
// the methods of the typed client), the selector by which it adopts children, decide, which collects the children with
// childrenOf or childrenAndOrphansOf and calls Decide, and how its status is read and written. List each type that
// Decide reads in children, written or related: informers that are not listed are not waited for. The
// registration is a name and a function that calls newReconciler in descriptors (controllers.go), and the kind loses
// its StoredOnlyWarning in package registry. The reconciler executes decisions as documented in package workloads.
// Decide must not modify objects of the informers.
//
// Goroutines: Run starts the workers of one controller and returns when all of them have ended. The
// only other goroutines are the parallel API calls of a batch, which the sync waits for.
package controllers
