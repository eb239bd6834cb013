package ruleset

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"berth/services"
)

// Explanation is how a node routes traffic for a Service.
type Explanation struct {
	// NotProxied is why this proxy does not serve the Service; empty if it does.
	NotProxied string
	Frontends  []ExplainedFrontend
	Ports      []ExplainedPort
}

// ExplainedFrontend is a frontend and what happens to its traffic.
type ExplainedFrontend struct {
	Kind     Kind
	Address  netip.Addr
	Protocol corev1.Protocol
	Port     uint16
	Target   Target
	// AnsweredLocally is true if the DNS server of the node answers instead of an endpoint.
	AnsweredLocally bool
	// OwnedBy is the Service that has the address and port instead; empty if this one has it.
	OwnedBy services.Name
}

// ExplainedPort has the endpoints of a port in one family.
type ExplainedPort struct {
	services.Port
	IPv6 bool
	// Topology is empty or the hints that restrict the endpoints.
	Topology  string
	Endpoints []ExplainedEndpoint
}

// ExplainedEndpoint is an endpoint and whether the node uses it.
type ExplainedEndpoint struct {
	Address   netip.AddrPort
	Node, Pod string
	// Cluster and Local are true if the node uses the endpoint for that traffic policy.
	Cluster, Local bool
	// Reason is why the node does not use the endpoint; empty if it does.
	Reason string
}

// Explain explains a Service. The state says who owns contested frontends; it may be nil.
func Explain(svc *services.Service, all []*services.Slice, node *Node, state *State) Explanation {
	var x Explanation
	switch {
	case svc.ProxiedBy != "":
		x.NotProxied = "label service.kubernetes.io/service-proxy-name selects another proxy: " + svc.ProxiedBy
	case svc.Type == corev1.ServiceTypeExternalName:
		x.NotProxied = "type ExternalName has no address"
	case svc.Headless:
		x.NotProxied = "headless: clients connect to the endpoints"
	case !svc.HasClusterIP():
		x.NotProxied = "no ClusterIP allocated"
	}
	families := []bool{false, true}
	if len(svc.ClusterIPs) > 0 {
		families = families[:0]
		for _, a := range svc.ClusterIPs {
			families = append(families, a.Unmap().Is6())
		}
	}
	for i := range svc.Ports {
		for _, ipv6 := range families {
			if p := explainPort(svc, &svc.Ports[i], ipv6, all, node); len(p.Endpoints) > 0 || x.NotProxied == "" {
				x.Ports = append(x.Ports, p)
			}
		}
	}
	x.Frontends = localFrontends(svc, node)
	for _, f := range Frontends(svc, node) {
		if f.Port < 0 {
			continue
		}
		p := &svc.Ports[f.Port]
		sel := Select(svc, p, f.ipv6, all, node)
		out := ExplainedFrontend{
			Kind: f.Kind, Address: f.Addr(), Protocol: p.Protocol, Port: f.Key.Port,
			Target: targetOf(svc, f.Kind, f.ipv6, &sel),
		}
		if state != nil {
			if owner, _, ok := state.Owner(f.Key); ok && owner != svc.Name {
				out.OwnedBy = owner
			}
		}
		x.Frontends = append(x.Frontends, out)
	}
	return x
}

// localFrontends returns the frontends at which the DNS server of the node answers.
func localFrontends(svc *services.Service, node *Node) (out []ExplainedFrontend) {
	if !Proxied(svc) {
		return nil
	}
	for _, a := range svc.ClusterIPs {
		for i := range svc.Ports {
			if p := &svc.Ports[i]; node.answers(a, p) {
				out = append(out, ExplainedFrontend{
					Kind: ClusterIP, Address: a, Protocol: p.Protocol, Port: p.Port, AnsweredLocally: true,
				})
			}
		}
	}
	return out
}

// explainPort explains the endpoints of a port.
func explainPort(
	svc *services.Service, port *services.Port, ipv6 bool, all []*services.Slice, node *Node,
) ExplainedPort {
	sel := Select(svc, port, ipv6, all, node)
	out := ExplainedPort{Port: *port, IPv6: ipv6, Topology: sel.Topology}
	uses := func(list []netip.AddrPort, a netip.AddrPort) bool {
		_, found := slices.BinarySearchFunc(list, a, netip.AddrPort.Compare)
		return found
	}
	endpoints := candidates(port, ipv6, all, node)
	for i := range endpoints {
		c := &endpoints[i]
		e := ExplainedEndpoint{
			Address: c.at, Node: c.Node, Pod: c.Pod, Cluster: uses(sel.Cluster, c.at), Local: uses(sel.Local, c.at),
		}
		if !e.Cluster && !e.Local {
			e.Reason = unusedReason(svc, c, &sel)
		}
		out.Endpoints = append(out.Endpoints, e)
	}
	return out
}

// unusedReason returns why a node does not use an endpoint.
func unusedReason(svc *services.Service, c *candidate, s *Selection) string {
	switch {
	case c.Terminating && c.Serving && !c.Ready:
		return "terminating, and other endpoints are ready"
	case c.Terminating && !c.Ready:
		return "terminating and not serving"
	case !c.Ready:
		return "not ready"
	case s.Topology == corev1.ServiceTrafficDistributionPreferSameNode:
		return "hints prefer endpoints for this node"
	case s.Topology == corev1.ServiceTrafficDistributionPreferSameZone:
		return "hints prefer endpoints for this zone"
	case svc.InternalLocal && !c.local:
		return "on another node, and internalTrafficPolicy is Local"
	}
	return "not used"
}
