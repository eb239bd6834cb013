package pair

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// kernelRules are the tables of the agent, a line for each chain with its number of rules, and for each element.
type kernelRules struct{ chains, elements []string }

// rules reads the tables of the agent on its host, without the elements that time out. It fails if the agent
// changes a table meanwhile.
func (s *serviceKills) rules() (out kernelRules, err error) {
	conn, err := nftables.New(nftables.WithNetNSFd(int(s.ns)))
	if err != nil {
		return out, err
	}
	tables, err := conn.ListTables()
	if err != nil {
		return out, fmt.Errorf("list tables: %w", err)
	}
	chains, err := conn.ListChains()
	if err != nil {
		return out, fmt.Errorf("list chains: %w", err)
	}
	count, err := s.countRules()
	if err != nil {
		return out, fmt.Errorf("list rules: %w", err)
	}
	for _, t := range tables {
		if !strings.HasPrefix(t.Name, "berth") {
			continue
		}
		for _, c := range chains {
			if c.Table.Name != t.Name || c.Table.Family != t.Family {
				continue
			}
			name := fmt.Sprintf("%d %s chain %s", t.Family, t.Name, c.Name)
			out.chains = append(out.chains, fmt.Sprintf("%s: %d rules", name, count[name]))
		}
		sets, err := conn.GetSets(t)
		if err != nil {
			return out, fmt.Errorf("list sets of %s: %w", t.Name, err)
		}
		for _, set := range sets {
			elements, err := conn.GetSetElements(set)
			if err != nil {
				return out, fmt.Errorf("list elements of %s: %w", set.Name, err)
			}
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
	return out, nil
}

// settledRules returns the rules when the agent knows the pod CIDRs of the node.
func (s *serviceKills) settledRules() (out kernelRules) {
	s.t.Helper()
	s.waitUntil("the pod CIDRs in the rules", func() string {
		var err error
		if out, err = s.rules(); err != nil {
			return err.Error()
		}
		for _, line := range out.elements {
			if strings.Contains(line, " set local-pods ") {
				return ""
			}
		}
		return "no local pods"
	})
	return out
}

// countRules returns the number of rules of each chain.
func (s *serviceKills) countRules() (map[string]int, error) {
	count := map[string]int{}
	err := s.Host.RunInNetwork(func() error {
		req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP)
		req.AddData(&nl.Nfgenmsg{Version: nl.NFNETLINK_V0})
		messages, err := req.Execute(unix.NETLINK_NETFILTER, 0)
		for _, m := range messages {
			attributes, err := nl.ParseRouteAttr(m[nl.SizeofNfgenmsg:])
			if err != nil {
				return err
			}
			var table, chain string
			for _, a := range attributes {
				switch text := strings.TrimRight(string(a.Value), "\x00"); a.Attr.Type {
				case unix.NFTA_RULE_TABLE:
					table = text
				case unix.NFTA_RULE_CHAIN:
					chain = text
				}
			}
			count[fmt.Sprintf("%d %s chain %s", m[0], table, chain)]++
		}
		return err
	})
	return count, err
}

// requireRules waits until the kernel has the elements of before, and also the chains.
func (s *serviceKills) requireRules(when string, before kernelRules, andChains bool) {
	s.t.Helper()
	if len(before.elements) == 0 || len(before.chains) == 0 || strings.HasSuffix(before.chains[0], " 0 rules") {
		s.t.Fatal("no rules before the churn: ", before)
	}
	s.waitUntil("the rules of before, "+when, func() string {
		now, err := s.rules()
		if err != nil {
			return err.Error()
		}
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
				translated := !f.Reverse.SrcIP.Equal(f.Forward.DstIP)
				if translated && leads(to.Unmap(), f.Reverse.SrcPort) {
					left = append(left, f.String())
				}
			}
		}
		return strings.Join(left[:min(len(left), 5)], "\n")
	})
}
