package ruleset

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"berth/services"
)

// oracle says what kube-proxy does with a packet. It shares no code with the package: it looks for
// the Service of the packet among all Services, and for its endpoints among all EndpointSlices.
func oracle(all map[services.Name]Update, node *Node, p packet) verdict {
	u, port, kind := find(all, node, p)
	if u.Service == nil {
		for _, u := range all {
			if proxied(u.Service) && slices.Contains(u.Service.ClusterIPs, p.dst) {
				return verdict{reject: true}
			}
		}
		return verdict{}
	}
	svc := u.Service
	if kind == "lb" && !sourceAllowed(svc, node, p) {
		return verdict{drop: true}
	}
	fromPod := node.IsLocalPod(p.src)
	local := kind == "cluster" && svc.InternalLocal || kind != "cluster" && svc.ExternalLocal && !fromPod && !p.fromNode
	ready, terminating := endpointsOf(u, port, p.dst.Is6())
	if len(ready)+len(terminating) == 0 {
		return verdict{reject: true}
	}
	use := choose(ready, node, local)
	if len(use) == 0 {
		use = choose(terminating, node, local)
	}
	if !local {
		use = preferred(use, node)
	}
	if len(use) == 0 {
		return verdict{drop: true}
	}
	var v verdict
	for _, e := range use {
		masquerade := p.src == e.Address && onNode(all, node, e.Address)
		switch {
		case kind == "cluster":
			masquerade = masquerade || !fromPod && len(node.PodCIDRs) > 0
		case svc.ExternalLocal:
			masquerade = masquerade || p.fromNode && !fromPod
		default:
			masquerade = true
		}
		v.endpoints = append(v.endpoints, netip.AddrPortFrom(e.Address, e.port))
		v.masquerade = append(v.masquerade, masquerade)
	}
	return v
}

// onNode reports whether an address is that of a local pod, as far as any Service knows.
func onNode(all map[services.Name]Update, node *Node, a netip.Addr) bool {
	if node.IsLocalPod(a) {
		return true
	}
	for _, u := range all {
		for _, s := range u.Slices {
			if proxied(u.Service) && slices.ContainsFunc(s.Endpoints, func(e services.Endpoint) bool {
				return e.Address == a && e.Node == node.Name
			}) {
				return true
			}
		}
	}
	return false
}

func proxied(svc *services.Service) bool {
	return svc.Type != corev1.ServiceTypeExternalName && !svc.Headless && svc.ProxiedBy == ""
}

// find returns the Service that a packet is for. The address decides first, then the name.
func find(all map[services.Name]Update, node *Node, p packet) (u Update, port services.Port, kind string) {
	names := make([]services.Name, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	slices.SortFunc(names, services.Name.Compare)
	for _, kind := range []string{"cluster", "node", "lb", "external"} {
		for _, name := range names {
			svc := all[name].Service
			sameFamily := func(a netip.Addr) bool { return a.Is6() == p.dst.Is6() }
			if !proxied(svc) || !slices.ContainsFunc(svc.ClusterIPs, sameFamily) {
				continue
			}
			for _, port := range svc.Ports {
				number := map[corev1.Protocol]uint8{"TCP": 6, "UDP": 17, "SCTP": 132}[port.Protocol]
				at, addresses := port.Port, map[string][]netip.Addr{
					"cluster": svc.ClusterIPs, "node": node.NodePortAddresses, "lb": svc.LoadBalancerIPs,
					"external": svc.ExternalIPs}[kind]
				if kind == "node" {
					at = port.NodePort
				}
				if number == p.protocol && at == p.port && at != 0 && slices.Contains(addresses, p.dst) {
					return all[name], port, kind
				}
			}
		}
	}
	return Update{}, services.Port{}, ""
}

func sourceAllowed(svc *services.Service, node *Node, p packet) bool {
	restricted, allowed, nodeAllowed := false, false, false
	for _, r := range svc.LoadBalancerSourceRanges {
		if r.Addr().Is6() != p.dst.Is6() {
			continue
		}
		if r.Bits() == 0 {
			return true
		}
		restricted = true
		allowed = allowed || r.Contains(p.src)
		nodeAllowed = nodeAllowed || slices.ContainsFunc(node.Addresses, r.Contains)
	}
	return !restricted || allowed || nodeAllowed && p.src == p.dst
}

// backend is an endpoint with its port.
type backend struct {
	services.Endpoint
	port uint16
}

// endpointsOf returns the ready endpoints of a port and the terminating ones that serve.
func endpointsOf(u Update, port services.Port, ipv6 bool) (ready, terminating []backend) {
	seen := map[netip.AddrPort]bool{}
	for _, s := range u.Slices {
		for _, p := range s.Ports {
			if p.Name != port.Name || p.Protocol != port.Protocol || s.IPv6 != ipv6 {
				continue
			}
			for _, e := range s.Endpoints {
				at := netip.AddrPortFrom(e.Address, p.Port)
				switch {
				case seen[at]:
				case e.Ready:
					ready = append(ready, backend{e, p.Port})
				case e.Serving && e.Terminating:
					terminating = append(terminating, backend{e, p.Port})
				}
				seen[at] = true
			}
		}
	}
	return ready, terminating
}

func choose(all []backend, node *Node, local bool) []backend {
	return slices.DeleteFunc(slices.Clone(all), func(e backend) bool { return local && e.Node != node.Name })
}

// preferred applies the hints for the node, then those for its zone.
func preferred(all []backend, node *Node) []backend {
	for _, hint := range []struct {
		of   func(backend) []string
		want string
	}{
		{func(e backend) []string { return e.ForNodes }, node.Name},
		{func(e backend) []string { return e.ForZones }, node.Zone},
	} {
		without := func(e backend) bool { return len(hint.of(e)) == 0 }
		other := func(e backend) bool { return !slices.Contains(hint.of(e), hint.want) }
		if mine := slices.DeleteFunc(slices.Clone(all), other); len(mine) > 0 &&
			!slices.ContainsFunc(all, without) && slices.ContainsFunc(all, func(e backend) bool { return e.Ready }) {
			return mine
		}
	}
	return all
}

// sorted orders updates by name.
func sorted(all map[services.Name]Update) (out []Update) {
	for _, u := range all {
		out = append(out, u)
	}
	slices.SortFunc(out, func(a, b Update) int { return cmp.Compare(a.Name.String(), b.Name.String()) })
	return out
}
