// Package services holds what a node knows about Services and their endpoints. The service proxy
// (services/proxy) and the DNS server (services/dns) read it.
//
// A Store keeps Services and EndpointSlices in a compact form: only the fields that the proxy and
// the DNS server use, parsed once. Values are immutable; a change replaces them. Consumers
// subscribe to names of changed Services and read the current values.
//
// The package does not decide how traffic is routed or what a query is answered, and it knows no
// source: objects come from an API server, from manifest files or from the local store of the agent.
// It starts no goroutines.
package services
