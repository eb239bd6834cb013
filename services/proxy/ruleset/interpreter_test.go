package ruleset

import (
	"net/netip"
	"slices"
	"strings"
)

// packet is the first packet of a connection.
type packet struct {
	src, dst netip.Addr
	protocol uint8
	port     uint16
	fromNode bool // the source is an address of the node
}

// verdict is what happens to a packet. An empty verdict leaves it alone.
type verdict struct {
	reject, drop bool
	endpoints    []netip.AddrPort // one of these is the new destination
	masquerade   []bool           // for each endpoint
}

// interpreter does with a packet what the chains of the kernel do with it.
type interpreter struct {
	elements map[ID]Element
	node     *Node
}

// run returns the verdict for a packet.
func (in interpreter) run(p packet) verdict {
	key := NewKey(p.dst, p.protocol, p.port)
	ipv6, bytes := p.dst.Is6(), string(key.Bytes())
	e, found := in.elements[ID{FrontendMap, ipv6, bytes, ""}]
	if !found {
		_, isClusterIP := in.elements[ID{ClusterIPSet, ipv6, string(appendAddr(nil, p.dst)), ""}]
		return verdict{reject: isClusterIP}
	}
	t, ok := ParseChain(e.Value)
	if !ok {
		panic("no target")
	}
	_, internal := in.elements[ID{ClusterIPSet, ipv6, string(appendAddr(nil, p.dst)), ""}]
	external := in.elements[ID{MasqueradeMap, ipv6, bytes, ""}].Value
	if t.Firewall && !in.allowed(bytes, p) {
		return verdict{drop: true}
	}
	contains := func(r netip.Prefix) bool { return r.Contains(p.src) }
	isLocalPod := slices.ContainsFunc(in.node.LocalPods(ipv6), contains)
	unmasqueraded := slices.ContainsFunc(in.node.Unmasqueraded(ipv6), contains)
	local, masquerade := false, false
	switch {
	case external == MasqueradeExternal:
		masquerade = true
	case external == MasqueradeExternalLocal:
		masquerade = p.fromNode && !isLocalPod
	case internal:
		masquerade = !unmasqueraded
	}
	switch t.Class {
	case Internal, External:
	case InternalLocal:
		local = true
	case ExternalLocal:
		local = !p.fromNode && !isLocalPod
	case Reject:
		return verdict{reject: true}
	case Drop:
		return verdict{drop: true}
	}
	n := t.Cluster
	if local {
		n = t.Local
	}
	if n == 0 {
		return verdict{drop: true}
	}
	v := verdict{}
	for i := range n {
		e := in.endpoint(local, t.Affinity > 0, ipv6, bytes, i)
		v.endpoints = append(v.endpoints, e)
		v.masquerade = append(v.masquerade, masquerade || in.hairpin(p.src, e.Addr()))
	}
	return v
}

// endpoint reads an endpoint of a frontend. The number in the target and the elements must agree.
func (in interpreter) endpoint(local, affinity, ipv6 bool, key string, i uint32) netip.AddrPort {
	byIndex, affine := EndpointMap, AffinityMap
	switch {
	case local && affinity:
		byIndex, affine = LocalHandleMap, LocalAffinityMap
	case affinity:
		byIndex = HandleMap
	case local:
		byIndex = LocalEndpointMap
	}
	e, found := in.elements[ID{byIndex, ipv6, key + string(appendWord(nil, i)), ""}]
	if affinity && found {
		e, found = in.elements[ID{affine, ipv6, key + e.Value, ""}]
	}
	if !found {
		panic("the number of endpoints is wrong")
	}
	n := len(e.Value) - 4
	a, _ := netip.AddrFromSlice([]byte(e.Value[:n]))
	return netip.AddrPortFrom(a, uint16(e.Value[n])<<8|uint16(e.Value[n+1]))
}

// hairpin reports whether traffic from the source to the endpoint comes back to the source.
func (in interpreter) hairpin(src, endpoint netip.Addr) bool {
	_, found := in.elements[ID{HairpinSet, src.Is6(), string(appendAddr(appendAddr(nil, src), endpoint)), ""}]
	return found
}

// allowed looks for the source in the intervals of the firewall.
func (in interpreter) allowed(key string, p packet) bool {
	at := key + string(appendAddr(nil, p.src))
	for id := range in.elements {
		if id.Set == SourceSet && strings.HasPrefix(id.Key, key) && id.Key <= at && at <= id.End {
			return true
		}
	}
	return false
}

// equal compares verdicts; the order of endpoints does not matter.
func (v verdict) equal(w verdict) bool {
	if v.reject != w.reject || v.drop != w.drop || len(v.endpoints) != len(w.endpoints) {
		return false
	}
	for i, e := range v.endpoints {
		j := slices.Index(w.endpoints, e)
		if j < 0 || v.masquerade[i] != w.masquerade[j] {
			return false
		}
	}
	return true
}
