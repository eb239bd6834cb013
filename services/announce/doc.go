// Package announce announces addresses of Services of type LoadBalancer on the networks of the node. It
// answers ARP requests and neighbor solicitations for the addresses that this node has been elected for
// (see package election), and sends gratuitous ARP and unsolicited neighbor advertisements when an address
// moves to this node.
//
// Only addresses of Services that the control plane marks are announced (services.Service.Announce), and
// only on an interface with a network that contains the address. The addresses are not assigned to
// interfaces: the Service proxy routes them.
//
// Before an announcement, the node asks whether another host of the network has the address. If one that is
// no node answers, no node announces the address until it is free.
//
// Agents exchange beats as Ethernet frames on the same network. They therefore need no address, port or
// firewall rule, and cannot come from pods or from other networks.
//
// # Owners
//
// The goroutine of Run owns everything. For each interface it starts three goroutines that read packets,
// and answers requests in them. They end before Run returns, as does the one that follows the interfaces.
//
// Without Services to announce, there are no sockets and no goroutines but Run.
package announce
