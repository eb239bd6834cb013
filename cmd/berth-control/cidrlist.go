package main

import (
	"fmt"
	"net/netip"
	"strings"
)

// cidrList is a flag value: a comma-separated list of CIDRs, at most one per IP family.
type cidrList struct{ to *[]netip.Prefix }

// String returns the current value.
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

// Set replaces the value.
func (r *cidrList) Set(text string) error {
	var out []netip.Prefix
	families := map[bool]bool{}
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		p, err := netip.ParsePrefix(part)
		if err != nil {
			return fmt.Errorf("%q is not a CIDR such as 10.42.0.0/16", part)
		}
		if p != p.Masked() {
			return fmt.Errorf("%q: did you mean %s?", part, p.Masked())
		}
		if families[p.Addr().Is4()] {
			return fmt.Errorf("%q: only one CIDR per IP family is allowed", part)
		}
		families[p.Addr().Is4()] = true
		out = append(out, p)
	}
	*r.to = out
	return nil
}

// Type returns the placeholder for the help text.
func (r *cidrList) Type() string { return "CIDR" }
