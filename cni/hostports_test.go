package cni

import (
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	kernelns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// TestDeleteStaleFlows uses a network namespace as the node. Only stale flows to the pod's host ports are
// deleted from its conntrack table.
func TestDeleteStaleFlows(t *testing.T) {
	t.Parallel()
	name := fmt.Sprintf("berth%dflows", os.Getpid())
	netns(t, name)
	ns, err := kernelns.GetFromName(name)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	run(t, "ip", "-n", name, "addr", "add", "10.1.0.1/24", "dev", "lo")
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE, unix.NETLINK_NETFILTER)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	const dns, dhcp, udp, tcp = 53, 67, unix.IPPROTO_UDP, unix.IPPROTO_TCP
	rows := []struct {
		name    string
		dst     string
		port    uint16
		proto   uint8
		target  string
		onStart bool // deleted when the pod at 10.9.0.5 starts
		onStop  bool // deleted when the pod stops
	}{
		{"to a deleted pod", "10.1.0.1", dns, udp, "10.9.0.4", true, true},
		{"to the host itself", "10.1.0.1", dns, udp, "10.1.0.1", true, true},
		{"to the pod", "10.1.0.1", dns, udp, "10.9.0.5", false, true},
		{"by loopback to the pod", "127.0.0.1", dns, udp, "10.9.0.5", false, true},
		{"to a host port of another pod", "10.1.0.1", 54, udp, "10.9.0.6", false, false},
		{"through the host to an external address", "8.8.8.8", dns, udp, "8.8.8.8", false, false},
		{"to a Service address", "10.96.0.10", dns, udp, "10.9.0.7", false, false},
		{"to a host port with another hostIP", "10.1.0.1", dhcp, udp, "10.9.0.4", false, false},
		{"to the hostIP", "127.0.0.1", dhcp, udp, "10.9.0.4", true, true},
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{
		{ContainerPort: 5353, HostPort: dns, Protocol: corev1.ProtocolUDP},
		{ContainerPort: 5354, HostPort: 54, Protocol: corev1.ProtocolTCP},
		{ContainerPort: 6767, HostPort: dhcp, Protocol: corev1.ProtocolUDP, HostIP: "127.0.0.1"},
	}}}}}
	for _, step := range []struct {
		addresses []string
		deletes   func(onStart, onStop bool) bool
	}{
		{[]string{"10.9.0.5"}, func(onStart, _ bool) bool { return onStart }},
		{nil, func(_, onStop bool) bool { return onStop }},
	} {
		for i, row := range rows {
			sport := uint16(40000 + i)
			client := net.ParseIP("10.1.0.77").To4()
			err := h.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, &netlink.ConntrackFlow{
				FamilyType: unix.AF_INET,
				TimeOut:    600,
				Forward: netlink.IPTuple{
					SrcIP:    client,
					DstIP:    net.ParseIP(row.dst).To4(),
					SrcPort:  sport,
					DstPort:  row.port,
					Protocol: row.proto,
				},
				Reverse: netlink.IPTuple{
					SrcIP:    net.ParseIP(row.target).To4(),
					DstIP:    client,
					SrcPort:  row.port,
					DstPort:  sport,
					Protocol: row.proto,
				},
			})
			if err != nil && !os.IsExist(err) {
				t.Fatalf("%s: %v", row.name, err)
			}
		}
		want := 0
		for _, row := range rows {
			if step.deletes(row.onStart, row.onStop) {
				want++
			}
		}
		got, err := deleteStaleFlows(h, udpPorts(pod), step.addresses)
		if err != nil || got != want {
			t.Errorf("addresses %v: got %d deleted flows (%v), want %d", step.addresses, got, err, want)
		}
		remaining := map[uint16]bool{}
		flows, err := h.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range flows {
			remaining[f.Forward.SrcPort] = true
		}
		for i, row := range rows {
			if deleted := !remaining[uint16(40000+i)]; deleted != step.deletes(row.onStart, row.onStop) {
				t.Errorf("addresses %v: flow %s: got deleted %v", step.addresses, row.name, deleted)
			}
		}
	}
	pod.Spec.HostNetwork = true
	if ports := udpPorts(pod); len(ports) > 0 {
		t.Errorf("host network: got ports %v, want none", ports)
	}
}
