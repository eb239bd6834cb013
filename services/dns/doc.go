// Package dns is the DNS server of a node. It answers names of the cluster domain from the Services
// and EndpointSlices in a services.Store, by version 1.1 of the Kubernetes DNS specification, and it
// forwards all other names to the resolvers of the node.
//
// Zone, a question and a Store give an Answer; Zone starts nothing and waits for nothing. Reverse
// finds Services by address. Forwarder has the cache and the upstream servers. Server reads the
// sockets and owns all goroutines that answer, and Metrics records with the names of CoreDNS.
//
// # Invariants
//
// Each invariant is covered by a test.
//
//	D1 An answer from the cluster domain is the answer of one state that the Store had between the
//	   arrival of the question and the answer.
//	D2 While the Store is not synced, a name that it does not have is answered with SERVFAIL, never
//	   with NXDOMAIN.
//	D3 Equal questions at the same time share one request to upstream servers, so that a loop of
//	   resolvers ends.
//	D4 The cache never uses more than its limit in bytes, and the server never has more than its
//	   limits of waiting queries and of connections, also for one client.
//	D5 A server that gets sockets reads them as they are: queries that arrived before wait in them.
package dns
