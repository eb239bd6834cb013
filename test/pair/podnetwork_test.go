package pair

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"berth/cni/gateway"
	"berth/cni/routes"
	"berth/control"
	"berth/control/loadbalancer"
	servers "berth/test/control"
	"berth/test/hosts"
)

// TwoHosts is a server with two nodes on separate hosts that are connected by a LAN.
type TwoHosts struct {
	*TwoNodes
	lan *hosts.LAN
	// outsidePort is the port of an HTTP server outside of the cluster, which responds with the address of
	// the client. It has no route to pods.
	outsidePort string
}

var podCIDRs = []netip.Prefix{netip.MustParsePrefix("10.206.0.0/16"), netip.MustParsePrefix("fd42:206::/48")}

// startTwoHosts starts a server and joins two nodes, whose agents configure CNI and routes. config has more
// fields of BerthConfiguration.
func startTwoHosts(t *testing.T, config map[string]any) *TwoHosts {
	t.Helper()
	lan, err := hosts.NewLAN()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lan.Close(); err != nil {
			t.Error(err)
		}
	})
	server := servers.Start(t, func(c *control.Config) {
		c.Listen = netip.AddrPortFrom(lan.Machine, 0).String()
		c.ClusterCIDRs = podCIDRs
		c.LoadBalancerPool = loadbalancer.Pool{{First: poolAddress(lan), Last: poolAddress(lan)}}
	})
	w := &TwoHosts{TwoNodes: &TwoNodes{Server: server, t: t, A: &Pair{t: t, Server: server}, B: &Pair{t: t,
		Server: server}}, lan: lan}
	w.serveOutside()
	w.A.createBootstrapToken()
	berthConfig := map[string]any{"cniPodCIDRs": []string{"node"}}
	maps.Copy(berthConfig, config)
	for _, p := range []*Pair{w.A, w.B} {
		p.joinHost(t.TempDir(), pairOptions{WithoutCNI: true, LAN: lan, BerthConfig: berthConfig})
	}
	for _, p := range []*Pair{w.A, w.B} {
		p.waitForNodeCondition("Ready", "True")
	}
	return w
}

// poolAddress is the only address for load balancers: one of the network that no host has.
func poolAddress(lan *hosts.LAN) netip.Addr {
	a := lan.Machine.As4()
	a[3] = 240
	return netip.AddrFrom4(a)
}

// serveOutside starts the HTTP server outside of the cluster. It runs until the test ends.
func (w *TwoHosts) serveOutside() {
	var l net.Listener
	err := w.lan.RunOutside(func() (err error) {
		l, err = net.Listen("tcp", ":0")
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	_, w.outsidePort, _ = net.SplitHostPort(l.Addr().String())
	server := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprintln(rw, strings.TrimPrefix(host, "::ffff:"))
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	w.t.Cleanup(func() {
		if err := server.Close(); err != nil {
			w.t.Error(err)
		}
		<-done
	})
}

// addresses returns the two addresses at a path of a pod or a node, IPv4 first.
func (w *TwoHosts) addresses(kind, name, path string) (out []netip.Addr) {
	w.t.Helper()
	for text := range strings.FieldsSeq(w.Kubectl(w.t, "get", kind, name, "-o", "jsonpath={"+path+"}")) {
		out = append(out, parseAddr(w.t, text))
	}
	slices.SortFunc(out, netip.Addr.Compare)
	if len(out) != 2 || !out[0].Is4() || !out[1].Is6() {
		w.t.Fatalf("%s %s: got addresses %v", kind, name, out)
	}
	return out
}

// waitForClientAddress waits until the response to a request from the pod contains the address want.
func (w *TwoHosts) waitForClientAddress(pod string, host netip.Addr, port, path string, want netip.Addr) {
	w.t.Helper()
	url := "http://" + net.JoinHostPort(host.String(), port) + path
	w.A.waitUntil(pod+" at "+url+" to respond with "+want.String(), func() string {
		out, err := w.TryKubectl(w.t, "", "exec", pod, "--", "/bin/testbox", "get", url)
		if err == nil && slices.Contains(strings.Fields(out), want.String()) {
			return ""
		}
		return out
	})
}

// netNS returns the network namespace of a node's host.
func (w *TwoHosts) netNS(p *Pair) netns.NsHandle {
	w.t.Helper()
	ns, err := netns.GetFromName(p.Host.Name)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = ns.Close() })
	return ns
}

// installedRoutes returns the routes and nftables rules of berth in the network namespace of a host. The
// handles of the rules show whether a rule was replaced.
func (w *TwoHosts) installedRoutes(p *Pair) string {
	w.t.Helper()
	h, err := netlink.NewHandleAt(w.netNS(p), unix.NETLINK_ROUTE)
	if err != nil {
		w.t.Fatal(err)
	}
	defer h.Close()
	var out []string
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		all, err := h.RouteListFiltered(family, &netlink.Route{Protocol: routes.Protocol}, netlink.RT_FILTER_PROTOCOL)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, r := range all {
			out = append(out, fmt.Sprintf("%s via %s", r.Dst, r.Gw))
		}
	}
	c, err := nftables.New(nftables.WithNetNSFd(int(w.netNS(p))))
	if err != nil {
		w.t.Fatal(err)
	}
	tables, err := c.ListTables()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, t := range tables {
		if t.Name != "berth" {
			continue
		}
		rules, err := c.GetRules(t, &nftables.Chain{Name: "postrouting"})
		if err != nil || len(rules) != 1 {
			w.t.Fatalf("got %d rules, want 1, %v", len(rules), err)
		}
		out = append(out, fmt.Sprintf("rule %d of family %d", rules[0].Handle, t.Family))
	}
	return strings.Join(out, "\n")
}

