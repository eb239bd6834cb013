package policy

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"berth/services/policy/selection"
)

// host is a network namespace of a test. The pods of a node have one each; all that is not on the
// node shares one.
type host struct {
	t  testing.TB
	ns netns.NsHandle
	h  *netlink.Handle

	answers bool // UDP packets; a host with several addresses would answer from another one

	mu       sync.Mutex
	received map[string]bool // payloads of UDP and SCTP packets, addresses of TCP clients
}

// testPorts are the ports that every host serves with TCP and UDP.
var testPorts = []int{80, 81, 82, 443}

// inside runs f on a thread in a network namespace. The thread ends with f.
func inside[T any](ns netns.NsHandle, f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		var r result
		if r.err = netns.Set(ns); r.err == nil {
			r.value, r.err = f()
		}
		done <- r
	}()
	r := <-done
	return r.value, r.err
}

// newNamespace returns a new network namespace.
func newNamespace() (netns.NsHandle, error) {
	type result struct {
		ns  netns.NsHandle
		err error
	}
	created := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		ns, err := netns.New()
		created <- result{ns, err}
	}()
	r := <-created
	return r.ns, r.err
}

func newHost(t testing.TB) *host {
	t.Helper()
	ns, err := newNamespace()
	if err != nil {
		t.Fatal(err)
	}
	n := &host{t: t, ns: ns, received: map[string]bool{}}
	if n.h, err = netlink.NewHandleAt(n.ns, unix.NETLINK_ROUTE); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.h.Close(); _ = n.ns.Close() })
	lo, err := n.h.LinkByName("lo")
	n.must(err)
	n.must(n.h.LinkSetUp(lo))
	return n
}

func (n *host) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *host) sysctl(path, value string) {
	n.t.Helper()
	_, err := inside(n.ns, func() (any, error) { return nil, os.WriteFile("/proc/sys/net/"+path, []byte(value), 0) })
	n.must(err)
}

func (n *host) addAddress(link, address string) {
	n.t.Helper()
	l, err := n.h.LinkByName(link)
	n.must(err)
	a, err := netlink.ParseAddr(address)
	n.must(err)
	a.Flags = unix.IFA_F_NODAD
	n.must(n.h.AddrAdd(l, a))
	n.must(n.h.LinkSetUp(l))
}

func (n *host) addRoute(dst, via string) {
	n.t.Helper()
	_, to, err := net.ParseCIDR(dst)
	n.must(err)
	n.must(n.h.RouteAdd(&netlink.Route{Dst: to, Gw: net.ParseIP(via)}))
}

// connect joins two hosts by a pair of interfaces.
func connect(a *host, nameA string, b *host, nameB string) {
	a.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = nameA
	a.must(a.h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: nameB, PeerNamespace: netlink.NsFd(b.ns)}))
	link, err := a.h.LinkByName(nameA)
	a.must(err)
	a.must(a.h.LinkSetUp(link))
	link, err = b.h.LinkByName(nameB)
	b.must(err)
	b.must(b.h.LinkSetUp(link))
}

// serve answers on all testPorts.
func (n *host) serve() {
	n.t.Helper()
	for _, port := range testPorts {
		address := fmt.Sprintf("[::]:%d", port)
		l, err := inside(n.ns, func() (net.Listener, error) { return net.Listen("tcp", address) })
		n.must(err)
		u, err := inside(n.ns, func() (net.PacketConn, error) { return net.ListenPacket("udp", address) })
		n.must(err)
		n.t.Cleanup(func() { _ = l.Close(); _ = u.Close() })
		go n.accept(l)
		go n.read(u)
	}
	for _, network := range []string{"ip4:132", "ip6:132"} {
		c, err := inside(n.ns, func() (net.PacketConn, error) { return net.ListenPacket(network, "") })
		n.must(err)
		n.t.Cleanup(func() { _ = c.Close() })
		go n.read(c)
	}
}

func (n *host) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		n.receive(c.RemoteAddr().String())
		go func() { // echo
			defer func() { _ = c.Close() }()
			buffer := make([]byte, 64)
			for {
				size, err := c.Read(buffer)
				if err != nil {
					return
				}
				if _, err := c.Write(buffer[:size]); err != nil {
					return
				}
			}
		}()
	}
}

