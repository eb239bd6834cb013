package policy

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"berth/services/policy/rules"
	"berth/services/policy/selection"
)

// register is the first of the registers of 4 bytes. A field takes as many as it needs.
const register = unix.NFT_REG32_00

// maxElements is the number of elements in one message. A message holds at most 64 KiB of them.
const maxElements = 200

// addressType returns the type of addresses of a family.
func addressType(f rules.Family) nftables.SetDatatype {
	if f == rules.V6 {
		return nftables.TypeIP6Addr
	}
	return nftables.TypeIPAddr
}

// nftSet returns a set without elements. The ID identifies the set within a transaction.
func nftSet(t *nftables.Table, s *rules.Set, id uint32) *nftables.Set {
	address := addressType(s.Family)
	out := &nftables.Set{Table: t, Name: s.Name, ID: id}
	switch s.Type {
	case rules.Addresses:
		out.KeyType = address
	case rules.AddressRanges:
		out.KeyType, out.Interval = address, true
	case rules.PortRanges:
		out.KeyType = nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService)
		out.Interval, out.Concatenation = true, true
	case rules.AddressPorts:
		out.KeyType = nftables.MustConcatSetType(address, nftables.TypeInetProto, nftables.TypeInetService)
	case rules.AddressPairs:
		out.KeyType = nftables.MustConcatSetType(address, address)
	case rules.VerdictMap:
		out.KeyType, out.IsMap, out.DataType = address, true, nftables.TypeVerdict
	case rules.Interfaces:
		out.KeyType = nftables.TypeIFName
	}
	return out
}

// nftElements returns the elements of a set, in lists for one message each. With keys, verdicts are
// left out. The end of an address range is an element of its own, unless it is the last address.
func nftElements(s *rules.Set, keys bool) (out [][]nftables.SetElement) {
	var all []nftables.SetElement
	for e, v := range s.Elements {
		element := nftables.SetElement{Key: key(s.Type, e)}
		switch s.Type {
		case rules.PortRanges:
			last := e
			last.FirstPort = e.LastPort
			element.KeyEnd = key(s.Type, last)
		case rules.VerdictMap:
			if !keys {
				element.VerdictData = nftVerdict(v)
			}
		case rules.Addresses, rules.AddressRanges, rules.AddressPorts, rules.AddressPairs, rules.Interfaces:
		}
		all = append(all, element)
		if after := e.Last.Next(); s.Type == rules.AddressRanges && after.IsValid() {
			all = append(all, nftables.SetElement{Key: after.AsSlice(), IntervalEnd: true})
		}
	}
	if s.Type == rules.AddressRanges { // the kernel refuses an end before its start
		slices.SortFunc(all, func(a, b nftables.SetElement) int { return bytes.Compare(a.Key, b.Key) })
	}
	for len(all) > maxElements {
		out, all = append(out, all[:maxElements]), all[maxElements:]
	}
	return append(out, all)
}

// key returns an element as the kernel has it: each part is padded to 4 bytes.
func key(t rules.SetType, e rules.Element) []byte {
	ports := []byte{byte(e.Protocol), 0, 0, 0, byte(e.FirstPort >> 8), byte(e.FirstPort), 0, 0}
	switch t {
	case rules.PortRanges:
		return ports
	case rules.AddressPorts:
		return append(e.First.AsSlice(), ports...)
	case rules.AddressPairs:
		return append(e.First.AsSlice(), e.Last.AsSlice()...)
	case rules.Interfaces:
		return interfaceName(e.Interface)
	case rules.Addresses, rules.AddressRanges, rules.VerdictMap:
	}
	return e.First.AsSlice()
}

func interfaceName(name string) []byte {
	out := make([]byte, unix.IFNAMSIZ)
	copy(out, name)
	return out
}

// element is the inverse of key.
func element(t rules.SetType, f rules.Family, key []byte) (e rules.Element, err error) {
	size := 4
	if f == rules.V6 {
		size = 16
	}
	address := func(from []byte) netip.Addr {
		a, _ := netip.AddrFromSlice(from)
		return a
	}
	ports := func(from []byte) {
		e.Protocol, e.FirstPort = selection.Protocol(from[0]), binary.BigEndian.Uint16(from[4:])
	}
	want := map[rules.SetType]int{rules.PortRanges: 8, rules.AddressPorts: size + 8, rules.AddressPairs: 2 * size,
		rules.Interfaces: unix.IFNAMSIZ}[t]
	if want == 0 {
		want = size
	}
	if len(key) != want {
		return e, fmt.Errorf("element of %d bytes, want %d", len(key), want)
	}
	switch t {
	case rules.PortRanges:
		ports(key)
	case rules.AddressPorts:
		e.First = address(key[:size])
		ports(key[size:])
	case rules.AddressPairs:
		e.First, e.Last = address(key[:size]), address(key[size:])
	case rules.Interfaces:
		e.Interface = unix.ByteSliceToString(key)
	case rules.Addresses, rules.AddressRanges, rules.VerdictMap:
		e.First = address(key)
	}
	return e, nil
}

