package announce

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
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	corev1 "k8s.io/api/core/v1"

	"berth/services"
	"berth/services/proxy"
)

// host is a network namespace.
type host struct {
	t    *testing.T
	name string
	ns   netns.NsHandle
	h    *netlink.Handle
}

func newHost(t *testing.T, name string) *host {
	t.Helper()
	n := &host{t: t, name: name}
	created, failed := make(chan netns.NsHandle), make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		ns, err := netns.New()
		for file, value := range map[string]string{
			"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1", "ipv6/conf/default/accept_dad": "0",
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
	select {
	case n.ns = <-created:
	case err := <-failed:
		t.Fatal(err)
	}
	h, err := netlink.NewHandleAt(n.ns, unix.NETLINK_ROUTE)
	n.must(err)
	n.h = h
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

// plug connects eth0 of the host to a bridge of the switch.
func (n *host) plug(to *host, bridge string) {
	n.t.Helper()
	n.must(n.h.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: n.name, PeerNamespace: netlink.NsFd(int(to.ns)),
	}))
	n.must(n.h.LinkSetUp(n.link("eth0")))
	to.must(to.h.LinkSetMaster(to.link(n.name), to.link(bridge)))
	to.must(to.h.LinkSetUp(to.link(n.name)))
}

// serve answers each connection with the name of the host and the address of the client.
func (n *host) serve(at string) {
	n.t.Helper()
	var l net.Listener
	n.must(inNamespace(n.ns, func() (err error) {
		l, err = new(net.ListenConfig).Listen(context.Background(), "tcp", at)
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
			clients.Go(func() {
				_, _ = fmt.Fprintln(c, n.name, c.RemoteAddr().(*net.TCPAddr).IP)
				_ = c.Close()
			})
		}
	})
}

// ask connects and returns the answer, or an error.
func (n *host) ask(to string) (answer string, err error) {
	err = inNamespace(n.ns, func() error {
		c, err := (&net.Dialer{Timeout: 200 * time.Millisecond}).Dial("tcp", to)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(time.Second))
		s := bufio.NewScanner(c)
		if !s.Scan() {
			return errors.Join(errors.New("no answer"), s.Err())
		}
		answer = s.Text()
		return nil
	})
	return answer, err
}

// lan has three nodes and a client on a switch of two bridges, which can be separated.
//
//	n1, n2 ── br0 ── br1 ── n3, client
type lan struct {
	t                       *testing.T
	fabric, client, foreign *host // foreign is a host that is no node, or nil
	nodes                   []*lanNode
}

type lanNode struct {
	*host

	store   *services.Store
	serving atomic.Bool
	mu      sync.Mutex
	terms   map[netip.Addr]uint32
	stop    func() // of the announcer
	a       *Announcer

	reported conflicts
	registry *prometheus.Registry // of the announcer
}

const (
	vip4 = "192.0.2.200"
	vip6 = "2001:db8::200"
)

func newLAN(t *testing.T, local bool) *lan {
	t.Helper()
	return newLANWith(t, local, func(*lan) {})
}

// newLANWith calls prepare before there are nodes.
func newLANWith(t *testing.T, local bool, prepare func(*lan)) *lan {
	t.Helper()
	l := &lan{t: t, fabric: newHost(t, "switch"), client: newHost(t, "client")}
	for _, name := range []string{"br0", "br1"} {
		l.fabric.must(l.fabric.h.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}))
		l.fabric.must(l.fabric.h.LinkSetUp(l.fabric.link(name)))
	}
	l.fabric.must(l.fabric.h.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "trunk0"}, PeerName: "trunk1"}))
	for i, name := range []string{"trunk0", "trunk1"} {
		l.fabric.must(l.fabric.h.LinkSetMaster(l.fabric.link(name), l.fabric.link(fmt.Sprint("br", i))))
		l.fabric.must(l.fabric.h.LinkSetUp(l.fabric.link(name)))
	}
	l.client.plug(l.fabric, "br1")
	l.client.address("eth0", "192.0.2.100/24", "2001:db8::100/64")
	prepare(l)
	for i := range 3 {
		n := &lanNode{host: newHost(t, fmt.Sprint("n", i+1)), store: services.NewStore()}
		n.serving.Store(true)
		n.plug(l.fabric, []string{"br0", "br0", "br1"}[i])
		n.address("eth0", fmt.Sprintf("192.0.2.%d/24", i+1), fmt.Sprintf("2001:db8::%d/64", i+1))
		pod4, pod6 := fmt.Sprintf("10.1.%d.11", i+1), fmt.Sprintf("fd0%d::11", i+1)
		n.address("lo", pod4+"/32", pod6+"/128")
		n.serve(":8080")
		l.nodes = append(l.nodes, n)
		n.setService(local)
		n.setEndpoints(true)
		l.route(n)
		n.start()
	}
	return l
}