func (n *host) read(c net.PacketConn) {
	buffer := make([]byte, 256)
	for {
		size, from, err := c.ReadFrom(buffer)
		if err != nil {
			return
		}
		n.receive(string(buffer[:size]))
		if _, ok := from.(*net.UDPAddr); ok && n.answers {
			_, _ = c.WriteTo(buffer[:size], from)
		}
	}
}

func (n *host) receive(what string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.received[what] = true
}

func (n *host) hasReceived(what string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.received[what]
}

// testNode is a node with a pod bridge, connected to a host outside.
type testNode struct {
	*host
	outside *host
	pods    map[netip.Addr]*host
	probes  int
}

// newTestNode returns a node with the addresses 192.0.2.1 and 2001:db8::1 and the pod ranges
// 10.1.0.0/24 and fd01::/64. The host outside has 192.0.2.9, 2001:db8::9, and the addresses of pods of
// other nodes, 10.2.0.0/24 and fd02::/64.
func newTestNode(t testing.TB) *testNode {
	t.Helper()
	n := &testNode{host: newHost(t), outside: newHost(t), pods: map[netip.Addr]*host{}}
	n.sysctl("ipv4/ip_forward", "1")
	n.sysctl("ipv6/conf/all/forwarding", "1")
	connect(n.host, "eth0", n.outside, "eth0")
	n.addAddress("eth0", "192.0.2.1/24")
	n.addAddress("eth0", "2001:db8::1/64")
	n.outside.addAddress("eth0", "192.0.2.9/24")
	n.outside.addAddress("eth0", "2001:db8::9/64")
	n.outside.addRoute("10.1.0.0/24", "192.0.2.1")
	n.outside.addRoute("fd01::/64", "2001:db8::1")
	n.addRoute("10.2.0.0/24", "192.0.2.9")
	n.addRoute("fd02::/64", "2001:db8::9")
	for i := 2; i < 20; i++ {
		n.outside.addAddress("lo", fmt.Sprintf("10.2.0.%d/32", i))
		n.outside.addAddress("lo", fmt.Sprintf("fd02::%x/128", i))
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = "cni0", net.HardwareAddr{2, 0, 0, 0, 0, 1} // otherwise that of a pod
	n.must(n.h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
	n.addAddress("cni0", "10.1.0.1/24")
	n.addAddress("cni0", "fd01::1/64")
	n.outside.serve()
	return n
}

// addPod connects a pod with the given last byte of its addresses to the bridge.
func (n *testNode) addPod(number int) *host {
	n.t.Helper()
	p := newHost(n.t)
	p.answers = true
	name := fmt.Sprintf("veth%d", number)
	connect(n.host, name, p, "eth0")
	// A pod with the address of an earlier one has its hardware address, so that neighbors need not
	// find out.
	eth, err := p.h.LinkByName("eth0")
	n.must(err)
	n.must(p.h.LinkSetHardwareAddr(eth, net.HardwareAddr{2, 0, 0, 0, 0, byte(number)}))
	link, err := n.h.LinkByName(name)
	n.must(err)
	bridge, err := n.h.LinkByName("cni0")
	n.must(err)
	n.must(n.h.LinkSetMaster(link, bridge))
	p.addAddress("eth0", fmt.Sprintf("10.1.0.%d/24", number))
	p.addAddress("eth0", fmt.Sprintf("fd01::%x/64", number))
	p.addRoute("0.0.0.0/0", "10.1.0.1")
	p.addRoute("::/0", "fd01::1")
	p.serve()
	for _, a := range podAddresses(number) {
		n.pods[a] = p
	}
	return p
}

// removePod removes a pod with its interfaces.
func (n *testNode) removePod(number int) {
	n.t.Helper()
	link, err := n.h.LinkByName(fmt.Sprintf("veth%d", number))
	n.must(err)
	n.must(n.h.LinkDel(link))
	for _, a := range podAddresses(number) {
		delete(n.pods, a)
	}
}

func podAddresses(number int) []netip.Addr {
	return []netip.Addr{
		netip.AddrFrom4([4]byte{10, 1, 0, byte(number)}), netip.AddrFrom16([16]byte{0xfd, 1, 15: byte(number)}),
	}
}

// at returns the host with an address.
func (n *testNode) at(a netip.Addr) *host {
	if p := n.pods[a]; p != nil {
		return p
	}
	if l := a.String(); l == "192.0.2.1" || l == "2001:db8::1" || l == "10.1.0.1" || l == "fd01::1" {
		return n.host
	}
	return n.outside
}

// dropped returns the number of packets that the rules have dropped.
func (n *testNode) dropped() (sum uint64) {
	n.t.Helper()
	counters, err := kernel{n.ns}.counters()
	n.must(err)
	for name, c := range counters {
		if !strings.Contains(name, "-allow-") {
			sum += c.Packets
		}
	}
	return sum
}

// reaches sends the first packet of a connection and reports whether it arrives or is dropped. One of
// the two happens, whatever the machine's load.
func (n *testNode) reaches(from, to netip.Addr, protocol selection.Protocol, port int) bool {
	n.t.Helper()
	n.probes++
	before := n.dropped()
	source, target := n.at(from), n.at(to)
	ctx, cancel := context.WithTimeout(n.t.Context(), 30*time.Second)
	defer cancel()
	var arrived func() bool
	resend := func() {}
	switch protocol {
	case selection.TCP:
		connected := make(chan error, 1)
		go func() {
			c, err := inside(source.ns, func() (net.Conn, error) {
				d := net.Dialer{LocalAddr: &net.TCPAddr{IP: from.AsSlice()}}
				return d.DialContext(ctx, "tcp", netip.AddrPortFrom(to, uint16(port)).String())
			})
			if err == nil {
				err = c.Close()
			}
			connected <- err
			close(connected)
		}()
		arrived = func() bool {
			select {
			case err := <-connected:
				n.must(err)
				return true
			default:
				return false
			}
		}
		defer func() { // no SYN is sent again
			cancel()
			for range connected {
			}
		}()
	default:
		payload := fmt.Sprintf("probe %d", n.probes)
		if protocol == selection.SCTP {
			payload = string(sctpInit(port)) + payload
		}
		c, err := inside(source.ns, func() (net.Conn, error) { return dialPacket(from, to, protocol, port) })
		n.must(err)
		defer func() { _ = c.Close() }()
		resend = func() {
			_, err := c.Write([]byte(payload))
			n.must(err)
		}
		resend()
		arrived = func() bool { return target.hasReceived(payload) }
	}
	lost := time.NewTicker(time.Second) // interfaces that have just come up can lose packets
	defer lost.Stop()
	for {
		switch {
		case arrived():
			return true
		case n.dropped() > before:
			return false
		case ctx.Err() != nil:
			n.t.Fatalf("%s > %s %s/%d: neither arrived nor dropped", from, to, protocol, port)
		}
		select {
		case <-lost.C:
			resend()
		default:
			runtime.Gosched()
		}
	}
}

func dialPacket(from, to netip.Addr, protocol selection.Protocol, port int) (net.Conn, error) {
	if protocol == selection.UDP {
		return net.DialUDP("udp", &net.UDPAddr{IP: from.AsSlice()}, &net.UDPAddr{IP: to.AsSlice(), Port: port})
	}
	network := "ip4:132"
	if to.Is6() {
		network = "ip6:132"
	}
	return net.DialIP(network, &net.IPAddr{IP: from.AsSlice()}, &net.IPAddr{IP: to.AsSlice()})
}

// sctpInit returns the header of an SCTP packet with the first part of a chunk INIT.
func sctpInit(port int) []byte {
	return []byte{0x9c, 0x40, byte(port >> 8), byte(port), 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 20}
}

// sendUntil sends a packet, again every second in case it is lost, until a condition is true.
func sendUntil(t testing.TB, what string, send func(), condition func() bool) {
	t.Helper()
	lost := time.NewTicker(time.Second)
	defer lost.Stop()
	send()
	waitFor(t, what, func() bool {
		select {
		case <-lost.C:
			send()
		default:
		}
		return condition()
	})
}

// waitFor polls a condition that becomes true without further action.
func waitFor(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !condition(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("still waiting: " + what)
		}
	}
}
