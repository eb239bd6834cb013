// Package loadbalancer decides which addresses Services of type LoadBalancer have. It is pure: it maps
// Services, nodes and a pool to assignments and performs no actions.
//
// Without a pool, a Service has the addresses of the nodes that may serve it, and no other Service may
// use the same port of the same address. With a pool, a Service has one address per IP family that no
// other Service has.
//
// Invariants:
//
//	L1 No two Services have the same address (pool), or the same address, protocol and port (nodes).
//	L2 A Service keeps what it has while it is valid, whatever happens to other Services.
//	L3 A Service has no address outside the pool, and none of a node if there is a pool.
//	L4 With a pool, a Service without an address has a problem: its request cannot be met, or the
//	   pool has no free address.
//	L5 The result does not depend on the order of the input.
package loadbalancer
