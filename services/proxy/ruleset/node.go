package ruleset

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"berth/services"
)

// Node is what the rules need to know about the node. It is never modified.
type Node struct {
	Name string
	// Zone is the value of the label topology.kubernetes.io/zone.
	Zone string
	// Addresses are the node's own addresses: if one is in the source ranges of a load balancer,
	// the node itself may use the load balancer.
	Addresses []netip.Addr
	// PodCIDRs are the ranges of this node's pods. Traffic from them is local. Without ranges no
	// traffic counts as local.
	PodCIDRs []netip.Prefix
	// NodePortAddresses are the addresses of the node that accept traffic for NodePorts.
	NodePortAddresses []netip.Addr
	// LocalDNS are the addresses on which the DNS server of the node answers. Queries to them are not
	// routed, even if they are ClusterIPs of a Service with endpoints elsewhere.
	LocalDNS []netip.Addr
}

// Equal reports whether two nodes lead to the same rules.
func (n *Node) Equal(m *Node) bool {
	return n.Name == m.Name && n.Zone == m.Zone && slices.Equal(n.Addresses, m.Addresses) &&
		slices.Equal(n.PodCIDRs, m.PodCIDRs) && slices.Equal(n.NodePortAddresses, m.NodePortAddresses) &&
		slices.Equal(n.LocalDNS, m.LocalDNS)
}

const dnsPort = 53

// answers reports whether the DNS server of the node answers at a port of an address.
func (n *Node) answers(a netip.Addr, p *services.Port) bool {
	return p.Port == dnsPort && p.Protocol != corev1.ProtocolSCTP && slices.Contains(n.LocalDNS, a.Unmap())
}

// IsLocalPod reports whether an address is in the range of this node's pods.
func (n *Node) IsLocalPod(a netip.Addr) bool {
	for _, p := range n.PodCIDRs {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// isLocal reports whether the endpoint runs on the node.
func (n *Node) isLocal(e *services.Endpoint) bool { return e.Node != "" && e.Node == n.Name }

// LocalPods returns the ranges of one family whose traffic is that of local pods.
func (n *Node) LocalPods(ipv6 bool) []netip.Prefix {
	otherFamily := func(p netip.Prefix) bool { return p.Addr().Is6() != ipv6 }
	return outer(slices.DeleteFunc(slices.Clone(n.PodCIDRs), otherFamily))
}

// Unmasqueraded returns the ranges of one family whose traffic to ClusterIPs keeps its source
// address: that of local pods, or all traffic if local pods are not known.
func (n *Node) Unmasqueraded(ipv6 bool) []netip.Prefix {
	if all := n.LocalPods(ipv6); len(all) > 0 {
		return all
	}
	if ipv6 {
		return []netip.Prefix{netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
	}
	return []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0)}
}

// outer returns the ranges that no other range contains, sorted. The kernel refuses overlapping
// intervals.
func outer(all []netip.Prefix) (out []netip.Prefix) {
	slices.SortFunc(all, func(a, b netip.Prefix) int {
		if c := a.Masked().Addr().Compare(b.Masked().Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	for _, p := range all {
		if n := len(out); n == 0 || !out[n-1].Contains(p.Addr()) {
			out = append(out, p.Masked())
		}
	}
	return out
}
