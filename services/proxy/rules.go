package proxy

import (
	"encoding/binary"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"berth/services/proxy/ruleset"
)

// family has the differences between the tables for IPv4 and IPv6.
type family struct {
	number   uint8
	ipv6     bool
	words    uint32 // of an address
	src, dst uint32 // offsets of the addresses in the header
	addrType uint32 // of nft
	reject   uint8  // ICMP code for an unreachable port
	ctDst    expr.CtKey
}

// Keys of conntrack that the library does not have: the destination address of one family.
const (
	ctDstIP  expr.CtKey = 20
	ctDstIP6 expr.CtKey = 22
)

// The nft types of the fields of keys.
const (
	typeIPv4Addr    = 7
	typeIPv6Addr    = 8
	typeInetProto   = 12
	typeInetService = 13
	typeMark        = 19
	typeClassID     = 23
)

func ipv4() family { return family{unix.NFPROTO_IPV4, false, 1, 12, 16, typeIPv4Addr, 3, ctDstIP} }
func ipv6() family { return family{unix.NFPROTO_IPV6, true, 4, 8, 24, typeIPv6Addr, 4, ctDstIP6} }

func families() [2]family { return [2]family{ipv4(), ipv6()} }

func familyOf(v6 bool) family {
	if v6 {
		return ipv6()
	}
	return ipv4()
}

// rule is a rule of a chain.
type rule struct {
	chain   string
	exprs   []expr.Any
	comment string
}

// Chains and sets that do not depend on the Services.
const (
	tableName = "berth-services"

	preroutingChain         = "prerouting"
	outputChain             = "output"
	postroutingChain        = "postrouting"
	servicesChain           = "services"
	rejectChain             = "no-endpoints"
	masqueradeInternalChain = "masquerade-internal"

	affinityMap      = "affinity"         // address . protocol . port . client: handle
	localPodsSet     = "local-pods"       // ranges of this node's pods
	unmasqueradedSet = "clusterip-direct" // sources that are not masqueraded to ClusterIPs

	// structureVersion is the comment of the first rule. A table with another version is replaced.
	// Change it with every change of chains, sets or rules.
	structureVersion = "berth service proxy (1)"
)

// reg returns the number of a 32 bit register.
func reg(n uint32) uint32 { return unix.NFT_REG32_00 + n }

// Expressions. Each returns the expressions to append to a rule.

func (f family) header(offset, to uint32) expr.Any {
	return &expr.Payload{
		DestRegister: reg(to), Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4 * f.words,
	}
}

// key loads address . protocol . port of the destination.
func (f family) key() []expr.Any {
	return []expr.Any{
		f.header(f.dst, 0),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg(f.words)},
		&expr.Payload{DestRegister: reg(f.words + 1), Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
	}
}

// originalKey loads address . protocol . port of the destination before NAT.
func (f family) originalKey() []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: f.ctDst, Register: reg(0)},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg(f.words)},
		&expr.Ct{Key: expr.CtKeyPROTODST, Register: reg(f.words + 1)},
	}
}

// keyWords is the length of address . protocol . port.
func (f family) keyWords() uint32 { return f.words + 2 }

func lookup(set string, from, to uint32) expr.Any {
	return &expr.Lookup{SetName: set, SourceRegister: reg(from), DestRegister: reg(to), IsDestRegSet: true}
}

func lookupVerdict(set string) expr.Any {
	return &expr.Lookup{SetName: set, SourceRegister: reg(0), DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true}
}

// in matches packets whose loaded key is in a set.
func in(set string) expr.Any { return &expr.Lookup{SetName: set, SourceRegister: reg(0)} }

func gotoChain(chain string) expr.Any { return &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain} }

func drop() expr.Any { return &expr.Verdict{Kind: expr.VerdictDrop} }

// sourceIsLocal matches packets from an address of the node.
func sourceIsLocal() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: reg(0), FlagSADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg(0), Data: binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)},
	}
}

