package ruleset

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"berth/services"
)

// Set is a set or map in the tables of the proxy. Each family has its own.
type Set uint8

// The sets and maps. A key is the address . protocol . port of a frontend.
const (
	// FrontendMap maps a key to the chain of its Target.
	FrontendMap Set = iota
	// MasqueradeMap maps the key of an external frontend to the chain that decides whether its
	// traffic is masqueraded.
	MasqueradeMap
	// EndpointMap maps key . index to the address . port of an endpoint.
	EndpointMap
	// LocalEndpointMap has the same for endpoints on this node.
	LocalEndpointMap
	// HandleMap maps key . index to the handle of an endpoint, for frontends with session affinity.
	HandleMap
	// LocalHandleMap has the same for endpoints on this node.
	LocalHandleMap
	// AffinityMap maps key . handle to the address . port of an endpoint.
	AffinityMap
	// LocalAffinityMap has the same for endpoints on this node.
	LocalAffinityMap
	// SourceSet has key . source range for frontends with a firewall.
	SourceSet
	// ClusterIPSet has all ClusterIPs.
	ClusterIPSet
	// HairpinSet has address . address for each endpoint on this node.
	HairpinSet
	// NumSets is the number of sets.
	NumSets
)

// Name returns the name of the set in the kernel.
func (s Set) Name() string {
	return [...]string{"frontends", "masquerade", "endpoints", "local-endpoints", "affinity-handles",
		"local-affinity-handles", "affinity-endpoints", "local-affinity-endpoints", "firewall-sources",
		"cluster-ips", "hairpin"}[s]
}

// IsVerdict reports whether the values are names of chains.
func (s Set) IsVerdict() bool { return s == FrontendMap || s == MasqueradeMap }

// Element is an element of a set or map in the byte layout of the kernel.
type Element struct {
	Set  Set
	IPv6 bool
	// Key is the key, and the first key of an interval.
	Key string
	// End is the last key of an interval; empty in sets without intervals.
	End string
	// Value is empty in sets.
	Value string
	// Comment is shown by "nft list".
	Comment string
}

// ID identifies an element.
type ID struct {
	Set      Set
	IPv6     bool
	Key, End string
}

// ID returns what identifies the element.
func (e *Element) ID() ID { return ID{e.Set, e.IPv6, e.Key, e.End} }

// maxComment is the maximum length of a comment that nft accepts.
const maxComment = 120

// appendAddr appends an address in network byte order.
func appendAddr(b []byte, a netip.Addr) []byte { return append(b, a.AsSlice()...) }

// appendPort appends a port in network byte order, padded to a word.
func appendPort(b []byte, port uint16) []byte {
	return append(binary.BigEndian.AppendUint16(b, port), 0, 0)
}

// Bytes returns the key as it is written in a set: address . protocol . port.
func (k Key) Bytes() []byte {
	b := make([]byte, 0, 44)
	b = append(appendAddr(b, k.Addr()), k.Protocol, 0, 0, 0)
	return appendPort(b, k.Port)
}

// ParseKey returns the frontend at the start of a key.
func ParseKey(b []byte, ipv6 bool) (k Key, ok bool) {
	n := 4
	if ipv6 {
		n = 16
	}
	if len(b) < n+8 {
		return k, false
	}
	a, _ := netip.AddrFromSlice(b[:n])
	return NewKey(a, b[n], binary.BigEndian.Uint16(b[n+4:])), true
}

// frontendElements returns the elements of a frontend.
func frontendElements(svc *services.Service, f Frontend, s *Selection, node *Node) []Element {
	if f.Port < 0 {
		return []Element{{Set: ClusterIPSet, IPv6: f.ipv6, Key: string(appendAddr(nil, f.Addr()))}}
	}
	t, key := targetOf(svc, f.Kind, f.ipv6, s), f.Bytes()
	out := make([]Element, 1, 2+t.Cluster+t.Local)
	out[0] = Element{
		Set: FrontendMap, IPv6: f.ipv6, Key: string(key), Value: t.Chain(), Comment: comment(svc, f),
	}
	if chain := t.masqueradeChain(); chain != "" {
		out = append(out, Element{Set: MasqueradeMap, IPv6: f.ipv6, Key: string(key), Value: chain})
	}
	switch {
	case t.Affinity > 0:
		if t.Cluster > 0 {
			out = appendAffinity(out, HandleMap, AffinityMap, f.ipv6, key, s.Cluster)
		}
		if t.Local > 0 {
			out = appendAffinity(out, LocalHandleMap, LocalAffinityMap, f.ipv6, key, s.Local)
		}
	default:
		if t.Cluster > 0 {
			out = appendEndpoints(out, EndpointMap, f.ipv6, key, s.Cluster)
		}
		if t.Local > 0 {
			out = appendEndpoints(out, LocalEndpointMap, f.ipv6, key, s.Local)
		}
	}
	if t.Firewall {
		for _, p := range allowedSources(svc, f, node) {
			first, last := appendAddr(slices.Clone(key), p.Addr()), appendAddr(slices.Clone(key), LastAddr(p))
			out = append(out, Element{Set: SourceSet, IPv6: f.ipv6, Key: string(first), End: string(last)})
		}
	}
	return out
}

