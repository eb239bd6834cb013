package routes

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Protocol identifies berth's routes in the kernel and in the output of `ip route`. No routing
// daemon in iproute2's table uses this number.
const Protocol = 98

// Node is another node of the cluster.
type Node struct {
	Name         string         `json:"name"`
	RegisteredAt time.Time      `json:"since"`     // the earlier node keeps an overlapping range
	PodCIDRs     []netip.Prefix `json:"ranges"`    // of its pods
	Addresses    []netip.Addr   `json:"addresses"` // addresses of the node, preferred first
}

// Link is an interface of this host and its networks.
type Link struct {
	Index    int
	Name     string
	Prefixes []netip.Prefix // with the host's own address, not masked
}

// Route is a route of the host's main table.
type Route struct {
	Dst       netip.Prefix
	NextHop   netip.Addr // invalid for a directly connected destination
	LinkIndex int
	Protocol  int
}

// Input is everything that the decision depends on.
type Input struct {
	Enabled    bool           // false: remove everything that belongs to berth
	PodCIDRs   []netip.Prefix // pod CIDRs of this node
	Nodes      []Node         // the other nodes
	Links      []Link
	Routes     []Route    // main table
	Masquerade Masquerade // current rules of berth
}

// Masquerade selects the traffic that is masqueraded: from Local to any address that is not in
// Cluster. Empty: none.
type Masquerade struct{ Local, Cluster []AddressRange }

// AddressRange is the range of addresses from First to Last, inclusive.
type AddressRange struct{ First, Last netip.Addr }

// Equal reports whether both are the same.
func (m Masquerade) Equal(o Masquerade) bool {
	return slices.Equal(m.Local, o.Local) && slices.Equal(m.Cluster, o.Cluster)
}

// Problem is why the pods of a node are unreachable.
type Problem struct{ Node, Message string }

// Plan lists the changes to the host and the problems that this host cannot solve.
type Plan struct {
	Remove, Add       []Route // removed first
	Masquerade        Masquerade
	MasqueradeChanged bool // Masquerade differs from the current rules
	Reachable         int  // number of nodes with a route for each of their pod CIDRs
	Problems          []Problem

	nodeByDst map[netip.Prefix]string // node of each desired route
	reachable map[string]bool         // the nodes counted by Reachable
}

// MarkRejected records that the kernel rejected a change of a route. It returns false if the route
// belongs to no node.
func (p *Plan) MarkRejected(r Route, why string) bool {
	n, ok := p.nodeByDst[r.Dst]
	if !ok {
		return false
	}
	p.Problems = append(p.Problems, Problem{n, why})
	if p.reachable[n] {
		delete(p.reachable, n)
		p.Reachable--
	}
	return true
}

// Decide computes the plan.
func Decide(in Input) Plan {
	p := Plan{nodeByDst: map[netip.Prefix]string{}, reachable: map[string]bool{}}
	desired := map[netip.Prefix]Route{}
	var cluster []netip.Prefix
	if in.Enabled && len(in.PodCIDRs) > 0 {
		cluster = slices.Clone(in.PodCIDRs)
		for _, n := range byRegistration(in.Nodes) {
			p.planNode(in, n, desired, &cluster)
		}
	}
	p.diffRoutes(in, desired)
	if in.Enabled && len(in.PodCIDRs) > 0 {
		p.Masquerade = Masquerade{Local: MergeRanges(in.PodCIDRs), Cluster: MergeRanges(cluster)}
	}
	p.MasqueradeChanged = !p.Masquerade.Equal(in.Masquerade)
	return p
}

// byRegistration sorts nodes by registration time, then by name.
func byRegistration(nodes []Node) []Node {
	return slices.SortedFunc(slices.Values(nodes), func(a, b Node) int {
		return cmp.Or(a.RegisteredAt.Compare(b.RegisteredAt), strings.Compare(a.Name, b.Name))
	})
}

