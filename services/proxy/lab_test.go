package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
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
)

// host is a network namespace for one test.
type host struct {
	t    testing.TB
	name string
	ns   netns.NsHandle
	h    *netlink.Handle
}

// newHost creates a namespace that forwards packets.
func newHost(t testing.TB, name string) *host {
	t.Helper()
	created, failed := make(chan netns.NsHandle), make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		ns, err := netns.New()
		for file, value := range map[string]string{
			"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1",
			"ipv6/conf/default/accept_dad": "0", "ipv6/conf/all/accept_dad": "0",
		} {
			if err == nil {
				err = os.WriteFile("/proc/sys/net/"+file, []byte(value), 0o644)
			}
		}
		if err != nil {
			failed <- err
			return
		}
		created <- ns
	}()
	n := &host{t: t, name: name}
	select {
	case n.ns = <-created:
	case err := <-failed:
		t.Fatal(err)
	}
	var err error
	if n.h, err = netlink.NewHandleAt(n.ns, unix.NETLINK_ROUTE); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.h.Close(); _ = n.ns.Close() })
	n.must(n.h.LinkSetUp(n.link("lo")))
	return n
}

func (n *host) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatalf("%s: %v", n.name, err)
	}
}

func (n *host) link(name string) netlink.Link {
	n.t.Helper()
	l, err := n.h.LinkByName(name)
	n.must(err)
	return l
}

func (n *host) address(link string, all ...string) {
	n.t.Helper()
	for _, text := range all {
		a, err := netlink.ParseAddr(text)
		n.must(err)
		if a.IP.To4() == nil {
			a.Flags = unix.IFA_F_NODAD
		}
		n.must(n.h.AddrAdd(n.link(link), a))
	}
}

// route adds a route; an empty destination is the default.
func (n *host) route(dst, via string) {
	n.t.Helper()
	r := &netlink.Route{Gw: net.ParseIP(via)}
	if dst != "" {
		_, subnet, err := net.ParseCIDR(dst)
		n.must(err)
		r.Dst = subnet
	}
	n.must(n.h.RouteAdd(r))
}

// connect joins two namespaces by a pair of links.
func (n *host) connect(link string, to *host, peer string) {
	n.t.Helper()
	n.must(n.h.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: link}, PeerName: peer, PeerNamespace: netlink.NsFd(int(to.ns)),
	}))
	n.must(n.h.LinkSetUp(n.link(link)))
	to.must(to.h.LinkSetUp(to.link(peer)))
}

// do runs f in the namespace.
func (n *host) do(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if err := netns.Set(n.ns); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

// lab is a node with three pods, a client outside, and a second node with one pod.
//
//	client 192.0.2.100 ── eth0 192.0.2.1 node ── cni0 10.1.0.1 ── pods 10.1.0.11, .12, .13
//	                                      └── eth1 198.18.0.1 ── other 198.18.0.2, pod 10.2.0.11
type lab struct {
	t                   *testing.T
	node, client, other *host
	pods                []*host
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{t: t, node: newHost(t, "node"), client: newHost(t, "client"), other: newHost(t, "other")}
	l.node.connect("eth0", l.client, "eth0")
	l.node.address("eth0", "192.0.2.1/24", "2001:db8::1/64")
	l.client.address("eth0", "192.0.2.100/24", "2001:db8::100/64", "192.0.2.101/24")
	for _, via := range []string{"192.0.2.1", "2001:db8::1"} {
		l.client.route("", via)
	}
	for _, via := range []string{"192.0.2.100", "2001:db8::100"} {
		l.node.route("", via)
	}
	l.node.connect("eth1", l.other, "eth0")
	l.node.address("eth1", "198.18.0.1/24", "2001:db8:1::1/64")
	l.other.address("eth0", "198.18.0.2/24", "2001:db8:1::2/64")
	l.other.address("lo", "10.2.0.11/32", "fd02::11/128")
	for dst, via := range map[string]string{"10.2.0.0/24": "198.18.0.2", "fd02::/64": "2001:db8:1::2"} {
		l.node.route(dst, via)
	}
	for dst, via := range map[string]string{"10.1.0.0/24": "198.18.0.1", "fd01::/64": "2001:db8:1::1"} {
		l.other.route(dst, via) // and none to the client: the node must masquerade
	}
	l.node.must(l.node.h.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "cni0"}}))
	l.node.must(l.node.h.LinkSetUp(l.node.link("cni0")))
	l.node.address("cni0", "10.1.0.1/24", "fd01::1/64")
	l.bridgeFilter(true)
	for i := range 3 {
		p := newHost(t, fmt.Sprint("pod", i+1))
		veth := fmt.Sprint("veth", i+1)
		l.node.connect(veth, p, "eth0")
		l.node.must(l.node.h.LinkSetMaster(l.node.link(veth), l.node.link("cni0")))
		l.node.must(l.node.h.LinkSetHairpin(l.node.link(veth), true)) // as berth's default network does
		p.address("eth0", fmt.Sprintf("10.1.0.%d/24", 11+i), fmt.Sprintf("fd01::%d/64", 11+i))
		p.route("", "10.1.0.1")
		p.route("", "fd01::1")
		l.pods = append(l.pods, p)
	}
	return l
}