// appendWord appends a number in the byte order of the host, as packet metadata has it.
func appendWord(b []byte, n uint32) []byte { return binary.NativeEndian.AppendUint32(b, n) }

func endpointBytes(a netip.AddrPort) string {
	return string(appendPort(appendAddr(make([]byte, 0, 20), a.Addr().Unmap()), a.Port()))
}

// appendEndpoints appends the elements of a list of endpoints.
func appendEndpoints(out []Element, set Set, ipv6 bool, key []byte, endpoints []netip.AddrPort) []Element {
	n := len(key)
	for i, e := range endpoints {
		index := string(appendWord(key[:n:n], uint32(i)))
		out = append(out, Element{Set: set, IPv6: ipv6, Key: index, Value: endpointBytes(e)})
	}
	return out
}

// appendAffinity appends the elements of a list of endpoints with session affinity. An endpoint whose
// handle is taken gets the next one.
func appendAffinity(out []Element, handles, affine Set, ipv6 bool, key []byte, endpoints []netip.AddrPort) []Element {
	n := len(key)
	taken := make(map[uint32]bool, len(endpoints))
	for i, e := range endpoints {
		h := handle(e)
		for taken[h] {
			h = h + 1 | handleMark
		}
		taken[h] = true
		index, value := string(appendWord(key[:n:n], uint32(i))), string(appendWord(nil, h))
		out = append(out,
			Element{Set: handles, IPv6: ipv6, Key: index, Value: value},
			Element{Set: affine, IPv6: ipv6, Key: string(key) + value, Value: endpointBytes(e)})
	}
	return out
}

// handleMark is in all handles. A handle is stored in the priority of a packet, and must differ from
// 0, from priorities of applications and from the traffic control classes that people configure.
const handleMark = 0xfe000000

// handle returns a number for an endpoint that does not depend on the other endpoints.
func handle(e netip.AddrPort) uint32 {
	const offset, prime = 2166136261, 16777619 // FNV-1a
	h := uint32(offset)
	for _, b := range []byte(endpointBytes(e)) {
		h = (h ^ uint32(b)) * prime
	}
	return h>>8 ^ h&0xff | handleMark
}

// comment returns the comment of a frontend: the kind, the Service and the port.
func comment(svc *services.Service, f Frontend) string {
	port := svc.Ports[f.Port].Name
	if port == "" {
		port = strconv.Itoa(int(svc.Ports[f.Port].Port))
	}
	text := svc.Name.String() + ":" + port + " " + f.Kind.String()
	if len(text) > maxComment {
		return text[:maxComment]
	}
	return text
}

// sourceRanges returns the source ranges of one family. A range of all addresses means that there is
// no restriction.
func sourceRanges(svc *services.Service, ipv6 bool) (out []netip.Prefix) {
	for _, p := range svc.LoadBalancerSourceRanges {
		switch {
		case p.Addr().Is6() != ipv6:
		case p.Bits() == 0:
			return nil
		default:
			out = append(out, p.Masked())
		}
	}
	return out
}

// allowedSources returns the ranges that may use a frontend, without ranges that others contain: the
// kernel refuses intervals that overlap. If the node itself is allowed, the address of the load
// balancer is too: the node may have this address and use it as its source.
func allowedSources(svc *services.Service, f Frontend, node *Node) []netip.Prefix {
	all := sourceRanges(svc, f.ipv6)
	for _, a := range node.Addresses {
		if slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(a) }) {
			all = append(all, netip.PrefixFrom(f.Addr(), f.Addr().BitLen()))
			break
		}
	}
	return outer(all)
}

// LastAddr returns the last address of a range.
func LastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// hairpinElement returns the element for an endpoint on this node.
func hairpinElement(a netip.Addr) Element {
	text := string(appendAddr(nil, a))
	return Element{Set: HairpinSet, IPv6: a.Is6(), Key: text + text}
}

// compareElements orders elements by set, family and key.
func compareElements(a, b Element) int {
	if a.Set != b.Set {
		return int(a.Set) - int(b.Set)
	}
	if a.IPv6 != b.IPv6 {
		if a.IPv6 {
			return 1
		}
		return -1
	}
	return strings.Compare(a.Key+a.End, b.Key+b.End)
}
