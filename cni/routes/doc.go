// Package routes decides how the pods of different hosts reach each other: which
// routes this host should have to the pod ranges of the others, and for whose
// traffic it stands with its own address. It is pure: what there is goes in, what
// to do comes out, and nothing is done here.
//
// A route leads to a node's pod range by way of the node's address. That takes a
// network that both hosts are on: a node behind a router is a trouble that is
// reported, for only the routers between could carry its pods' addresses.
//
// Masquerading is for what leaves the pod ranges of all nodes together: between
// pods the addresses stay what they are.
//
// Invariants:
//
//	R1 Only routes with berth's protocol are removed. One of somebody else's to the
//	   same range is left alone, and none is added beside it.
//	R2 No route leads to a range that overlaps this node's own, a network that the
//	   host is on, or the range of a node that had it before.
//	R3 After a plan was carried out the next one from the same input is empty.
//	R4 The order of nodes, links and routes changes nothing.
package routes
