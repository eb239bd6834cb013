package rules

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"berth/services/policy/selection"
)

// addressRange is a range of addresses of one family, both ends included.
type addressRange struct{ first, last netip.Addr }

// rangeOf returns the addresses of a prefix.
func rangeOf(p netip.Prefix) addressRange {
	bytes := p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < len(bytes)*8; bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(bytes)
	return addressRange{p.Masked().Addr(), last}
}

// union returns the union of ranges of one family as sorted ranges that neither overlap nor touch.
func union(all []addressRange) (out []addressRange) {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b addressRange) int { return a.first.Compare(b.first) })
	for _, r := range all {
		n := len(out)
		if n > 0 && (!out[n-1].last.Next().IsValid() || r.first.Compare(out[n-1].last.Next()) <= 0) {
			if r.last.Compare(out[n-1].last) > 0 {
				out[n-1].last = r.last
			}
			continue
		}
		out = append(out, r)
	}
	return out
}

// subtract returns the addresses of a range that are in none of the others.
func subtract(from addressRange, others []addressRange) (out []addressRange) {
	for _, o := range union(others) {
		if o.last.Compare(from.first) < 0 || o.first.Compare(from.last) > 0 {
			continue
		}
		if o.first.Compare(from.first) > 0 {
			out = append(out, addressRange{from.first, o.first.Prev()})
		}
		if from.first = o.last.Next(); !from.first.IsValid() || from.first.Compare(from.last) > 0 {
			return out
		}
	}
	return append(out, from)
}

// blockRanges returns the addresses of one family that are in any of the blocks. An exception counts
// only in its own block.
func blockRanges(blocks []selection.Block, f Family) []addressRange {
	var all []addressRange
	for _, b := range blocks {
		if FamilyOf(b.Prefix.Addr()) != f {
			continue
		}
		var except []addressRange
		for _, e := range b.Except {
			if FamilyOf(e.Addr()) == f {
				except = append(except, rangeOf(e))
			}
		}
		all = append(all, subtract(rangeOf(b.Prefix), except)...)
	}
	return union(all)
}

// everything reports whether the ranges are all addresses of their family.
func everything(ranges []addressRange) bool {
	return len(ranges) == 1 && ranges[0].first.IsUnspecified() && !ranges[0].last.Next().IsValid()
}

// rangeSet returns a set of address ranges. Its name depends on its content.
func rangeSet(kind string, f Family, ranges []addressRange) *Set {
	s := &Set{Type: AddressRanges, Family: f, Elements: make(map[Element]Verdict, len(ranges))}
	var content strings.Builder
	for _, r := range ranges {
		s.Elements[Element{First: r.first, Last: r.last}] = Verdict{}
		fmt.Fprintf(&content, "%s-%s ", r.first, r.last)
	}
	s.Name = named(fmt.Sprintf("%s%d", kind, f), content.String(), "")
	return s
}

// portSet returns a set of port ranges. Its name depends on its content. The ranges of the set do not
// overlap, which the kernel requires.
func portSet(ports []selection.PortRange) *Set {
	ports = slices.Clone(ports)
	slices.SortFunc(ports, func(a, b selection.PortRange) int {
		if a.Protocol != b.Protocol {
			return int(a.Protocol) - int(b.Protocol)
		}
		return int(a.First) - int(b.First)
	})
	var merged []selection.PortRange
	for _, p := range ports {
		n := len(merged)
		if n > 0 && merged[n-1].Protocol == p.Protocol && int(p.First) <= int(merged[n-1].Last)+1 {
			merged[n-1].Last = max(merged[n-1].Last, p.Last)
			continue
		}
		merged = append(merged, p)
	}
	s := &Set{Type: PortRanges, Name: named("ports", fmt.Sprint(merged), ""), Elements: map[Element]Verdict{}}
	for _, p := range merged {
		s.Elements[Element{Protocol: p.Protocol, FirstPort: p.First, LastPort: p.Last}] = Verdict{}
	}
	return s
}
