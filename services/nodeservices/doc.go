// Package nodeservices runs the service proxy and the DNS server of the node, as package enablement
// decides.
//
// It remembers in the agent's local store that it has started the proxy, and removes the proxy's rules
// when a later configuration turns it off. What it has not started it does not remove.
//
// Goroutines: Services.Run is one goroutine. It starts and waits for one for the proxy, one for the
// announcer of load balancer addresses, one that follows
// the addresses of the DNS server, and one for the DNS server.
package nodeservices