func (n *lanNode) setService(local bool) {
	n.store.ReplaceServices([]*services.Service{{
		Name: services.Name{Namespace: "default", Name: "web"}, Type: corev1.ServiceTypeLoadBalancer,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.43.0.9"), netip.MustParseAddr("fd43::9")},
		Ports:      []services.Port{{Protocol: corev1.ProtocolTCP, Port: 80}},
		LoadBalancerIPs: []netip.Addr{
			netip.MustParseAddr(vip4), netip.MustParseAddr(vip6),
		},
		Announce: true, ExternalLocal: local,
	}})
}

// setEndpoints sets whether the pod of the node is ready. The stores of the nodes know only their own pod:
// a node that answers is the one that announces the address.
func (n *lanNode) setEndpoints(ready bool) {
	i := n.name[1:]
	var all []*services.Slice
	for _, pod := range []string{"10.1." + i + ".11", "fd0" + i + "::11"} {
		a := netip.MustParseAddr(pod)
		s := &services.Slice{
			Service: services.Name{Namespace: "default", Name: "web"}, Name: "web-" + pod, IPv6: a.Is6(),
			Ports: []services.EndpointPort{{Protocol: corev1.ProtocolTCP, Port: 8080}},
		}
		if ready {
			s.Endpoints = []services.Endpoint{{Address: a, Node: n.name, Ready: true, Serving: true}}
		}
		all = append(all, s)
	}
	n.store.ReplaceSlices(all)
}

// logTo returns a logger for the output of the test.
func logTo(t *testing.T, node string) *slog.Logger {
	t.Helper()
	return slog.New(slog.NewTextHandler(t.Output(), nil)).With("node", node)
}

// route runs the Service proxy on a node until the test ends.
func (l *lan) route(n *lanNode) {
	l.t.Helper()
	a := netip.MustParseAddr
	p := proxy.New(proxy.Options{Store: n.store, NetNS: n.ns, Log: logTo(l.t, n.name), Node: proxy.Node{
		Name: n.name, Addresses: []netip.Addr{a("192.0.2." + n.name[1:])},
		PodCIDRs: []netip.Prefix{netip.PrefixFrom(a("10.1."+n.name[1:]+".0"), 24)},
	}})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := p.Run(ctx); err != nil {
			l.t.Error(err)
		}
	})
	l.t.Cleanup(func() { cancel(); running.Wait() })
	l.eventually(answerTimeout, n.name+" has rules", func() bool { return p.Status().Synced })
}

// start starts the announcer of the node.
func (n *lanNode) start() {
	n.mu.Lock()
	resume := n.terms
	n.mu.Unlock()
	n.registry = prometheus.NewRegistry()
	n.a = New(Options{
		Metrics: NewMetrics(n.registry), OnConflict: n.reported.add,
		Node: n.name, Store: n.store, Serving: n.serving.Load, Resume: resume, NetNS: n.ns, Log: logTo(n.t, n.name),
		Persist: func(terms map[netip.Addr]uint32) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.terms = terms
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := n.a.Run(ctx); err != nil {
			n.t.Error(err)
		}
	})
	n.stop = func() { cancel(); running.Wait() }
	n.t.Cleanup(func() { n.stop() })
}

// answerTimeout bounds the waits for what is not measured.
const answerTimeout = 60 * time.Second

// failoverBound returns the time that the documentation promises, with BERTH_TORTURE. Beside other tests, a busy
// machine may need more.
func failoverBound() time.Duration {
	if os.Getenv("BERTH_TORTURE") == "" {
		return answerTimeout
	}
	return 3 * time.Second
}

func (l *lan) eventually(bound time.Duration, what string, condition func() bool) time.Duration {
	l.t.Helper()
	began := time.Now()
	for !condition() {
		if time.Since(began) > bound {
			l.t.Fatalf("not within %s: %s", bound, what)
		}
		runtime.Gosched()
		time.Sleep(10 * time.Millisecond) // between two attempts
	}
	return time.Since(began)
}

// answering waits until the address answers from a node for which ok is true, and returns the node.
func (l *lan) answering(bound time.Duration, vip string, ok func(node string) bool) (*lanNode, string, time.Duration) {
	l.t.Helper()
	var node, client string
	took := l.eventually(bound, vip+" answers", func() bool {
		answer, err := l.client.ask(net.JoinHostPort(vip, "80"))
		node, client, _ = strings.Cut(answer, " ")
		return err == nil && ok(node)
	})
	for _, n := range l.nodes {
		if n.name == node {
			return n, client, took
		}
	}
	l.t.Fatalf("unknown node %q", node)
	return nil, "", 0
}

func anyNode(string) bool { return true }