// isDNATed matches packets of a connection with a translated destination.
func isDNATed() []expr.Any {
	const ipsDstNat = 1 << 5
	word := func(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: reg(0)},
		&expr.Bitwise{SourceRegister: reg(0), DestRegister: reg(0), Len: 4, Mask: word(ipsDstNat), Xor: word(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg(0), Data: word(0)},
	}
}

// rejection answers with an ICMP error.
func (f family) rejection() expr.Any {
	return &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: f.reject}
}

func masquerade() expr.Any { return &expr.Masq{FullyRandom: true} }

func concat(parts ...[]expr.Any) (out []expr.Any) {
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

func exprs(all ...expr.Any) []expr.Any { return all }

// baseRules returns the rules that do not depend on Services.
func (f family) baseRules() []rule {
	toServices := exprs(&expr.Verdict{Kind: expr.VerdictJump, Chain: servicesChain})
	source := exprs(f.header(f.src, 0))
	return []rule{
		{servicesChain, concat(f.key(), exprs(
			lookupVerdict(ruleset.FrontendMap.Name()))), structureVersion},
		{servicesChain, exprs(f.header(f.dst, 0),
			in(ruleset.ClusterIPSet.Name()), f.rejection()), "port without a Service"},
		{preroutingChain, toServices, ""},
		{outputChain, toServices, ""},
		{postroutingChain, concat(isDNATed(), exprs(f.header(f.src, 0), f.header(f.dst, f.words),
			in(ruleset.HairpinSet.Name()), masquerade())), "hairpin"},
		{postroutingChain, concat(isDNATed(), f.originalKey(), exprs(
			lookupVerdict(ruleset.MasqueradeMap.Name()))), ""},
		{postroutingChain, concat(isDNATed(), exprs(&expr.Ct{Key: f.ctDst, Register: reg(0)},
			in(ruleset.ClusterIPSet.Name()), gotoChain(masqueradeInternalChain))), ""},
		{masqueradeInternalChain, concat(source, exprs(
			in(unmasqueradedSet), &expr.Verdict{Kind: expr.VerdictReturn})), ""},
		{masqueradeInternalChain, exprs(masquerade()), ""},
		{ruleset.MasqueradeExternal, exprs(masquerade()), ""},
		{ruleset.MasqueradeExternalLocal, concat(source, exprs(
			in(localPodsSet), &expr.Verdict{Kind: expr.VerdictReturn})), ""},
		{ruleset.MasqueradeExternalLocal, append(sourceIsLocal(), masquerade()), ""},
		{rejectChain, exprs(f.rejection()), ""},
	}
}

// targetRules returns the rules of the chains for a target. Chains of several targets are equal.
func (f family) targetRules(t ruleset.Target) (out []rule) {
	chain := t.Chain()
	if t.Firewall {
		t.Firewall = false
		out = append(out,
			rule{chain, concat(f.key(), exprs(f.header(f.src, f.keyWords()),
				in(ruleset.SourceSet.Name()), gotoChain(t.Chain()))), ""},
			rule{chain, exprs(drop()), ""})
		chain = t.Chain()
	}
	cluster := ruleset.EndpointsChain(t.Cluster, t.Affinity, false)
	local := ruleset.EndpointsChain(t.Local, t.Affinity, true)
	switch t.Class {
	case ruleset.Internal, ruleset.External:
		return append(out, f.endpointRules(cluster, t.Cluster, t.Affinity, false)...)
	case ruleset.InternalLocal:
		return append(out, f.endpointRules(local, t.Local, t.Affinity, true)...)
	case ruleset.ExternalLocal:
		out = append(out, f.endpointRules(cluster, t.Cluster, t.Affinity, false)...)
		toLocal := drop()
		if t.Local > 0 {
			out = append(out, f.endpointRules(local, t.Local, t.Affinity, true)...)
			toLocal = gotoChain(local)
		}
		return append(out,
			rule{chain, exprs(f.header(f.src, 0), in(localPodsSet), gotoChain(cluster)), ""},
			rule{chain, append(sourceIsLocal(), gotoChain(cluster)), ""},
			rule{chain, exprs(toLocal), ""})
	case ruleset.Drop:
		return append(out, rule{chain, exprs(drop()), ""})
	case ruleset.Reject: // a base chain
	}
	return out
}

// endpointRules returns the rules of the chain that selects one of n endpoints. The last one drops:
// a packet that meets a change of the maps must not go on to the address of the Service.
func (f family) endpointRules(chain string, n, affinity uint32, local bool) []rule {
	if affinity > 0 {
		return f.sessionAffinityRules(chain, n, affinity, local)
	}
	set := ruleset.EndpointMap.Name()
	if local {
		set = ruleset.LocalEndpointMap.Name()
	}
	return []rule{
		{chain, concat(f.key(), exprs(f.random(n)), f.dnat(set)), ""},
		{chain, exprs(drop()), ""},
	}
}

// random loads a random index after the key.
func (f family) random(n uint32) expr.Any {
	return &expr.Numgen{Register: reg(f.keyWords()), Modulus: n, Type: unix.NFT_NG_RANDOM}
}

// dnat looks up the endpoint for the key and the word after it, and makes it the destination.
func (f family) dnat(set string) []expr.Any {
	endpoint := f.keyWords() + 1
	return exprs(lookup(set, 0, endpoint), &expr.NAT{
		Type: expr.NATTypeDestNAT, Family: uint32(f.number),
		RegAddrMin: reg(endpoint), RegProtoMin: reg(endpoint + f.words), Specified: true,
	})
}

// sessionAffinityRules returns the rules of a chain with session affinity. One rule cannot use the result of a
// lookup as part of the key of the next one in a way that nft can print. The handle of the endpoint
// is therefore kept in the priority of the packet, which has no other use before routing.
func (f family) sessionAffinityRules(chain string, n, affinity uint32, local bool) []rule {
	handles, affine := ruleset.HandleMap.Name(), ruleset.AffinityMap.Name()
	if local {
		handles, affine = ruleset.LocalHandleMap.Name(), ruleset.LocalAffinityMap.Name()
	}
	after := f.keyWords()
	setPriority := &expr.Meta{Key: expr.MetaKeyPRIORITY, SourceRegister: true, Register: reg(0)}
	priority := func(to uint32) expr.Any { return &expr.Meta{Key: expr.MetaKeyPRIORITY, Register: reg(to)} }
	clientKey := append(f.key(), f.header(f.src, after))
	change := func(operation uint32) []expr.Any { // of the entry of the client
		return concat(clientKey, exprs(priority(after+f.words), &expr.Dynset{
			SetName: affinityMap, SrcRegKey: reg(0), SrcRegData: reg(after + f.words),
			Operation: operation, Timeout: time.Duration(affinity) * time.Second,
		}))
	}
	toHandle := concat(f.key(), exprs(priority(after)), f.dnat(affine))
	return []rule{
		{chain, exprs(&expr.Immediate{Register: reg(0), Data: make([]byte, 4)}, setPriority), ""},
		{chain, concat(clientKey, exprs(lookup(affinityMap, 0, 0), setPriority)), "known client"},
		{chain, concat(f.key(), exprs(priority(after), in(affine)),
			change(unix.NFT_DYNSET_OP_UPDATE), toHandle), "its endpoint still exists"},
		{chain, concat(f.key(), exprs(f.random(n), lookup(handles, 0, 0), setPriority)), "new client"},
		{chain, concat(change(nftDynsetOpDelete), change(unix.NFT_DYNSET_OP_UPDATE)), ""},
		{chain, toHandle, ""},
		{chain, exprs(drop()), ""},
	}
}

// nftDynsetOpDelete deletes an element if there is one.
const nftDynsetOpDelete = 2
