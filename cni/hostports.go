package cni

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/podspec"
)

// The kernel applies NAT rules to the first packet of a flow only, and a UDP flow lasts as long as
// the client keeps sending. A flow may therefore lead to the address of a deleted pod, or to the
// host itself if it started before the pod. When a pod with a UDP host port starts or stops, the
// stale flows to that port are deleted from conntrack, so that the rules apply to the next packet.

// maxDumpAttempts limits how often an interrupted dump of the conntrack table is repeated.
const maxDumpAttempts = 3

// HostPorts redirects the traffic for the host ports of pods.
type HostPorts struct{ Log *slog.Logger }

// PodIPsChanged redirects traffic for the host ports of a pod to its current IPs.
func (h HostPorts) PodIPsChanged(pod *corev1.Pod, ips []string) {
	n, err := deleteStaleUDPFlows(pod, ips)
	name := pod.Namespace + "/" + pod.Name
	if err != nil {
		h.Log.Warn("stale connection tracking entries could not be deleted", "pod", name, "err", err)
	} else if n > 0 {
		h.Log.Info("stale connection tracking entries deleted", "pod", name, "flows", n)
	}
}

// PodAdopted does for the running sandboxes of a pod what a process that stopped before may not have
// done.
func (h HostPorts) PodAdopted(pod *corev1.Pod, sandboxes []plan.Sandbox) {
	for _, s := range sandboxes {
		if s.Ready && len(s.IPs) > 0 {
			h.PodIPsChanged(pod, s.IPs)
		}
	}
}

// deleteStaleUDPFlows deletes the conntrack entries of UDP flows to the pod's host ports that lead
// to none of the given pod addresses. No addresses mean that the pod is deleted. It returns the number
// of deleted entries. A pod without UDP host ports costs nothing.
func deleteStaleUDPFlows(pod *corev1.Pod, addresses []string) (int, error) {
	ports := udpPorts(pod)
	if len(ports) == 0 {
		return 0, nil
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE, unix.NETLINK_NETFILTER)
	if err != nil {
		return 0, fmt.Errorf("netlink: %w", err)
	}
	defer h.Close()
	return deleteStaleFlows(h, ports, addresses)
}

// udpPorts returns the UDP host ports that plugins forward to the pod.
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

func deleteStaleFlows(h *netlink.Handle, ports []podspec.HostPort, addresses []string) (int, error) {
	f := staleFlowFilter{ports: ports, podAddrs: map[netip.Addr]bool{}, hostAddrs: map[netip.Addr]bool{}}
	for _, text := range addresses {
		if a, err := netip.ParseAddr(text); err == nil {
			f.podAddrs[a.Unmap()] = true
		}
	}
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		local, err := h.AddrList(nil, int(family))
		if err != nil {
			return 0, fmt.Errorf("list host addresses: %w", err)
		}
		for _, a := range local {
			f.hostAddrs[toAddr(a.IP)] = true
		}
	}
	deleted := 0
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		for try := 1; ; try++ {
			n, err := h.ConntrackDeleteFilters(netlink.ConntrackTable, family, f)
			deleted += int(n)
			if err == nil {
				break
			}
			if try == maxDumpAttempts || !errors.Is(err, netlink.ErrDumpInterrupted) {
				return deleted, fmt.Errorf("delete conntrack entries: %w", err)
			}
		}
	}
	return deleted, nil
}

// staleFlowFilter matches UDP flows to host ports with an outdated destination.
type staleFlowFilter struct {
	ports     []podspec.HostPort
	podAddrs  map[netip.Addr]bool // valid destinations
	hostAddrs map[netip.Addr]bool // addresses of the host
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter. It ignores flows that are only
// routed through the host, whatever their port.
func (f staleFlowFilter) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	to := toAddr(flow.Forward.DstIP)
	if flow.Forward.Protocol != unix.IPPROTO_UDP || !f.hostAddrs[to] || f.podAddrs[toAddr(flow.Reverse.SrcIP)] {
		return false
	}
	for _, p := range f.ports {
		if uint16(p.Port) == flow.Forward.DstPort && p.Covers(to) {
			return true
		}
	}
	return false
}

func toAddr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