// planNode plans the routes to the pod CIDRs of a node.
func (p *Plan) planNode(in Input, n Node, desired map[netip.Prefix]Route, cluster *[]netip.Prefix) {
	reached := 0
	problem := func(format string, args ...any) {
		p.Problems = append(p.Problems, Problem{n.Name, fmt.Sprintf(format, args...)})
	}
	ranges := slices.DeleteFunc(
		slices.Clone(n.PodCIDRs),
		func(r netip.Prefix) bool { return !r.IsValid() || !hasFamily(in.PodCIDRs, r) },
	)
	for _, r := range ranges {
		r = r.Masked()
		if what := overlapping(in, r, *cluster); what != "" {
			problem("pod CIDR %s overlaps %s", r, what)
			continue
		}
		*cluster = append(*cluster, r)
		route, why := routeVia(in, n, r)
		if why != "" {
			problem("%s", why)
			continue
		}
		desired[r], p.nodeByDst[r] = route, n.Name
		if why := p.foreignRoute(in, route); why != "" {
			problem("%s", why)
			continue
		}
		reached++
	}
	if reached > 0 && reached == len(ranges) {
		p.Reachable++
		p.reachable[n.Name] = true
	}
}

// hasFamily reports whether this node has pod CIDRs of the same address family.
func hasFamily(own []netip.Prefix, r netip.Prefix) bool {
	return slices.ContainsFunc(own, func(o netip.Prefix) bool { return o.Addr().Is4() == r.Addr().Is4() })
}

// overlapping describes what a route to the range would overlap. Empty: nothing.
func overlapping(in Input, r netip.Prefix, taken []netip.Prefix) string {
	for _, o := range in.PodCIDRs {
		if o.Overlaps(r) {
			return fmt.Sprintf("that of this node, %s", o)
		}
	}
	for _, l := range in.Links {
		for _, net := range l.Prefixes {
			if net.Overlaps(r) {
				return fmt.Sprintf("the network %s of %s", net.Masked(), l.Name)
			}
		}
	}
	for _, t := range taken {
		if t.Overlaps(r) {
			return fmt.Sprintf("that of another node, %s", t)
		}
	}
	return ""
}

// routeVia returns the route to a range through the first node address that is on a network of this
// host, or the reason why there is none.
func routeVia(in Input, n Node, r netip.Prefix) (Route, string) {
	var first netip.Addr
	for _, a := range n.Addresses {
		if a.Is4() != r.Addr().Is4() {
			continue
		}
		if !first.IsValid() {
			first = a
		}
		if link, ok := onLink(in, a); ok {
			return Route{Dst: r, NextHop: a, LinkIndex: link, Protocol: Protocol}, ""
		}
	}
	if !first.IsValid() {
		return Route{}, fmt.Sprintf("the node has no address in the family of its pod CIDR %s", r)
	}
	if why := unusableAddress(in, first); why != "" {
		return Route{}, fmt.Sprintf("node address %s is %s: pods in %s are unreachable", first, why, r)
	}
	return Route{}, fmt.Sprintf(
		"node address %s is not on a network of this host: pods in %s "+
			"are reachable only through routers with a route to them",
		first,
		r,
	)
}

// unusableAddress returns why an address on a network of this host cannot belong to another host.
// It is empty if the address is usable.
func unusableAddress(in Input, a netip.Addr) string {
	for _, l := range in.Links {
		for _, net := range l.Prefixes {
			switch {
			case net.Addr() == a:
				return "an address of this host on " + l.Name
			case a.Is4() && net.Bits() < 31 && net.Contains(a) && lastAddress(net) == a:
				return fmt.Sprintf("the broadcast address of %s on %s", net.Masked(), l.Name)
			}
		}
	}
	return ""
}

