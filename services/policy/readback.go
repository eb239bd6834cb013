package policy

import (
	"encoding/binary"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"berth/services/policy/rules"
)

// sameElements reports whether the kernel's elements are those of a set.
func sameElements(got []nftables.SetElement, want *rules.Set) bool {
	if want.Type == rules.AddressRanges {
		return sameRanges(got, want)
	}
	if len(got) != len(want.Elements) {
		return false
	}
	for i := range got {
		e, err := element(want.Type, want.Family, got[i].Key)
		if err != nil {
			return false
		}
		if want.Type == rules.PortRanges {
			last, err := element(want.Type, want.Family, got[i].KeyEnd)
			if err != nil {
				return false
			}
			e.LastPort = last.FirstPort
		}
		verdict, known := want.Elements[e]
		if !known || want.Type == rules.VerdictMap && !sameVerdict(got[i].Val, verdict) {
			return false
		}
	}
	return true
}

// sameRanges compares ranges, which the kernel lists by their first address and the one after the
// last.
func sameRanges(got []nftables.SetElement, want *rules.Set) bool {
	text := func(all []nftables.SetElement) (out []string) {
		for _, e := range all {
			kind := "first "
			if e.IntervalEnd {
				kind = "end "
			}
			out = append(out, kind+string(e.Key))
		}
		slices.Sort(out)
		return out
	}
	return slices.Equal(text(got), text(slices.Concat(nftElements(want, true)...)))
}

// sameVerdict compares the data of an element of a verdict map, which is a list of attributes.
func sameVerdict(data []byte, want rules.Verdict) bool {
	attributes, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return false
	}
	attributes.ByteOrder = binary.BigEndian
	got := expr.Verdict{}
	for attributes.Next() {
		switch attributes.Type() {
		case unix.NFTA_VERDICT_CODE:
			got.Kind = expr.VerdictKind(int32(attributes.Uint32()))
		case unix.NFTA_VERDICT_CHAIN:
			got.Chain = attributes.String()
		}
	}
	return attributes.Err() == nil && got == *nftVerdict(want)
}
