package policy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"berth/services/policy/rules"
)

// maxDumpAttempts limits how often an interrupted dump of the conntrack table is repeated.
const maxDumpAttempts = 5

// forget deletes the conntrack entries of addresses that pods have given up. The rules accept
// established connections, and a later pod with the address must not inherit those of its predecessor.
func (k kernel) forget(addresses map[netip.Addr]struct{}) (deleted uint, err error) {
	ns := k.ns
	if !ns.IsOpen() {
		ns = netns.None()
	}
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_NETFILTER)
	if err != nil {
		return 0, fmt.Errorf("netlink: %w", err)
	}
	defer h.Close()
	for f, family := range map[rules.Family]netlink.InetFamily{rules.V4: unix.AF_INET, rules.V6: unix.AF_INET6} {
		filter := addressFilter{}
		for a := range addresses {
			if rules.FamilyOf(a) == f {
				filter[a] = struct{}{}
			}
		}
		if len(filter) == 0 {
			continue
		}
		for range maxDumpAttempts {
			var n uint
			n, err = h.ConntrackDeleteFilters(netlink.ConntrackTable, family, filter)
			if deleted += n; !errors.Is(err, netlink.ErrDumpInterrupted) {
				break
			}
		}
		if err != nil {
			return deleted, fmt.Errorf("delete conntrack entries: %w", err)
		}
	}
	return deleted, nil
}

// addressFilter selects the flows with one of its addresses at either end.
type addressFilter map[netip.Addr]struct{}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (f addressFilter) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	for _, ip := range []net.IP{flow.Forward.SrcIP, flow.Forward.DstIP, flow.Reverse.SrcIP, flow.Reverse.DstIP} {
		a, _ := netip.AddrFromSlice(ip)
		if _, found := f[a.Unmap()]; found {
			return true
		}
	}
	return false
}
