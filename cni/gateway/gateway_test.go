package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"berth/cni/routes"
)

// testNode is a network namespace for one test.
type testNode struct {
	t        *testing.T
	ns       netns.NsHandle
	h        *netlink.Handle
	file     string
	enabled  bool
	log      strings.Builder
	mu       sync.Mutex
	statuses []Status
}

func newTestNode(t *testing.T) *testNode {
	t.Helper()
	created := make(chan netns.NsHandle)
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		ns, err := netns.New()
		if err != nil {
			failed <- err
			return
		}
		created <- ns
	}()
	l := &testNode{t: t, file: filepath.Join(t.TempDir(), FileName), enabled: true}
	select {
	case l.ns = <-created:
	case err := <-failed:
		t.Fatal(err)
	}
	var err error
	if l.h, err = netlink.NewHandleAt(l.ns, unix.NETLINK_ROUTE); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.h.Close(); _ = l.ns.Close() })
	eth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "other"}
	l.must(l.h.LinkAdd(eth))
	other, err := l.h.LinkByName("other")
	l.must(err)
	l.must(l.h.LinkSetUp(other))
	for _, text := range []string{"10.9.0.1/24", "fd09::1/64"} {
		a, err := netlink.ParseAddr(text)
		l.must(err)
		a.Flags = unix.IFA_F_NODAD
		l.must(l.h.AddrAdd(eth, a))
	}
	l.must(l.h.LinkSetUp(eth))
	return l
}

func (l *testNode) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *testNode) gateway() *Gateway {
	l.t.Helper()
	g, err := New(Options{
		File: l.file, NetNS: l.ns, Enabled: func() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.enabled },
		Log:      slog.New(slog.NewTextHandler(&l.log, nil)),
		OnChange: func(s Status) { l.mu.Lock(); l.statuses = append(l.statuses, s); l.mu.Unlock() },
	})
	l.must(err)
	return g
}

