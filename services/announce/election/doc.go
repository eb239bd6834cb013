// Package election decides which node announces an address of a Service on a network segment. It is
// pure: times are arguments, and it performs no actions.
//
// Each node sends a Beat with its claims: the addresses that it can serve, how well, and whether it
// announces them. A node announces an address if its own claim ranks before those of all nodes that it
// has heard recently. No node needs the opinion of another one, and nothing but beats is needed, so an
// unreachable API server does not matter.
//
// Invariants, once the claims and the connections have not changed for a while (see Timing):
//
//	E1 Of the nodes that hear each other, at most one announces an address.
//	E2 If one of them can serve the address, one announces it, and none that serves it worse than
//	   another one.
//	E3 An address does not move while its announcer is heard and no other node serves it better. That
//	   holds when a node joins and when the agent of the announcer restarts within Timing.Timeout.
//	E4 At any time, a node announces only addresses that it can serve.
package election
