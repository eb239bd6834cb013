// Package enablement decides whether the service proxy and the DNS server of the node run, and on
// which addresses the DNS server answers.
//
// Both are on for a standalone node and with berth-control, unless the configuration says otherwise:
// other control planes have a proxy and a DNS server of their own. Which control plane a node has
// joined is known when the API server answers for the first time, and remembered for boots without it.
//
// The package runs neither of them. It starts no goroutines.
package enablement