// TestPodNetworkAcrossHosts checks that pods on two nodes reach each other without NAT, and that
// connections to the outside have the address of the node. An agent restart changes no route. The
// routes to a deleted node are removed. Disabling podRouting removes all routes.
func TestPodNetworkAcrossHosts(t *testing.T) {
	t.Parallel()
	w := startTwoHosts(t, nil)
	a, b := w.A, w.B
	for _, p := range []*Pair{a, b} {
		p.waitUntil("the routes of "+p.Node, func() string {
			got := p.field("node", p.Node, `.status.conditions[?(@.type=="NetworkUnavailable")]`)
			if strings.Contains(got, `"status":"False"`) && strings.Contains(got, "BerthHasRoutes") &&
				strings.Contains(got,
					"pods of 1 of 1 other nodes are reachable") {
				return ""
			}
			return got
		})
	}
	w.Apply(t, a.pod("a", "", "sleep"))
	w.Apply(t, b.pod("b", "", "serve", "8080"))
	a.waitForField("pod", "a", readyStatus, "True")
	b.waitForField("pod", "b", readyStatus, "True")
	fromA, toB := w.addresses("pod", "a", ".status.podIPs[*].ip"), w.addresses("pod", "b", ".status.podIPs[*].ip")
	nodeA := w.addresses("node", a.Node, `.status.addresses[?(@.type=="InternalIP")].address`)
	checkConnectivity := func() {
		t.Helper()
		for i, outside := range []netip.Addr{w.lan.Outside4, w.lan.Outside6} {
			w.waitForClientAddress("a", toB[i], "8080", "/peer", fromA[i])
			w.waitForClientAddress("a", outside, w.outsidePort, "/", nodeA[i])
		}
	}
	checkConnectivity()

	// A restart of the agent of A.
	before := w.installedRoutes(a)
	if strings.Count(before, " via ") != 2 || strings.Count(before, "rule ") != 2 {
		t.Errorf("%s: want two routes and two rules, got\n%s", a.Node, before)
	}
	changes := w.monitorRoutes(a)
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	if err := a.Agent.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	w.Apply(t, a.pod("later", "", "print", "up", ",", "sleep"))
	a.waitForField("pod", "later", readyStatus, "True") // the agent has synced with the server
	if got := append(changes(), w.installedRoutes(a)); len(got) != 1 || got[0] != before {
		t.Errorf("restart of the agent changed routes: got %s, want\n%s", got, before)
	}

	// Pods of B stay reachable while its agent is not running.
	if err := b.Agent.Kill9(); err != nil {
		t.Fatal(err)
	}
	checkConnectivity()
	w.Kubectl(t, "delete", "node", b.Node)
	a.waitUntil("removal of the routes to the deleted node", func() string {
		if got := w.installedRoutes(a); strings.Contains(got, " via ") {
			return got
		}
		return ""
	})
	if err := b.Agent.Start(ctx); err != nil {
		t.Fatal(err)
	}
	a.waitUntil("the routes to the recreated node", func() string {
		if got := w.installedRoutes(a); strings.Count(got, " via ") != 2 {
			return got
		}
		return ""
	})
	b.waitForNodeCondition("Ready", "True")
	w.disableRoutes(ctx)
}

// monitorRoutes subscribes to route changes. The returned function ends the subscription and returns
// the changed routes of berth.
func (w *TwoHosts) monitorRoutes(p *Pair) func() []string {
	w.t.Helper()
	updates, done := make(chan netlink.RouteUpdate), make(chan struct{})
	if err := netlink.RouteSubscribeAt(w.netNS(p), updates, done); err != nil {
		w.t.Fatal(err)
	}
	var changed []string
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for u := range updates {
			if u.Protocol == routes.Protocol {
				changed = append(changed, u.String())
			}
		}
	}()
	return func() []string {
		close(done)
		<-stopped
		return changed
	}
}

// disableRoutes sets podRouting: none on A. The agent removes its routes, rules and state file, and the
// CNI configuration enables masquerading.
func (w *TwoHosts) disableRoutes(ctx context.Context) {
	w.t.Helper()
	a := w.A
	stateFile := filepath.Join(a.Agent.StateDir, gateway.FileName)
	if _, err := os.Stat(stateFile); err != nil {
		w.t.Error(err)
	}
	text, err := os.ReadFile(a.Agent.ConfigFile)
	if err == nil {
		err = os.WriteFile(a.Agent.ConfigFile, append(text, "podRouting: none\n"...), 0o600)
	}
	if err == nil {
		err = a.Agent.Restart(ctx)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	a.waitUntil("removal of the routes and the state file", func() string {
		if _, err := os.Stat(stateFile); err == nil {
			return stateFile + " still exists"
		}
		return w.installedRoutes(a)
	})
	a.waitUntil("ipMasq in the CNI configuration", func() string {
		if text, _ := os.ReadFile(filepath.Join(a.Host.ConfDir, "10-berth.conflist")); !strings.Contains(string(text),
			`"ipMasq": true`) {
			return string(text)
		}
		return ""
	})
}
