package e2e

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/test/hosts"
)

// TestUDPClientReachesNewPodOfHostPort sends from one client port while the pod of a host port is
// replaced. The new pod responds. Conntrack flows to the deleted pod, and flows created while there
// was no pod, are deleted.
func TestUDPClientReachesNewPodOfHostPort(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		port := 21003 + s.Host.Number*20
		pod := func(name string) string {
			s.Pod(name, fmt.Sprintf("containers:\n"+
				box("c", "ports: [{containerPort: 5353, hostPort: %d, protocol: UDP}]", "udp 5353"), port))
			return s.Running(name).Status.PodIP
		}
		at := &net.UDPAddr{IP: s.Host.Gateway.AsSlice(), Port: port}
		// The socket is not connected: a connected socket gets an error when nothing listens.
		client, err := net.ListenUDP("udp", &net.UDPAddr{IP: s.Host.Gateway.AsSlice()})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		exchange := func() (bool, error) {
			if _, err := client.WriteToUDP([]byte(s.ns), at); err != nil {
				return false, err
			}
			if err := client.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
				return false, err
			}
			_, _, err := client.ReadFromUDP(make([]byte, 1500))
			return err == nil, nil
		}
		first := pod("first")
		if err := hosts.WaitFor(t.Context(), "a response of the first pod", exchange); err != nil {
			t.Fatal(err)
		}
		if to := flowTargets(t, port); len(to) != 1 || to[0] != first {
			t.Errorf("conntrack flows: got targets %v, want %s", to, first)
		}
		s.Remove("first")
		s.WaitDeleted("first")
		if to := flowTargets(t, port); len(to) > 0 {
			t.Errorf("conntrack flows after the deletion: got targets %v, want none", to)
		}
		logged := false
		for line := range strings.Lines(s.Agent.Log()) {
			logged = logged || strings.Contains(line, "stale connection tracking entries deleted") &&
				strings.Contains(line, s.ns+"/first")
		}
		if !logged {
			t.Error("the log does not report the deleted conntrack entries")
		}
		if _, err := exchange(); err != nil { // creates a flow to the host itself
			t.Fatal(err)
		}
		second := pod("second")
		if err := hosts.WaitFor(t.Context(), "a response of the second pod", exchange); err != nil {
			t.Fatal(err)
		}
		for _, to := range flowTargets(t, port) {
			if to != second {
				t.Errorf("conntrack flow: got target %s, want %s", to, second)
			}
		}
	})
}

// flowTargets returns the addresses to which conntrack translates UDP flows to a host port.
func flowTargets(t *testing.T, port int) (targets []string) {
	t.Helper()
	flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range flows {
		if f.Forward.Protocol == unix.IPPROTO_UDP && int(f.Forward.DstPort) == port {
			targets = append(targets, f.Reverse.SrcIP.String())
		}
	}
	return targets
}