// routes returns the node's routes with a next hop.
func (l *testNode) routes() string {
	l.t.Helper()
	all, err := listRoutes(l.h)
	l.must(err)
	var out []string
	for _, r := range all {
		if r.NextHop.IsValid() {
			out = append(out, fmt.Sprintf("%s>%s/%d", r.Dst, r.NextHop, r.Protocol))
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// rules returns the masquerading rules with their kernel handles, which change when they are
// written again.
func (l *testNode) rules() string {
	l.t.Helper()
	k := kernel{l.ns}
	m, damaged, err := k.masquerades()
	l.must(err)
	text := fmt.Sprint(m)
	if damaged {
		text += " broken"
	}
	c, err := k.conn()
	l.must(err)
	for _, f := range families {
		if rules, err := c.GetRules(&nftables.Table{Name: tableName, Family: f.table},
			&nftables.Chain{Name: chainName}); err == nil {
			for _, r := range rules {
				text += fmt.Sprint(" #", r.Handle)
			}
		}
	}
	return text
}

func (l *testNode) foreign(dst, via string) {
	l.t.Helper()
	_, n, err := net.ParseCIDR(dst)
	l.must(err)
	eth, err := l.h.LinkByName("eth0")
	l.must(err)
	l.must(
		l.h.RouteAdd(
			&netlink.Route{Dst: n, Gw: net.ParseIP(via), LinkIndex: eth.Attrs().Index, Protocol: unix.RTPROT_STATIC},
		),
	)
}

func peer(name, address string, ranges ...string) routes.Node {
	n := routes.Node{
		Name:         name,
		RegisteredAt: time.Unix(1, 0),
		Addresses: []netip.Addr{
			netip.MustParseAddr(address),
			netip.MustParseAddr("fd09::" + address[strings.LastIndex(address, ".")+1:]),
		},
	}
	for _, r := range ranges {
		n.PodCIDRs = append(n.PodCIDRs, netip.MustParsePrefix(r))
	}
	return n
}

var own = []netip.Prefix{netip.MustParsePrefix("10.42.0.0/24"), netip.MustParsePrefix("fd42::/64")}

const none = "{[] []}"

func (l *testNode) syncExpect(g *Gateway, want string) {
	l.t.Helper()
	if err := g.Sync(); err != nil {
		l.t.Error(err)
	}
	if got := l.routes(); got != want {
		l.t.Errorf("routes: got\n%s, want\n%s", got, want)
	}
}

func TestSyncNodes(t *testing.T) {
	t.Parallel()
	l := newTestNode(t)
	l.foreign("10.42.9.0/24", "10.9.0.99")
	const foreignRoute = "10.42.9.0/24>10.9.0.99/4"
	g := l.gateway()
	l.must(g.SetPodCIDRs(own))
	first := l.rules()
	if want := "{[{10.42.0.0 10.42.0.255} {fd42:: fd42::ffff:ffff:ffff:ffff}] [{10.42.0.0 10.42.0.255} {fd42:: " +
		"fd42::ffff:ffff:ffff:ffff}]} #"; !strings.HasPrefix(
		first,
		want,
	) {
		t.Errorf("rules: got %s, want %s", first, want)
	}
	g.SetNodes(
		[]routes.Node{
			peer("b", "10.9.0.2", "10.42.1.0/24", "fd42:0:0:1::/64"),
			peer("c", "10.9.0.3", "10.42.2.0/24"),
			peer("none", "10.9.0.4"),
		},
	)
	l.syncExpect(g, "10.42.1.0/24>10.9.0.2/98 10.42.2.0/24>10.9.0.3/98 "+foreignRoute+" fd42:0:0:1::/64>fd09::2/98")
	if st := g.Status(); st.Nodes != 2 || st.Reachable != 2 || st.Problems != nil || !st.Enabled {
		t.Errorf("unexpected status %+v", st)
	}
	if got := l.rules(); !strings.Contains(got, "[{10.42.0.0 10.42.2.255} {fd42:: fd42::1:ffff:ffff:ffff:ffff}]") {
		t.Errorf("unexpected rules %s", got)
	}
	g.SetNode(peer("b", "10.9.0.22", "10.42.1.0/24"))
	l.syncExpect(g, "10.42.1.0/24>10.9.0.22/98 10.42.2.0/24>10.9.0.3/98 "+foreignRoute)
	g.SetNode(peer("d", "10.9.0.5", "10.42.9.0/24")) // conflicts with a foreign route
	l.syncExpect(g, "10.42.1.0/24>10.9.0.22/98 10.42.2.0/24>10.9.0.3/98 "+foreignRoute)
	if st := g.Status(); st.Nodes != 3 || st.Reachable != 2 || len(st.Problems) != 1 ||
		!strings.Contains(
			st.Problems[0].Message,
			"conflicting route 10.42.9.0/24 via 10.9.0.99 to eth0 (protocol 4) of another component",
		) {
		t.Errorf("unexpected status %+v", st)
	}
	if !strings.Contains(l.log.String(), "node pods unreachable") {
		t.Errorf("unexpected log\n%s", &l.log)
	}
	g.DeleteNode("d")
	g.DeleteNode("c")
	l.syncExpect(g, "10.42.1.0/24>10.9.0.22/98 "+foreignRoute)

	// Disabled: another component now manages the network of this node.
	l.mu.Lock()
	l.enabled = false
	l.mu.Unlock()
	l.syncExpect(g, foreignRoute)
	if got := l.rules(); got != none {
		t.Errorf("disabled: got rules %s", got)
	}
	if _, err := os.Stat(l.file); !os.IsNotExist(err) {
		t.Errorf("disabled: file still exists: %v", err)
	}
}

// TestSyncReportsRejectedRoute: a rejected route is reported for its node. The other nodes are reachable,
// and the status has no error.
func TestSyncReportsRejectedRoute(t *testing.T) {
	t.Parallel()
	l := newTestNode(t)
	// IPv4: an address made unreachable by a route of the host. IPv6: an address of an interface
	// that is down.
	_, host, err := net.ParseCIDR("10.9.0.66/32")
	l.must(err)
	l.must(
		l.h.RouteAdd(
			&netlink.Route{Dst: host, Type: unix.RTN_UNREACHABLE, Scope: unix.RT_SCOPE_LINK,
				Protocol: unix.RTPROT_STATIC},
		),
	)
	down := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "down"}, PeerName: "end"}
	l.must(l.h.LinkAdd(down))
	own6, err := netlink.ParseAddr("fd09::66/128")
	l.must(err)
	own6.Flags = unix.IFA_F_NODAD
	l.must(l.h.AddrAdd(down, own6))
	g := l.gateway()
	l.must(g.SetPodCIDRs(own))
	g.SetNodes([]routes.Node{
		peer("a", "10.9.0.66", "10.42.1.0/24", "fd42:0:0:1::/64"), peer("b", "10.9.0.2", "10.42.2.0/24"),
		peer("c", "10.9.0.255", "10.42.3.0/24"), peer("d", "10.9.0.1", "10.42.4.0/24"),
	})
	l.syncExpect(g, "10.42.2.0/24>10.9.0.2/98")
	st := g.Status()
	if st.Err != "" || st.Nodes != 4 || st.Reachable != 1 {
		t.Errorf("unexpected status %+v", st)
	}
	var of []string
	for _, tr := range st.Problems {
		of = append(of, tr.Node)
	}
	slices.Sort(of)
	if text := fmt.Sprint(st.Problems); strings.Join(of, "") != "aacd" ||
		!strings.Contains(text, "add route 10.42.1.0/24 via 10.9.0.66: ") {
		t.Errorf("unexpected problems %s", text)
	}
	// A node whose new route is rejected loses its old route.
	g.SetNode(peer("b", "10.9.0.66", "10.42.2.0/24"))
	l.syncExpect(g, "")
	g.SetNode(peer("b", "10.9.0.3", "10.42.2.0/24"))
	g.SetNode(peer("a", "10.9.0.4", "10.42.1.0/24", "fd42:0:0:1::/64"))
	l.syncExpect(g, "10.42.1.0/24>10.9.0.4/98 10.42.2.0/24>10.9.0.3/98 fd42:0:0:1::/64>fd09::4/98")
	if st := g.Status(); st.Reachable != 2 {
		t.Errorf("unexpected status %+v", st)
	}
}

// TestRestartedGatewayChangesNothing restarts a gateway, which reads the file of the first one.
func TestRestartedGatewayChangesNothing(t *testing.T) {
	t.Parallel()
	l := newTestNode(t)
	g := l.gateway()
	nodes := []routes.Node{peer("b", "10.9.0.2", "10.42.1.0/24", "fd42:0:0:1::/64")}
	l.must(g.SetPodCIDRs(own))
	g.SetNodes(nodes)
	const want = "10.42.1.0/24>10.9.0.2/98 fd42:0:0:1::/64>fd09::2/98"
	l.syncExpect(g, want)
	rules := l.rules()
	before, err := os.Stat(l.file)
	l.must(err)
	same := func(what string) {
		t.Helper()
		now, err := os.Stat(l.file)
		l.must(err)
		if got := l.rules(); got != rules || !os.SameFile(before, now) || l.routes() != want {
			t.Errorf("%s: got rules %s, want %s; routes %s", what, got, rules, l.routes())
		}
	}
	restarted := l.gateway()
	l.must(restarted.Sync())
	same("without the API server")
	l.must(restarted.SetPodCIDRs(own))
	restarted.SetNodes(nodes)
	l.must(restarted.Sync())
	same("with the same nodes")

	// After a reboot only the file exists.
	for _, r := range []string{"10.42.1.0/24", "fd42:0:0:1::/64"} {
		_, n, _ := net.ParseCIDR(r)
		l.must(l.h.RouteDel(&netlink.Route{Dst: n, Protocol: routes.Protocol}))
	}
	l.must(kernel{l.ns}.masquerade(routes.Masquerade{}))
	l.syncExpect(l.gateway(), want)
	if got := l.rules(); !strings.HasPrefix(got, rules[:strings.Index(rules, " #")]) {
		t.Errorf("after a reboot: got rules %s", got)
	}
}

// TestRunFollowsRouteChanges: a removed route is restored immediately, not by the next audit.
func TestRunFollowsRouteChanges(t *testing.T) {
	t.Parallel()
	l := newTestNode(t)
	g := l.gateway()
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- g.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		if l.routes() == "" {
			t.Error("routes were removed when the gateway stopped")
		}
	}()
	until := func(want string) {
		t.Helper()
		for end := time.Now().Add(auditInterval / 2); l.routes() != want; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("routes: got %q, want %q\n%s", l.routes(), want, &l.log)
			}
		}
	}
	l.must(g.SetPodCIDRs(own))
	g.SetNodes([]routes.Node{peer("b", "10.9.0.2", "10.42.1.0/24")})
	until("10.42.1.0/24>10.9.0.2/98")
	_, n, _ := net.ParseCIDR("10.42.1.0/24")
	l.must(l.h.RouteDel(&netlink.Route{Dst: n}))
	until("10.42.1.0/24>10.9.0.2/98")
	eth, err := l.h.LinkByName("eth0") // this removes its routes
	l.must(err)
	l.must(l.h.LinkSetDown(eth))
	until("")
	l.must(l.h.LinkSetUp(eth))
	until("10.42.1.0/24>10.9.0.2/98")
}

