package routes

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Protocol is what the kernel and `ip route` show of the routes that are berth's
// own: no routing daemon that has a name in iproute2's table uses it.
const Protocol = 98

// Node is another node of the cluster.
type Node struct {
	Name         string         `json:"name"`
	RegisteredAt time.Time      `json:"since"`     // of its registration: who came first keeps a range
	PodCIDRs     []netip.Prefix `json:"ranges"`    // of its pods
	Addresses    []netip.Addr   `json:"addresses"` // its own, the preferred first
}

// Link is an interface of this host with the networks that it is on.
type Link struct {
	Index    int
	Name     string
	Prefixes []netip.Prefix // with the host's own address, not masked
}

// Route is one of the host's main table, as far as it matters here.
type Route struct {
	Dst       netip.Prefix
	NextHop   netip.Addr // not valid: the range is on the link itself
	LinkIndex int
	Protocol  int
}

// Input is all that the answer depends on.
type Input struct {
	Enabled    bool           // false: nothing of berth's is wanted
	PodCIDRs   []netip.Prefix // pod ranges of this node
	Nodes      []Node         // the others
	Links      []Link
	Routes     []Route    // of the main table
	Masquerade Masquerade // what the host masquerades now, by berth's rules
}

// Masquerade is whose traffic leaves with the host's own address: what comes from
// Own and goes to none of Inside. Empty: nobody's.
type Masquerade struct{ Local, Cluster []AddressRange }

// AddressRange is all addresses from the first to the last.
type AddressRange struct{ First, Last netip.Addr }

// Equal reports whether both say the same.
func (m Masquerade) Equal(o Masquerade) bool {
	return slices.Equal(m.Local, o.Local) && slices.Equal(m.Cluster, o.Cluster)
}

// Problem is why the pods of a node are not reached.
type Problem struct{ Node, Message string }

// Plan is what to do, and what nobody can do anything about here.
type Plan struct {
	Remove, Add       []Route // removed first
	Masquerade        Masquerade
	MasqueradeChanged bool // of the masquerading: Masquerade is to replace what there is
	Reachable         int  // nodes to whose pods there is, or will be, a route for each range
	Problems          []Problem

	nodeByDst map[netip.Prefix]string // ranges that are wanted routes to
	reachable map[string]bool         // the nodes that Reached counts
}

// MarkRejected notes that the kernel has not done as planned with a route, and reports
// whether that is the trouble of one node, whose pods are not reached then.
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

// Decide answers what to do.
func Decide(in Input) Plan {
	p := Plan{nodeByDst: map[netip.Prefix]string{}, reachable: map[string]bool{}}
	wanted := map[netip.Prefix]Route{}
	var inside []netip.Prefix
	if in.Enabled && len(in.PodCIDRs) > 0 {
		inside = slices.Clone(in.PodCIDRs)
		for _, n := range inOrder(in.Nodes) {
			p.node(in, n, wanted, &inside)
		}
	}
	p.routes(in, wanted)
	if in.Enabled && len(in.PodCIDRs) > 0 {
		p.Masquerade = Masquerade{Local: MergeRanges(in.PodCIDRs), Cluster: MergeRanges(inside)}
	}
	p.MasqueradeChanged = !p.Masquerade.Equal(in.Masquerade)
	return p
}

// inOrder puts first who came first.
func inOrder(nodes []Node) []Node {
	return slices.SortedFunc(slices.Values(nodes), func(a, b Node) int {
		return cmp.Or(a.RegisteredAt.Compare(b.RegisteredAt), strings.Compare(a.Name, b.Name))
	})
}

// node finds the way to each range of a node.
func (p *Plan) node(in Input, n Node, wanted map[netip.Prefix]Route, inside *[]netip.Prefix) {
	reached := 0
	trouble := func(format string, args ...any) {
		p.Problems = append(p.Problems, Problem{n.Name, fmt.Sprintf(format, args...)})
	}
	ranges := slices.DeleteFunc(slices.Clone(n.PodCIDRs), func(r netip.Prefix) bool { return !r.IsValid() || !spoken(in.PodCIDRs, r) })
	for _, r := range ranges {
		r = r.Masked()
		if what := inTheWay(in, r, *inside); what != "" {
			trouble("its pod range %s overlaps %s", r, what)
			continue
		}
		*inside = append(*inside, r)
		route, why := way(in, n, r)
		if why != "" {
			trouble("%s", why)
			continue
		}
		wanted[r], p.nodeByDst[r] = route, n.Name
		if why := p.foreign(in, route); why != "" {
			trouble("%s", why)
			continue
		}
		reached++
	}
	if reached > 0 && reached == len(ranges) {
		p.Reachable++
		p.reachable[n.Name] = true
	}
}

