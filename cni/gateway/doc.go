// Package gateway makes this host a gateway between its pods and those of the
// other nodes: routes to the nodes' pod ranges by netlink, and masquerading
// towards everything else by nftables, as cni/routes has decided.
//
// It owns, in the network namespace that it runs in, the routes of the main table
// with the protocol routes.Protocol, and the nftables tables "ip berth" and "ip6
// berth". Nothing else is ever changed. What it was last told of the nodes is kept
// in a file, so that a host that boots without its server has its routes back, and
// a later start knows that there is something to take away.
//
// Run is one goroutine, and one more for as long as the kernel is listened to.
// Everything may be called at the same time. The end of Run takes nothing away:
// pods stay, and so do their ways.
//
// Invariants:
//
//	G1 Before anything of the host is changed the file is there; Remove takes it
//	   away last.
//	G2 Masquerading changes in one step: no packet finds half of it.
//	G3 Where all is as it should be, nothing is written: not to the kernel, not to
//	   the file.
package gateway
