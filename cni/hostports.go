package cni

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// The kernel asks its rules for the first packet of a flow only, and a flow of UDP
// lasts as long as its client goes on sending: to the address of a pod that is
// gone, or, if it began before the pod had come, to the host itself. So when a pod
// with a host port of UDP has come or is gone, the flows to that port which lead
// elsewhere are forgotten, and the next packet of each asks the rules anew.

// dumps is how often the table of flows is read when it changes meanwhile.
const dumps = 3

// DeleteStaleUDPFlows has the kernel forget the flows of UDP to the pod's host ports that
// lead to none of the addresses, which are those that the pod has; none: it is
// gone. It returns how many there were. A pod without such ports costs nothing.
func DeleteStaleUDPFlows(pod *corev1.Pod, addresses []string) (int, error) {
	ports := udpPorts(pod)
	if len(ports) == 0 {
		return 0, nil
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE, unix.NETLINK_NETFILTER)
	if err != nil {
		return 0, fmt.Errorf("netlink: %w", err)
	}
	defer h.Close()
	return forgetFlows(h, ports, addresses)
}

// udpPorts are the host ports of UDP that plugins lead to the pod.
func udpPorts(pod *corev1.Pod) (out []podspec.HostPort) {
	if pod.Spec.HostNetwork {
		return nil
	}
	for _, p := range podspec.HostPorts(pod) {
		if p.Protocol == corev1.ProtocolUDP {
			out = append(out, p)
		}
	}
	return out
}

func forgetFlows(h *netlink.Handle, ports []podspec.HostPort, addresses []string) (int, error) {
	f := flows{ports: ports, to: map[netip.Addr]bool{}, local: map[netip.Addr]bool{}}
	for _, text := range addresses {
		if a, err := netip.ParseAddr(text); err == nil {
			f.to[a.Unmap()] = true
		}
	}
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		local, err := h.AddrList(nil, int(family))
		if err != nil {
			return 0, fmt.Errorf("list the host's addresses: %w", err)
		}
		for _, a := range local {
			f.local[address(a.IP)] = true
		}
	}
	forgotten := 0
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		for try := 1; ; try++ {
			n, err := h.ConntrackDeleteFilters(netlink.ConntrackTable, family, f)
			forgotten += int(n)
			if err == nil {
				break
			}
			if try == dumps || !errors.Is(err, netlink.ErrDumpInterrupted) {
				return forgotten, fmt.Errorf("forget flows: %w", err)
			}
		}
	}
	return forgotten, nil
}

// flows are those of UDP to host ports that lead elsewhere than they should.
type flows struct {
	ports []podspec.HostPort
	to    map[netip.Addr]bool // where they should lead
	local map[netip.Addr]bool // the host's own addresses
}

// MatchConntrackFlow is what netlink asks of each flow. One that only passes
// through the host is somebody else's, whatever its port.
func (f flows) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	to := address(flow.Forward.DstIP)
	if flow.Forward.Protocol != unix.IPPROTO_UDP || !f.local[to] || f.to[address(flow.Reverse.SrcIP)] {
		return false
	}
	for _, p := range f.ports {
		if uint16(p.Port) == flow.Forward.DstPort && p.Covers(to) {
			return true
		}
	}
	return false
}

func address(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
