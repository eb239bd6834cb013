package ruleset

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"berth/services"
)

// Selection is the result of Select. Its addresses are sorted.
type Selection struct {
	// Cluster and Local are the endpoints that this node uses for traffic policy Cluster and Local.
	Cluster, Local []netip.AddrPort
	// HasAny is true if the Service has usable endpoints anywhere in the cluster.
	HasAny bool
	// Topology is empty, or PreferSameZone or PreferSameNode if hints restrict Cluster.
	Topology string
	// Serving are all endpoints that may keep their existing UDP flows.
	Serving []netip.AddrPort
}

// candidate is an endpoint of a port.
type candidate struct {
	*services.Endpoint
	at    netip.AddrPort
	local bool
}

// Select returns the endpoints of a port of a Service that a node uses for one address family.
func Select(svc *services.Service, port *services.Port, ipv6 bool, all []*services.Slice, node *Node) Selection {
	endpoints := candidates(port, ipv6, all, node)
	var s Selection
	if len(endpoints) == 0 {
		return s
	}
	external := externallyAccessible(svc, port, ipv6)
	if !svc.InternalLocal || external {
		s.Topology = topologyOf(endpoints, node)
		s.Cluster = usable(endpoints, func(e *candidate) bool { return node.hinted(e.Endpoint, s.Topology) },
			func(*candidate) bool { return true })
		s.HasAny = len(s.Cluster) > 0
	}
	if svc.InternalLocal || svc.ExternalLocal && external {
		local := func(e *candidate) bool { return e.local }
		s.Local = usable(endpoints, local, local)
		s.HasAny = s.HasAny || slices.ContainsFunc(endpoints, func(e candidate) bool {
			return e.Ready || e.Serving && e.Terminating
		})
	}
	s.Serving = addresses(endpoints, func(e *candidate) bool { return e.Serving })
	return s
}

// candidates returns the endpoints of a port, each address once. If EndpointSlices overlap, a local
// endpoint wins, then the first one.
func candidates(port *services.Port, ipv6 bool, all []*services.Slice, node *Node) []candidate {
	n := 0
	for _, slice := range all {
		if slice.IPv6 == ipv6 {
			n += len(slice.Endpoints)
		}
	}
	out := make([]candidate, 0, n)
	for _, slice := range all {
		if slice.IPv6 != ipv6 {
			continue
		}
		for _, p := range slice.Ports {
			if p.Name != port.Name || p.Protocol != port.Protocol {
				continue
			}
			for i := range slice.Endpoints {
				e := &slice.Endpoints[i]
				out = append(out, candidate{e, netip.AddrPortFrom(e.Address, p.Port), node.isLocal(e)})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b candidate) int {
		if c := a.at.Compare(b.at); c != 0 || a.local == b.local {
			return c
		}
		if a.local {
			return -1
		}
		return 1
	})
	return slices.CompactFunc(out, func(a, b candidate) bool { return a.at == b.at })
}

// usable returns the ready endpoints for which ready is true, or, if there are none, the terminating
// endpoints that still serve and for which terminating is true.
func usable(endpoints []candidate, ready, terminating func(*candidate) bool) []netip.AddrPort {
	out := addresses(endpoints, func(e *candidate) bool { return e.Ready && ready(e) })
	if len(out) > 0 {
		return out
	}
	return addresses(endpoints, func(e *candidate) bool {
		return !e.Ready && e.Serving && e.Terminating && terminating(e)
	})
}

func addresses(endpoints []candidate, want func(*candidate) bool) (out []netip.AddrPort) {
	for i := range endpoints {
		if want(&endpoints[i]) {
			out = append(out, endpoints[i].at)
		}
	}
	return out
}

// topologyOf returns which hints apply. Hints are used only if all ready endpoints have them and at
// least one is for this node or its zone.
func topologyOf(endpoints []candidate, node *Node) string {
	ready, allNode, allZone, forNode, forZone := false, true, true, false, false
	for i := range endpoints {
		e := &endpoints[i]
		if !e.Ready {
			continue
		}
		ready = true
		allNode = allNode && len(e.ForNodes) > 0
		allZone = allZone && len(e.ForZones) > 0
		forNode = forNode || slices.Contains(e.ForNodes, node.Name)
		forZone = forZone || slices.Contains(e.ForZones, node.Zone)
	}
	switch {
	case ready && allNode && forNode:
		return corev1.ServiceTrafficDistributionPreferSameNode
	case ready && allZone && forZone:
		return corev1.ServiceTrafficDistributionPreferSameZone
	}
	return ""
}

// hinted reports whether the hints allow this node to use the endpoint.
func (n *Node) hinted(e *services.Endpoint, topology string) bool {
	switch topology {
	case corev1.ServiceTrafficDistributionPreferSameNode:
		return slices.Contains(e.ForNodes, n.Name)
	case corev1.ServiceTrafficDistributionPreferSameZone:
		return slices.Contains(e.ForZones, n.Zone)
	}
	return true
}

// LocalReady returns the number of ready endpoints of a Service on this node, as the health check
// node port reports it. Pods with two addresses count once.
func LocalReady(svc *services.Service, all []*services.Slice, node *Node) int {
	if len(svc.ClusterIPs) == 0 {
		return 0
	}
	ipv6 := svc.ClusterIPs[0].Unmap().Is6()
	seen := map[netip.Addr]bool{}
	for _, slice := range all {
		for i := range slice.Endpoints {
			if e := &slice.Endpoints[i]; slice.IPv6 == ipv6 && e.Ready && node.isLocal(e) {
				seen[e.Address] = true
			}
		}
	}
	return len(seen)
}
