// Package localservices runs the Services of manifest files on a node without an API server: it assigns
// cluster IPs and node ports, selects the ready pods of the node as endpoints, and puts both into the
// services.Store that the service proxy and the DNS server read.
//
// Allocate and Endpoints are pure. Assigned addresses and ports are stored, so that a Service keeps them
// over restarts and reboots. A node that has joined an API server has the Services of the server only;
// those of files are reported and have no effect there.
//
// # Invariants
//
// Each invariant is covered by the model world of the tests.
//
//	L1 No two Services have an address or node port in common.
//	L2 A Service keeps its address and node ports as long as its file defines it, unless the
//	   file requests others.
//	L3 An endpoint is ready only if its pod is ready and not terminating.
//
// Goroutines: Services.Run is one goroutine, which waits for the one that follows the pods.
package localservices
