// Package proxy is the Service proxy of the node. It writes the decisions of package ruleset to two
// nftables tables, berth-services of the families ip and ip6.
//
// # Owners
//
// The goroutine of Run owns the tables, the health check servers and the desired state. A second
// goroutine deletes stale conntrack entries, one pass at a time.
//
// # Invariants
//
// Each invariant is covered by a test.
//
//	P1 A change of a Service is one transaction. No packet meets a part of it.
//	P2 Only the two tables are read and written. What other tables have does not matter.
//	P3 Established connections do not pass the chains. They survive every change of the tables, the
//	   end of the process, and its restart.
//	P4 When Run ends, the rules stay. Only Remove deletes them.
//	P5 Before all Services and EndpointSlices are known, nothing is changed.
//	P6 After a failed transaction, after a change of the tables by others, and from time to time, the
//	   tables are compared with the desired state and repaired.
//	P7 UDP flows to a frontend lead to serving endpoints only: entries of conntrack for others are
//	   deleted within a second of the change.
package proxy
