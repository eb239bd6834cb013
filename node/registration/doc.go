// Package registration is the node as a server knows it: its Node object, the status
// of that, and the lease that says that the node is there.
//
// It registers the node, keeps what is the node's to say up to date, and follows
// its own object for what is others' to say: labels, taints, pod ranges. It
// refuses to share a name with another machine that is alive. The lease goes over
// a connection of its own: nothing that the node has to tell or to ask keeps it
// waiting. It decides nothing about pods.
//
// Goroutines: Run, which owns all state; the renewing of the lease and the
// following of the object, both Run's own, which it waits for.
package registration