// trunk connects or separates the two bridges.
func (l *lan) trunk(up bool) {
	l.t.Helper()
	set := l.fabric.h.LinkSetDown
	if up {
		set = l.fabric.h.LinkSetUp
	}
	l.fabric.must(set(l.fabric.link("trunk0")))
}

// announcers returns the nodes that announce the address.
func (l *lan) announcers(vip string) (out []string) {
	for _, n := range l.nodes {
		if n.a.AnnouncedBy(netip.MustParseAddr(vip)) == n.name {
			out = append(out, n.name)
		}
	}
	return out
}

// TestFailover has no API server: the nodes have only their stores and each other.
func TestFailover(t *testing.T) {
	t.Parallel()
	l := newLAN(t, false)
	for _, vip := range []string{vip4, vip6} {
		holder, client, _ := l.answering(answerTimeout, vip, anyNode)
		t.Logf("%s is announced by %s", vip, holder.name)
		if !strings.HasPrefix(client, strings.TrimSuffix(vip, "200")) {
			t.Errorf("the pod sees the client as %s", client)
		}
		// The agent dies: the client keeps its cache entry, and gets no message.
		holder.stop()
		holder.must(holder.h.LinkSetDown(holder.link("eth0")))
		next, _, took := l.answering(failoverBound(), vip, func(n string) bool { return n != holder.name })
		t.Logf("%s: %s took over from %s after %s", vip, next.name, holder.name, took)

		// It comes back, and leaves the address where it is.
		holder.must(holder.h.LinkSetUp(holder.link("eth0")))
		if vip == vip6 { // gone with the link
			_ = holder.h.AddrAdd(holder.link("eth0"), mustAddr(t, "2001:db8::"+holder.name[1:]+"/64"))
		}
		holder.start()
		l.eventually(answerTimeout, "the node is back", func() bool {
			return holder.a.AnnouncedBy(netip.MustParseAddr(vip)) == next.name
		})
		if again, _, _ := l.answering(answerTimeout, vip, anyNode); again != next {
			t.Errorf("%s moved from %s to %s when a node came back", vip, next.name, again.name)
		}

		// A shutdown hands the address over before the others miss a heartbeat.
		next.serving.Store(false)
		third, _, took := l.answering(failoverBound(), vip, func(n string) bool { return n != next.name })
		t.Logf("%s: %s took over from %s, which shuts down, after %s", vip, third.name, next.name, took)
		next.serving.Store(true)
	}
}

func mustAddr(t *testing.T, text string) *netlink.Addr {
	t.Helper()
	a, err := netlink.ParseAddr(text)
	if err != nil {
		t.Fatal(err)
	}
	a.Flags = unix.IFA_F_NODAD
	return a
}

func TestRestartKeepsAddress(t *testing.T) {
	t.Parallel()
	l := newLAN(t, false)
	holder, _, _ := l.answering(answerTimeout, vip4, anyNode)
	holder.stop()
	holder.start()
	l.eventually(answerTimeout, "the address is announced again", func() bool { return len(l.announcers(vip4)) == 1 })
	if got := l.announcers(vip4); got[0] != holder.name {
		t.Errorf("%s announces the address after a restart of the agent of %s", got, holder.name)
	}
}

func TestPartitionAndHealing(t *testing.T) {
	t.Parallel()
	l := newLAN(t, false)
	l.answering(answerTimeout, vip4, anyNode)
	l.trunk(false)
	if n, _, took := l.answering(failoverBound(), vip4, func(n string) bool { return n == "n3" }); n != nil {
		t.Logf("the side of the client has an announcer after %s", took)
	}
	l.eventually(answerTimeout, "each side has an announcer", func() bool { return len(l.announcers(vip4)) == 2 })
	l.trunk(true)
	took := l.eventually(failoverBound(), "one announcer stays", func() bool { return len(l.announcers(vip4)) == 1 })
	winner := l.announcers(vip4)[0]
	_, _, reached := l.answering(failoverBound(), vip4, func(n string) bool { return n == winner })
	t.Logf("%s stays the announcer after %s, and the client reaches it after another %s", winner, took, reached)
}

func TestLocalPolicyFollowsEndpoints(t *testing.T) {
	t.Parallel()
	l := newLAN(t, true)
	for _, n := range l.nodes[:2] {
		n.setEndpoints(false)
	}
	for _, want := range []string{"n3", "n1"} {
		for _, n := range l.nodes {
			n.setEndpoints(n.name == want)
		}
		for vip, address := range map[string]string{vip4: "192.0.2.100", vip6: "2001:db8::100"} {
			_, client, took := l.answering(answerTimeout, vip, func(n string) bool { return n == want })
			t.Logf("%s answers from %s after %s", vip, want, took)
			if client != address {
				t.Errorf("%s: the pod sees the client as %s, want %s", vip, client, address)
			}
		}
	}
}
