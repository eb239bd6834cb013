// Package serviceips gives services what a cluster gives them: addresses and ports
// of nodes (wants.go says which, allot.go chooses, store.go does it with every
// write, repair.go sets right what a crash has left), and the service default/kubernetes, by which pods
// find the servers (kubernetes.go).
//
// Who holds what is in the store, one key per address and per port, made in one
// transaction of the store (claims.go). So of any number of servers one gets it,
// and a server that is killed loses nothing: a claim comes before the service that
// it is for, and is given back after the service is gone. A claim that is left
// with no service is dropped by Repair, on its second look.
//
//	free ──take──► claimed ──service stored──► held ──service deleted──► free
//	                  └──── refused, or crash and two looks ────────────► free
//
// Goroutines: none; Repairer.Run and Kubernetes.Run are their callers'.
package serviceips
