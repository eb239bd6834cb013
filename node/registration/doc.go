// Package registration keeps the node registered with the API server: the Node object, its status,
// and the node lease.
//
// It registers the node, updates the fields that the node owns, and watches the Node object for the
// fields that others own: labels, taints, pod CIDRs. It refuses to use a node name that belongs to
// another live machine. The lease is renewed over a separate connection, so that no other request
// delays it. The package makes no decisions about pods.
//
// Run owns all state and waits for its two goroutines, which renew the lease and watch the object.
package registration
