// Package gateway connects the pods of this host to the pods of other nodes. It programs the routes
// to the other nodes' pod CIDRs through netlink and the masquerading of all other traffic through
// nftables, as package routes decides.
//
// In its network namespace it owns the routes of the main table with the protocol routes.Protocol,
// and the nftables tables "ip berth" and "ip6 berth". It changes nothing else. The last known nodes
// are saved in a file, so that a host that boots without its API server restores its routes, and a
// later start knows that there is something to clean up.
//
// Run is one goroutine, with another one while it is subscribed to route changes. All methods are
// safe for concurrent use. Routes and rules stay in place when Run returns.
//
// Invariants:
//
//	G1 The file exists before the host is changed. Remove deletes it last.
//	G2 The masquerading rules are replaced in one transaction.
//	G3 If the host is already in the desired state, neither the kernel nor the file
//	   is written.
package gateway