// bridgeFilter sets whether the IP chains see bridged packets. A kernel without the module does not
// have the setting: they do not.
func (l *lab) bridgeFilter(on bool) {
	l.t.Helper()
	for _, family := range []string{"iptables", "ip6tables"} {
		value := "0"
		if on {
			value = "1"
		}
		err := l.node.do(func() error {
			return os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-"+family, []byte(value), 0o644)
		})
		if !errors.Is(err, os.ErrNotExist) {
			l.node.must(err)
		}
	}
}

func testNode() Node {
	a := netip.MustParseAddr
	return Node{
		Name: "n1", Zone: "a", Addresses: []netip.Addr{a("192.0.2.1"), a("2001:db8::1")},
		PodCIDRs:          []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd01::/64")},
		NodePortAddresses: []netip.Addr{a("192.0.2.1"), a("2001:db8::1")},
	}
}

// serve answers each connection or packet with the name of the host and the address of the client,
// and then with what it gets.
func (n *host) serve(network, port string) {
	n.t.Helper()
	var l net.Listener
	n.must(n.do(func() (err error) {
		l, err = (&net.ListenConfig{}).Listen(context.Background(), network, ":"+port)
		return err
	}))
	var clients sync.WaitGroup
	n.t.Cleanup(func() { _ = l.Close(); clients.Wait() })
	clients.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n.t.Cleanup(func() { _ = c.Close() })
			clients.Go(func() {
				_, _ = fmt.Fprintln(c, n.name, addressOf(c.RemoteAddr()))
				for lines := bufio.NewScanner(c); lines.Scan(); {
					_, _ = fmt.Fprintln(c, lines.Text())
				}
				_ = c.Close()
			})
		}
	})
}

// serveUDP does the same for packets. It answers from the address it was given.
func (n *host) serveUDP(at string) {
	n.t.Helper()
	var c net.PacketConn
	n.must(n.do(func() (err error) {
		c, err = (&net.ListenConfig{}).ListenPacket(context.Background(), "udp", at)
		return err
	}))
	var server sync.WaitGroup
	n.t.Cleanup(func() { _ = c.Close(); server.Wait() })
	server.Go(func() {
		for b := make([]byte, 1500); ; {
			_, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = c.WriteTo(fmt.Appendln(nil, n.name, addressOf(from)), from)
		}
	})
}

func addressOf(a net.Addr) string {
	at, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return err.Error()
	}
	return at.Addr().Unmap().String()
}

// client is an open connection.
type client struct {
	net.Conn
	*bufio.Scanner
}

// answerTimeout bounds the wait for an answer that comes, silence the wait for one that does not:
// a test that expects silence passes after it, and cannot fail by it.
const (
	answerTimeout = 20 * time.Second
	silence       = 300 * time.Millisecond
)

// dial opens a connection, from a source address if it is not empty.
func (n *host) dial(network, source, to string, timeout time.Duration) (*client, error) {
	var c net.Conn
	err := n.do(func() (err error) {
		d := net.Dialer{Timeout: timeout}
		if source != "" {
			d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(source)}
			if strings.HasPrefix(network, "udp") {
				d.LocalAddr = &net.UDPAddr{IP: net.ParseIP(source)}
			}
		}
		c, err = d.Dial(network, to)
		return err
	})
	if err != nil {
		return nil, err
	}
	n.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(timeout))
	if strings.HasPrefix(network, "udp") {
		_, _ = c.Write([]byte("hello"))
	}
	return &client{c, bufio.NewScanner(c)}, nil
}

// ask returns the first line of the answer: the name of the server and the client address it saw, or
// "refused" or "silence".
func (n *host) ask(network, source, to string) string {
	n.t.Helper()
	return n.askWithin(network, source, to, answerTimeout)
}

func (n *host) askWithin(network, source, to string, timeout time.Duration) string {
	n.t.Helper()
	c, err := n.dial(network, source, to, timeout)
	if err == nil {
		defer func() { _ = c.Close() }()
		if c.Scan() {
			return c.Text()
		}
		err = c.Err()
	}
	var wait net.Error
	switch {
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EACCES):
		return "refused"
	case errors.As(err, &wait) && wait.Timeout():
		return "silence"
	}
	return fmt.Sprint("failed: ", err)
}

// logTo returns a logger for the output of the test.
func logTo(t *testing.T) *slog.Logger {
	t.Helper()
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}
