package criconfig

import (
	"net/netip"
	"slices"
	"strings"
)

// ResolvConf is the content of a resolv.conf.
type ResolvConf struct {
	Nameservers, Searches, Options []string
}

// ReachableFromPod reports whether a pod with its own network may reach a nameserver: at least one
// is not a loopback address.
func (r ResolvConf) ReachableFromPod() bool {
	return slices.ContainsFunc(r.Nameservers, func(s string) bool {
		a, err := netip.ParseAddr(s)
		return err == nil && !a.IsLoopback()
	})
}

// ParseResolvConf parses a resolv.conf as the C library does: the last search or domain line wins,
// options accumulate, comments and unknown lines are skipped. It accepts any text.
func ParseResolvConf(text string) ResolvConf {
	var r ResolvConf
	for line := range strings.Lines(text) {
		if i := strings.IndexAny(line, "#;"); i >= 0 {
			line = line[:i]
		}
		fields := strings.Fields(strings.ToValidUTF8(line, ""))
		if len(fields) == 0 {
			continue
		}
		args := fields[1:]
		switch fields[0] {
		case "nameserver":
			if len(args) > 0 {
				r.Nameservers = append(r.Nameservers, args[0])
			}
		case "domain":
			if len(args) > 0 {
				r.Searches = []string{args[0]}
			}
		case "search":
			r.Searches = nil
			for _, s := range args {
				if s != "." {
					s = strings.TrimSuffix(s, ".")
				}
				r.Searches = append(r.Searches, s)
			}
		case "options":
			r.Options = append(r.Options, args...)
		}
	}
	return r
}