func TestSyncRepairsRules(t *testing.T) {
	t.Parallel()
	l := newTestNode(t)
	g := l.gateway()
	l.must(g.SetPodCIDRs(own))
	want := l.rules()
	c, err := kernel{l.ns}.conn()
	l.must(err)
	c.FlushChain(
		&nftables.Chain{Name: chainName, Table: &nftables.Table{Name: tableName, Family: nftables.TableFamilyIPv4}},
	)
	l.must(c.Flush())
	if got := l.rules(); !strings.Contains(got, "broken") {
		t.Errorf("chain without its rule: got %s, want broken", got)
	}
	l.must(g.Sync())
	if got := l.rules(); got[:strings.Index(got, " #")] != want[:strings.Index(want, " #")] {
		t.Errorf("rules: got %s, want %s", got, want)
	}
}

// TestRemove: a gateway removes only routes and rules that it recorded in its file.
func TestRemove(t *testing.T) {
	t.Parallel()
	l := newTestNode(t)
	g := l.gateway()
	l.must(g.SetPodCIDRs(own))
	g.SetNodes([]routes.Node{peer("b", "10.9.0.2", "10.42.1.0/24")})
	l.syncExpect(g, "10.42.1.0/24>10.9.0.2/98")
	l.enabled = false
	other := l.gateway()
	other.opt.File, other.saved = l.file+".other", ""
	l.must(other.Sync())
	if l.routes() == "" || l.rules() == none {
		t.Error("a gateway without the file removed routes of another gateway")
	}
	l.must(os.WriteFile(l.file, nil, 0o600)) // as after a power loss
	l.syncExpect(l.gateway(), "")
	if got := l.rules(); got != none {
		t.Errorf("unexpected rules %s", got)
	}
}
