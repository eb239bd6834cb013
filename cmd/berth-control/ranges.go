package main

import (
	"fmt"
	"net/netip"
	"strings"
)

// cidrList is a flag of address ranges, separated by commas.
type cidrList struct{ to *[]netip.Prefix }

// String is the flag as it stands.
func (r *cidrList) String() string {
	if r.to == nil {
		return ""
	}
	texts := make([]string, 0, len(*r.to))
	for _, p := range *r.to {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, ",")
}

// Set takes in what the user wrote, in place of what stood.
func (r *cidrList) Set(text string) error {
	var out []netip.Prefix
	families := map[bool]bool{}
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		p, err := netip.ParsePrefix(part)
		if err != nil {
			return fmt.Errorf("%q is no range of addresses such as 10.42.0.0/16", part)
		}
		if p != p.Masked() {
			return fmt.Errorf("%q: did you mean %s?", part, p.Masked())
		}
		if families[p.Addr().Is4()] {
			return fmt.Errorf("%q: one range per family of addresses", part)
		}
		families[p.Addr().Is4()] = true
		out = append(out, p)
	}
	*r.to = out
	return nil
}

// Type names the flag's value in the help.
func (r *cidrList) Type() string { return "CIDR" }
