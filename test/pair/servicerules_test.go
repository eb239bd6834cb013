package pair

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// kernelRules are the tables of the agent, a line for each chain with its number of rules, and for each element.
type kernelRules struct{ chains, elements []string }

// rules reads the tables of the agent on its host, without the elements that time out.
func (s *serviceKills) rules() kernelRules {
	s.t.Helper()
	conn, err := nftables.New(nftables.WithNetNSFd(int(s.ns)))
	s.must(err)
	tables, err := conn.ListTables()
	s.must(err)
	chains, err := conn.ListChains()
	s.must(err)
	var out kernelRules
	for _, t := range tables {
		if !strings.HasPrefix(t.Name, "berth") {
			continue
		}
		for _, c := range chains {
			if c.Table.Name != t.Name || c.Table.Family != t.Family {
				continue
			}
			rules, err := conn.GetRules(t, c)
			s.must(err)
			out.chains = append(out.chains, fmt.Sprint(t.Family, t.Name, " chain ", c.Name, " rules ", len(rules)))
		}
		sets, err := conn.GetSets(t)
		s.must(err)
		for _, set := range sets {
			elements, err := conn.GetSetElements(set)
			s.must(err)
			for _, e := range elements {
				if set.HasTimeout {
					continue
				}
				line := fmt.Sprintf("%d %s set %s %x %x %x", t.Family, t.Name, set.Name, e.Key, e.KeyEnd, e.Val)
				if e.VerdictData != nil {
					line += " " + e.VerdictData.Chain
				}
				out.elements = append(out.elements, line)
			}
		}
	}
	slices.Sort(out.chains)
	slices.Sort(out.elements)
	return out
}

// requireRules waits until the kernel has the elements of before, and also the chains.
func (s *serviceKills) requireRules(when string, before kernelRules, andChains bool) {
	s.t.Helper()
	if len(before.elements) == 0 || len(before.chains) == 0 {
		s.t.Fatal("no rules before the churn")
	}
	s.waitUntil("the rules of before, "+when, func() string {
		now := s.rules()
		text := difference(before.elements, now.elements)
		if andChains {
			text += difference(before.chains, now.chains)
		}
		return text
	})
	s.t.Logf("%s, the kernel has the same %d elements and %d chains", when, len(before.elements), len(before.chains))
}

// difference lists what is only in one of two sorted lists.
func difference(before, now []string) string {
	var out strings.Builder
	for _, line := range before {
		if _, found := slices.BinarySearch(now, line); !found {
			fmt.Fprintln(&out, "missing:", line)
		}
	}
	for _, line := range now {
		if _, found := slices.BinarySearch(before, line); !found {
			fmt.Fprintln(&out, "left:", line)
		}
	}
	return out.String()
}

// requireNoFlows waits until the connection tracking of the host has no translated flow to an address and port.
func (s *serviceKills) requireNoFlows(what string, leads func(to netip.Addr, port uint16) bool) {
	s.t.Helper()
	h, err := netlink.NewHandleAt(s.ns, unix.NETLINK_NETFILTER)
	s.must(err)
	defer h.Close()
	s.waitUntil("no flows to "+what, func() string {
		var left []string
		for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
			flows, err := h.ConntrackTableList(netlink.ConntrackTable, family)
			if err != nil {
				return err.Error()
			}
			for _, f := range flows {
				to, _ := netip.AddrFromSlice(f.Reverse.SrcIP)
				if translated := !f.Reverse.SrcIP.Equal(f.Forward.DstIP); translated && leads(to.Unmap(), f.Reverse.SrcPort) {
					left = append(left, f.String())
				}
			}
		}
		return strings.Join(left[:min(len(left), 5)], "\n")
	})
}