// spoken reports whether this node's pods have addresses of the range's family.
func spoken(own []netip.Prefix, r netip.Prefix) bool {
	return slices.ContainsFunc(own, func(o netip.Prefix) bool { return o.Addr().Is4() == r.Addr().Is4() })
}

// inTheWay is what a route to the range would take the traffic of.
func inTheWay(in Input, r netip.Prefix, taken []netip.Prefix) string {
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

// way is the route to a range by the first of the node's addresses that is on a
// network of this host.
func way(in Input, n Node, r netip.Prefix) (Route, string) {
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
		return Route{}, fmt.Sprintf("it has no address of the family of its pod range %s", r)
	}
	if why := nobodys(in, first); why != "" {
		return Route{}, fmt.Sprintf("its address %s is %s: its pods in %s are not reached by it", first, why, r)
	}
	return Route{}, fmt.Sprintf("its address %s is on no network of this host: its pods in %s can only be reached through routers that know the way", first, r)
}

// nobodys says why no other host can have an address, though it is on a network of
// this one; empty: it can.
func nobodys(in Input, a netip.Addr) string {
	for _, l := range in.Links {
		for _, net := range l.Prefixes {
			switch {
			case net.Addr() == a:
				return "this host's own, at " + l.Name
			case a.Is4() && net.Bits() < 31 && net.Contains(a) && last(net) == a:
				return fmt.Sprintf("the broadcast address of %s at %s", net.Masked(), l.Name)
			}
		}
	}
	return ""
}

// onLink is the link on whose network an address of another host is; that of the
// pods is none.
func onLink(in Input, a netip.Addr) (int, bool) {
	best, bits := -1, -1
	if nobodys(in, a) != "" {
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

// foreign is what somebody else's routes do with a range; one that leads the same
// way is as good as berth's own.
func (p *Plan) foreign(in Input, want Route) string {
	for _, r := range sorted(in.Routes) {
		inside := want.Dst.Overlaps(r.Dst) && r.Dst.Bits() >= want.Dst.Bits()
		if r.Protocol == Protocol || !inside || r.NextHop == want.NextHop {
			continue
		}
		return fmt.Sprintf("somebody else's route leads %s, and stays as it is: pods in %s should be reached via %s", describe(in, r), want.Dst, want.NextHop)
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

// routes compares what is wanted with what there is.
func (p *Plan) routes(in Input, wanted map[netip.Prefix]Route) {
	there := map[netip.Prefix]bool{} // as it should be, or somebody else's
	for _, r := range sorted(in.Routes) {
		want, known := wanted[r.Dst]
		switch {
		case r.Protocol != Protocol:
			there[r.Dst] = true // R1
		case known && r == want:
			there[r.Dst] = true
		default:
			p.Remove = append(p.Remove, r)
		}
	}
	for _, r := range wanted {
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

// MergeRanges are the addresses of all ranges, in order; what adjoins is one.
func MergeRanges(ranges []netip.Prefix) []AddressRange {
	var all []AddressRange
	for _, r := range ranges {
		all = append(all, AddressRange{r.Masked().Addr(), last(r)})
	}
	slices.SortFunc(all, func(a, b AddressRange) int { return cmp.Or(a.First.Compare(b.First), a.Last.Compare(b.Last)) })
	var out []AddressRange
	for _, s := range all {
		if n := len(out); n > 0 && out[n-1].First.Is4() == s.First.Is4() && (s.First.Compare(out[n-1].Last) <= 0 || out[n-1].Last.Next() == s.First) {
			if s.Last.Compare(out[n-1].Last) > 0 {
				out[n-1].Last = s.Last
			}
			continue
		}
		out = append(out, s)
	}
	return out
}

// last is a range's last address.
func last(p netip.Prefix) netip.Addr {
	bytes := p.Addr().AsSlice()
	for bit := p.Bits(); bit < len(bytes)*8; bit++ {
		bytes[bit/8] |= 1 << (7 - bit%8)
	}
	a, _ := netip.AddrFromSlice(bytes)
	return a
}
