package policy

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"berth/services/policy/rules"
	"berth/services/policy/selection"
)

// TestBridgedPacketsAreFiltered: the Enforcer makes the kernel pass bridged packets to the rules.
func TestBridgedPacketsAreFiltered(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	n.sysctl("bridge/bridge-nf-call-iptables", "0")
	n.sysctl("bridge/bridge-nf-call-ip6tables", "0")
	s := newStore()
	e := n.enforcer(s)
	a4, a6 := n.setLocalPod(s, testPod("n1", 2, "a"), 2)
	b4, b6 := n.setLocalPod(s, testPod("n1", 3, "a"), 3)
	n.must(e.Sync())
	if on, err := e.kernel.isOn(bridgeFilters[false]); on || err != nil {
		t.Fatalf("without policies: filter is on: %t, error %v", on, err)
	}
	n.setPolicy(s, "n1", "deny", denyIngress)
	n.must(e.Sync())
	n.expect("two pods of one bridge", a4, b4, selection.TCP, 80, false)
	n.expect("two pods of one bridge", a6, b6, selection.UDP, 80, false)
}

// TestMissingBridgeFilter: the status says that policies are not enforced between pods of one bridge.
func TestMissingBridgeFilter(t *testing.T) {
	t.Parallel()
	k, loads := kernel{netns.None()}, 0
	for _, c := range []struct {
		name string
		load func() error
		want string
	}{
		{"not loaded", nil, "kernel module br_netfilter is not loaded"},
		{"cannot be loaded", func() error { loads++; return errors.New("no such module") },
			"load br_netfilter: no such module"},
		{"loaded without effect", func() error { loads++; return nil }, "kernel module br_netfilter is not loaded"},
	} {
		_, err := k.filterBridgedAt(map[bool]string{false: t.TempDir() + "/missing"}, testConfig.PodRanges, c.load)
		if err == nil || err.Error() != c.want {
			t.Errorf("%s: got error %v, want %s", c.name, err, c.want)
		}
	}
	if loads != 2 {
		t.Errorf("module was loaded %d times, want 2", loads)
	}
}

// forge sends a UDP packet with any source address from a host.
func (n *host) forge(from, to netip.Addr) {
	n.t.Helper()
	header := make([]byte, 28)
	header[0], header[8], header[9] = 0x45, 64, unix.IPPROTO_UDP
	copy(header[12:], from.AsSlice())
	copy(header[16:], to.AsSlice())
	binary.BigEndian.PutUint16(header[22:], 80)
	binary.BigEndian.PutUint16(header[24:], 8)
	_, err := inside(n.ns, func() (any, error) {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
		if err != nil {
			return nil, err
		}
		defer func() { _ = unix.Close(fd) }()
		return nil, unix.Sendto(fd, header, 0, &unix.SockaddrInet4{Addr: to.As4()})
	})
	n.must(err)
}

// unknown returns the number of packets of unknown sources that were dropped.
func (n *testNode) unknown() uint64 {
	n.t.Helper()
	counters, err := kernel{n.ns}.counters()
	n.must(err)
	return counters[rules.UnknownCounter(rules.Egress)].Packets
}

// TestUnknownSourcesOfThePodBridge: what comes from a pod bridge with an address that no pod has is
// dropped, link-local addresses included. Neighbor discovery works.
func TestUnknownSourcesOfThePodBridge(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	s := newStore()
	n.setLocalPod(s, testPod("n1", 2, "a"), 2)
	pod4, _ := n.setLocalPod(s, testPod("n1", 3, "a"), 3)
	sender, receiver := n.at(podAddresses(2)[0]), n.at(pod4)
	sender.addAddress("eth0", "fe80::2/64")
	receiver.addAddress("eth0", "fe80::3/64")
	n.setPolicy(s, "n2", "other", denyIngress)
	n.must(n.enforcer(s).Sync())
	for _, c := range []struct {
		name     string
		from, to netip.Addr
	}{
		{"address of the pod range", netip.MustParseAddr("10.1.0.200"), pod4},
		{"address outside to a pod of the bridge", netip.MustParseAddr("192.0.2.77"), pod4},
		{"address outside to the outside", netip.MustParseAddr("192.0.2.77"), outside4},
	} {
		before := n.unknown()
		sendUntil(t, c.name, func() { sender.forge(c.from, c.to) }, func() bool { return n.unknown() > before })
	}
	before := n.unknown()
	conn, err := inside(sender.ns, func() (net.Conn, error) { return net.Dial("udp", "[fe80::3%eth0]:80") })
	n.must(err)
	defer func() { _ = conn.Close() }()
	send := func() {
		_, err := conn.Write([]byte("link-local"))
		n.must(err)
	}
	sendUntil(t, "packet between link-local addresses", send, func() bool {
		return n.unknown() > before || receiver.hasReceived("link-local")
	})
	if receiver.hasReceived("link-local") {
		t.Error("packet between link-local addresses was delivered")
	}
	n.expect("the pod itself", podAddresses(2)[0], pod4, selection.UDP, 80, true)
}

// TestBridges: only bridges with an address of the pod ranges count.
func TestBridges(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	got, err := kernel{n.ns}.bridges(testConfig.PodRanges)
	if err != nil || strings.Join(got, " ") != "cni0" {
		t.Errorf("pod ranges: got %v, error %v, want cni0", got, err)
	}
	got, err = kernel{n.ns}.bridges([]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")})
	if err != nil || len(got) > 0 {
		t.Errorf("range of another interface: got %v, error %v", got, err)
	}
}
