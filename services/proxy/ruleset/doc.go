// Package ruleset decides what the Service proxy of a node writes to the kernel. It is pure: from
// Services, their EndpointSlices and the node it computes elements of nftables sets and maps.
//
// # Model
//
// A frontend is an address, protocol and port at which a Service is reached: a ClusterIP, a NodePort
// on an address of the node, a load balancer address or an external address. For each frontend the
// map "frontends" has the chain for its Target: how its traffic is handled, and how many endpoints it
// has. The map "endpoints" has the endpoints of the frontend by index, and "local-endpoints" those on
// this node, for traffic policy Local. A chain reads the maps by the destination of the packet and a
// random index. Frontends with equal targets share it: the number of Services changes elements, not
// rules, and a packet costs the same number of lookups with one Service and with 10,000.
//
// With session affinity the maps have a handle for each endpoint, a number that does not change when
// other endpoints come and go. The kernel stores the handle for the client.
//
// # Invariants
//
// Each invariant is covered by a test.
//
//	R1 What the elements do with a packet is what Kubernetes specifies for it; the test compares
//	   them with an independent description of kube-proxy's behavior.
//	R2 The changes that Apply returns turn the elements of the old state into those of the new state.
//	R3 A frontend belongs to one Service. Among several claims the kind of the address decides first
//	   (ClusterIP, NodePort, load balancer address, external address), then the name.
//	R4 A change of one Service returns no elements of frontends that the Service neither had nor has.
package ruleset
