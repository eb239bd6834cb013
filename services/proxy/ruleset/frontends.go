package ruleset

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"berth/services"
)

// Kind is the kind of a frontend's address. A lower kind has precedence if several Services claim an
// address and port.
type Kind uint8

// The kinds in order of precedence.
const (
	ClusterIP Kind = iota
	NodePort
	LoadBalancerIP
	ExternalIP
)

// String returns the name of the kind as the API spells it.
func (k Kind) String() string {
	return [...]string{"ClusterIP", "NodePort", "LoadBalancer", "ExternalIP"}[k]
}

// Key identifies a frontend. Protocol is the number of the transport protocol. A key with protocol 0
// and port 0 stands for all traffic to an address that has no other key.
type Key struct {
	addr     [16]byte
	Port     uint16
	Protocol uint8
	ipv6     bool
}

// NewKey returns the key of an address, protocol number and port.
func NewKey(a netip.Addr, protocol uint8, port uint16) Key {
	a = a.Unmap()
	return Key{addr: a.As16(), Port: port, Protocol: protocol, ipv6: a.Is6()}
}

// Addr returns the address.
func (k Key) Addr() netip.Addr {
	if a := netip.AddrFrom16(k.addr); k.ipv6 {
		return a
	}
	return netip.AddrFrom16(k.addr).Unmap()
}

// Protocol numbers.
const (
	TCP  uint8 = 6
	UDP  uint8 = 17
	SCTP uint8 = 132
)

// ProtocolNumber returns the number of a transport protocol, or 0 if it is not known.
func ProtocolNumber(p corev1.Protocol) uint8 {
	switch p {
	case corev1.ProtocolTCP:
		return TCP
	case corev1.ProtocolUDP:
		return UDP
	case corev1.ProtocolSCTP:
		return SCTP
	}
	return 0
}

// Frontend is a place at which a Service is reached.
type Frontend struct {
	Key
	Kind Kind
	// Port is the index of the port in the Service, or -1 if the frontend rejects what is sent to a
	// ClusterIP at a port that the Service does not have.
	Port int
}

// Proxied reports whether this proxy serves the Service.
func Proxied(svc *services.Service) bool {
	return svc.HasClusterIP() && !svc.Headless && svc.Type != corev1.ServiceTypeExternalName && svc.ProxiedBy == ""
}

// Frontends returns the frontends of a Service on a node. A Service is reached only in the address
// families of its ClusterIPs. Those at which the DNS server of the node answers are left out.
func Frontends(svc *services.Service, node *Node) (out []Frontend) {
	if svc == nil || !Proxied(svc) {
		return nil
	}
	for _, clusterIP := range svc.ClusterIPs {
		ipv6 := clusterIP.Unmap().Is6()
		if !slices.Contains(node.LocalDNS, clusterIP.Unmap()) {
			out = append(out, Frontend{NewKey(clusterIP, 0, 0), ClusterIP, -1})
		}
		for i := range svc.Ports {
			p := &svc.Ports[i]
			protocol := ProtocolNumber(p.Protocol)
			if protocol == 0 {
				continue
			}
			add := func(kind Kind, port uint16, all ...netip.Addr) {
				for _, a := range all {
					if a.Unmap().Is6() == ipv6 {
						out = append(out, Frontend{NewKey(a, protocol, port), kind, i})
					}
				}
			}
			if !node.answers(clusterIP, p) {
				add(ClusterIP, p.Port, clusterIP)
			}
			if p.NodePort != 0 {
				add(NodePort, p.NodePort, node.NodePortAddresses...)
			}
			add(LoadBalancerIP, p.Port, svc.LoadBalancerIPs...)
			add(ExternalIP, p.Port, svc.ExternalIPs...)
		}
	}
	return out
}

// externallyAccessible reports whether a port has frontends beside the ClusterIP.
func externallyAccessible(svc *services.Service, port *services.Port, ipv6 bool) bool {
	if port.NodePort != 0 {
		return true
	}
	for _, list := range [...][]netip.Addr{svc.LoadBalancerIPs, svc.ExternalIPs} {
		for _, a := range list {
			if a.Unmap().Is6() == ipv6 {
				return true
			}
		}
	}
	return false
}
