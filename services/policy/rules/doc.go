// Package rules turns network policies and the pods of a node into an nftables ruleset. It is the
// second half of network policy enforcement, after berth/services/policy/selection.
//
// A Compiler holds the policies, the pods of the node and the members of the groups that apply to
// them. It returns the ruleset as a whole, and as transactions of what has changed. The ruleset is a
// value; package berth/services/policy writes it to the kernel.
//
// The ruleset has two base chains at the forward hook. Each maps the pod's address to the chain of
// the pod with one lookup: chain egress maps the source, chain ingress the destination. The chain of
// a pod calls the chains of the policies that isolate it and drops what none of them accepts. The
// chain of a policy has a few lookups for each of its rules, in sets that policies share. The work
// for a packet therefore depends on the policies of its two pods only.
//
// The package is pure. A Compiler is not safe for concurrent use.
//
// Invariants:
//
//	R1 A packet to or from a pod of the node is accepted exactly if the policies allow it, with the
//	   exceptions R2 to R4.
//	R2 Packets of established connections and related ones, neighbor discovery and multicast listener
//	   discovery are accepted.
//	R3 A pod reaches itself.
//	R4 While there are policies, an address of the node's pod CIDRs that is not an address of a known
//	   pod neither sends nor receives. The same holds for any address that sends from a pod bridge.
//	R5 Without policies there are no rules.
//	R6 The transactions, applied in order, give the ruleset.
package rules