// onLink returns the link with the most specific network that contains the address of another host.
// Links with pod networks are ignored.
func onLink(in Input, a netip.Addr) (int, bool) {
	best, bits := -1, -1
	if unusableAddress(in, a) != "" {
		return best, false
	}
	for _, l := range in.Links {
		for _, net := range l.Prefixes {
			ofPods := slices.ContainsFunc(in.PodCIDRs, net.Overlaps)
			if ofPods || !net.Contains(a) {
				continue
			}
			if net.Bits() > bits || net.Bits() == bits && l.Index < best {
				best, bits = l.Index, net.Bits()
			}
		}
	}
	return best, best >= 0
}

// foreignRoute reports a conflicting route of another component. One with the same next hop is as
// good as berth's own.
func (p *Plan) foreignRoute(in Input, want Route) string {
	for _, r := range sorted(in.Routes) {
		cluster := want.Dst.Overlaps(r.Dst) && r.Dst.Bits() >= want.Dst.Bits()
		if r.Protocol == Protocol || !cluster || r.NextHop == want.NextHop {
			continue
		}
		return fmt.Sprintf(
			"conflicting route %s of another component: pods in %s should be reached via %s",
			describe(in, r),
			want.Dst,
			want.NextHop,
		)
	}
	return ""
}

func describe(in Input, r Route) string {
	text := r.Dst.String()
	if r.NextHop.IsValid() {
		text += " via " + r.NextHop.String()
	}
	if at := slices.IndexFunc(in.Links, func(l Link) bool { return l.Index == r.LinkIndex }); at >= 0 {
		text += " to " + in.Links[at].Name
	}
	return fmt.Sprintf("%s (protocol %d)", text, r.Protocol)
}

// diffRoutes compares the desired routes with the current ones.
func (p *Plan) diffRoutes(in Input, desired map[netip.Prefix]Route) {
	there := map[netip.Prefix]bool{} // as desired, or owned by another component
	for _, r := range sorted(in.Routes) {
		want, known := desired[r.Dst]
		switch {
		case r.Protocol != Protocol:
			there[r.Dst] = true // R1
		case known && r == want:
			there[r.Dst] = true
		default:
			p.Remove = append(p.Remove, r)
		}
	}
	for _, r := range desired {
		if !there[r.Dst] {
			p.Add = append(p.Add, r)
		}
	}
	p.Add = sorted(p.Add)
}

func sorted(in []Route) []Route {
	return slices.SortedFunc(slices.Values(in), func(a, b Route) int {
		return cmp.Or(a.Dst.Addr().Compare(b.Dst.Addr()), cmp.Compare(a.Dst.Bits(), b.Dst.Bits()),
			a.NextHop.Compare(b.NextHop), cmp.Compare(a.LinkIndex, b.LinkIndex), cmp.Compare(a.Protocol, b.Protocol))
	})
}

// MergeRanges returns the addresses of all CIDRs in order. Adjacent ranges are merged.
func MergeRanges(ranges []netip.Prefix) []AddressRange {
	var all []AddressRange
	for _, r := range ranges {
		all = append(all, AddressRange{r.Masked().Addr(), lastAddress(r)})
	}
	slices.SortFunc(all, func(a, b AddressRange) int {
		return cmp.Or(a.First.Compare(b.First), a.Last.Compare(b.Last))
	})
	var out []AddressRange
	for _, s := range all {
		if n := len(out); n > 0 && out[n-1].First.Is4() == s.First.Is4() && (s.First.Compare(out[n-1].Last) <= 0 ||
			out[n-1].Last.Next() == s.First) {
			if s.Last.Compare(out[n-1].Last) > 0 {
				out[n-1].Last = s.Last
			}
			continue
		}
		out = append(out, s)
	}
	return out
}

// lastAddress returns the last address of a CIDR.
func lastAddress(p netip.Prefix) netip.Addr {
	bytes := p.Addr().AsSlice()
	for bit := p.Bits(); bit < len(bytes)*8; bit++ {
		bytes[bit/8] |= 1 << (7 - bit%8)
	}
	a, _ := netip.AddrFromSlice(bytes)
	return a
}
