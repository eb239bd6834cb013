package loadbalancer

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// frontend is what a client connects to.
type frontend struct {
	address netip.Addr
	port    Port
}

// fromNodes assigns the addresses of nodes. A port of all nodes belongs to one Service, also while the
// Service has no endpoints on some of them: otherwise a Service would get and lose addresses with the
// pods of others.
func fromNodes(services []Service, nodes []Node) map[Name]Assignment {
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	owner := map[frontend]Name{}
	out := make(map[Name]Assignment, len(services))
	slices.SortStableFunc(services, func(a, b Service) int { return boolOrder(a.Admitted) - boolOrder(b.Admitted) })
	for i := range services {
		s := &services[i]
		claims, problem := s.claims(nodes)
		if problem == "" {
			problem = s.conflict(claims, owner)
		}
		if problem != "" {
			out[s.Name] = Assignment{Problem: problem}
			continue
		}
		var a Assignment
		for _, c := range claims {
			for _, p := range s.Ports {
				owner[frontend{c.address, p}] = s.Name
			}
			if c.used {
				a.Addresses = append(a.Addresses, c.address)
			}
		}
		out[s.Name] = a
	}
	return out
}

func boolOrder(first bool) int {
	if first {
		return 0
	}
	return 1
}

// claim is an address of a node that a Service has, or would have if the node could serve it.
type claim struct {
	address netip.Addr
	node    *Node
	used    bool
}

// claims returns the addresses of all nodes that the Service claims.
func (s *Service) claims(nodes []Node) (out []claim, problem string) {
	anyUsable := slices.ContainsFunc(nodes, func(n Node) bool { return n.Usable })
	found := map[netip.Addr]bool{}
	for _, ipv6 := range s.families() {
		for i := range nodes {
			n := &nodes[i]
			for _, a := range n.Addresses {
				if a.Is6() != ipv6 || found[a] || len(s.Wanted) > 0 && !slices.Contains(s.Wanted, a) {
					continue
				}
				found[a] = true
				// If no node is ready, the server has lost its nodes rather than the nodes their
				// pods: a Service keeps the addresses that it has.
				used := n.Usable || !anyUsable && slices.Contains(s.Current, a)
				out = append(out, claim{a, n, used && (!s.Local || s.Endpoints[n.Name])})
			}
		}
	}
	for _, w := range s.Wanted {
		if !found[w] {
			return nil, fmt.Sprintf("requested address %s is not an address of a node", w)
		}
	}
	// A problem then names an address that the Service would have.
	slices.SortStableFunc(out, func(a, b claim) int { return boolOrder(a.used) - boolOrder(b.used) })
	return out, ""
}

// conflict returns why the Service cannot have the ports of the addresses.
func (s *Service) conflict(claims []claim, owner map[frontend]Name) string {
	for _, c := range claims {
		for _, p := range s.Ports {
			if use := c.node.Reserved[p]; use != "" {
				return fmt.Sprintf("port %d/%s of %s is used by %s of node %s", p.Port, p.Protocol, c.address, use,
					c.node.Name)
			}
			if other, taken := owner[frontend{c.address, p}]; taken {
				return fmt.Sprintf("port %d/%s of %s belongs to Service %s", p.Port, p.Protocol, c.address, other)
			}
		}
	}
	return ""
}
