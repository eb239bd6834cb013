package loadbalancer

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Pool is a set of addresses for Services. Its ranges do not overlap.
type Pool []Range

// Range is the range of addresses from First to Last, inclusive. Both are of the same family.
type Range struct{ First, Last netip.Addr }

// ParsePool parses CIDRs such as 192.0.2.16/28 and ranges such as 192.0.2.10-192.0.2.20. The first and
// the last address of an IPv4 CIDR with more than two addresses are left out, because they may be those
// of a network and its broadcast address. The first address of an IPv6 CIDR is left out, because it is
// the anycast address of routers.
func ParsePool(texts []string) (Pool, error) {
	var p Pool
	for _, text := range texts {
		r, err := ParseRange(text)
		if err != nil {
			return nil, err
		}
		p = append(p, r)
	}
	return p, p.Validate()
}

// Validate returns an error if ranges overlap.
func (p Pool) Validate() error {
	for i, r := range p {
		for _, o := range p[:i] {
			if o.First.Is4() == r.First.Is4() && !o.Last.Less(r.First) && !r.Last.Less(o.First) {
				return fmt.Errorf("%s overlaps %s", r, o)
			}
		}
	}
	return nil
}

// ParseRange parses one element of a pool.
func ParseRange(text string) (r Range, err error) {
	if first, last, isRange := strings.Cut(text, "-"); isRange {
		r.First, err = netip.ParseAddr(strings.TrimSpace(first))
		if err == nil {
			r.Last, err = netip.ParseAddr(strings.TrimSpace(last))
		}
		if err != nil || r.First.Is4() != r.Last.Is4() || r.Last.Less(r.First) {
			return r, fmt.Errorf("%q is not a range such as 192.0.2.10-192.0.2.20", text)
		}
	} else if r, err = rangeOf(text); err != nil {
		return r, err
	}
	for _, a := range []netip.Addr{r.First, r.Last} {
		if !a.IsGlobalUnicast() || a.Zone() != "" || a.Is4In6() {
			return r, fmt.Errorf("%q: %s is not an address that a Service can have", text, a)
		}
	}
	return r, nil
}

// rangeOf returns the usable addresses of a CIDR.
func rangeOf(text string) (r Range, err error) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return r, fmt.Errorf("%q is neither a CIDR such as 192.0.2.16/28 nor a range such as 192.0.2.10-192.0.2.20",
			text)
	}
	if p != p.Masked() {
		return r, fmt.Errorf("%q: did you mean %s?", text, p.Masked())
	}
	r = Range{p.Addr(), lastOf(p)}
	switch hostBits := p.Addr().BitLen() - p.Bits(); {
	case hostBits > 1 && p.Addr().Is4():
		r.First, r.Last = r.First.Next(), r.Last.Prev()
	case hostBits > 0 && p.Addr().Is6():
		r.First = r.First.Next()
	}
	return r, nil
}

func lastOf(p netip.Prefix) netip.Addr {
	bytes := p.Addr().AsSlice()
	for bit := p.Bits(); bit < len(bytes)*8; bit++ {
		bytes[bit/8] |= 1 << (7 - bit%8)
	}
	last, _ := netip.AddrFromSlice(bytes) // has the length of an address
	return last
}

// String returns the range as ParseRange accepts it.
func (r Range) String() string { return r.First.String() + "-" + r.Last.String() }

// UnmarshalText is ParseRange.
func (r *Range) UnmarshalText(text []byte) (err error) {
	*r, err = ParseRange(string(text))
	return err
}

// Contains reports whether the pool has the address.
func (p Pool) Contains(a netip.Addr) bool {
	return slices.ContainsFunc(p, func(r Range) bool {
		return r.First.Is4() == a.Is4() && !a.Less(r.First) && !r.Last.Less(a)
	})
}

// Overlaps reports whether the pool has an address of the prefix.
func (p Pool) Overlaps(o netip.Prefix) bool {
	first, last := o.Masked().Addr(), lastOf(o.Masked())
	return slices.ContainsFunc(p, func(r Range) bool {
		return r.First.Is4() == first.Is4() && !last.Less(r.First) && !r.Last.Less(first)
	})
}

// hasFamily reports whether the pool has addresses of a family.
func (p Pool) hasFamily(ipv6 bool) bool {
	return slices.ContainsFunc(p, func(r Range) bool { return r.First.Is6() == ipv6 })
}

// free returns the first address of a family that is not taken.
func (p Pool) free(ipv6 bool, taken func(netip.Addr) bool) (netip.Addr, bool) {
	for _, r := range p {
		if r.First.Is6() != ipv6 {
			continue
		}
		for a := r.First; ; a = a.Next() {
			if !taken(a) {
				return a, true
			}
			if a == r.Last {
				break
			}
		}
	}
	return netip.Addr{}, false
}