func nftVerdict(v rules.Verdict) *expr.Verdict {
	kind := map[rules.VerdictKind]expr.VerdictKind{
		rules.Accept: expr.VerdictAccept, rules.Drop: expr.VerdictDrop,
		rules.Jump: expr.VerdictJump, rules.Goto: expr.VerdictGoto,
	}[v.Kind]
	return &expr.Verdict{Kind: kind, Chain: v.Chain}
}

// nftRule returns the expressions of a rule.
func nftRule(r *rules.Rule) (out []expr.Any) {
	for i := range r.Matches {
		out = append(out, nftMatch(&r.Matches[i])...)
	}
	if r.Counter != "" {
		out = append(out, &expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: r.Counter})
	}
	if r.Map == nil {
		return append(out, nftVerdict(r.Verdict))
	}
	out = append(out, load(r.Key, r.Map.Family)...)
	return append(out, &expr.Lookup{SourceRegister: register, SetName: r.Map.Name, IsDestRegSet: true,
		DestRegister: unix.NFT_REG_VERDICT})
}

func nftMatch(m *rules.Match) []expr.Any {
	equal := func(key expr.MetaKey, value byte) []expr.Any {
		return []expr.Any{
			&expr.Meta{Key: key, Register: register},
			&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: []byte{value}},
		}
	}
	switch m.Kind {
	case rules.Established:
		mask := binary.NativeEndian.AppendUint32(nil, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED)
		return []expr.Any{
			&expr.Ct{Register: register, Key: expr.CtKeySTATE},
			&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 4, Mask: mask, Xor: make([]byte, 4)},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: register, Data: make([]byte, 4)},
		}
	case rules.IPv4:
		return equal(expr.MetaKeyNFPROTO, unix.NFPROTO_IPV4)
	case rules.IPv6:
		return equal(expr.MetaKeyNFPROTO, unix.NFPROTO_IPV6)
	case rules.ICMPv6Type:
		return append(equal(expr.MetaKeyL4PROTO, unix.IPPROTO_ICMPV6),
			&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Len: 1},
			&expr.Cmp{Op: expr.CmpOpGte, Register: register, Data: []byte{m.First}},
			&expr.Cmp{Op: expr.CmpOpLte, Register: register, Data: []byte{m.Last}})
	case rules.InSet:
	}
	return append(load(m.Field, m.Set.Family), &expr.Lookup{SourceRegister: register, SetName: m.Set.Name})
}

// load loads a field into the registers.
func load(field rules.Field, f rules.Family) []expr.Any {
	source, destination, size := uint32(12), uint32(16), uint32(4)
	if f == rules.V6 {
		source, destination, size = 8, 24, 16
	}
	address := func(offset, to uint32) expr.Any {
		return &expr.Payload{DestRegister: register + to/4, Base: expr.PayloadBaseNetworkHeader, Offset: offset,
			Len: size}
	}
	port := func(to uint32) []expr.Any {
		return []expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register + to/4},
			&expr.Payload{DestRegister: register + to/4 + 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		}
	}
	switch field {
	case rules.Destination:
		return []expr.Any{address(destination, 0)}
	case rules.Port:
		return port(0)
	case rules.DestinationPort:
		return append([]expr.Any{address(destination, 0)}, port(size)...)
	case rules.SourceDestination:
		return []expr.Any{address(source, 0), address(destination, size)}
	case rules.InputInterface:
		return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: register}}
	case rules.Source:
	}
	return []expr.Any{address(source, 0)}
}

// userData returns the comment of a rule. It identifies the content: a rule with another comment is
// replaced.
func userData(r *rules.Rule) []byte {
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(r.String()))
	return userdata.AppendString(nil, userdata.TypeComment, fmt.Sprintf("berth 1 %016x", sum.Sum64()))
}
