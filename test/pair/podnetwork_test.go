package pair

import (
	"context"
	"fmt"
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
	servers "berth/test/control"
	"berth/test/hosts"
)

// TwoHosts is a server with two nodes on separate hosts in one network.
type TwoHosts struct {
	*TwoNodes
	lan *hosts.LAN
	// port of a server outside of the cluster, which has no route to pods and reports its clients'
	// addresses
	outside string
}

var podRanges = []netip.Prefix{netip.MustParsePrefix("10.206.0.0/16"), netip.MustParsePrefix("fd42:206::/48")}

func startApart(t *testing.T) *TwoHosts {
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
		c.ClusterCIDRs = podRanges
	})
	w := &TwoHosts{TwoNodes: &TwoNodes{Server: server, t: t, A: &Pair{t: t, Server: server}, B: &Pair{t: t,
		Server: server}}, lan: lan}
	w.listen()
	w.A.issueToken()
	for _, p := range []*Pair{w.A, w.B} {
		p.joinHost(t.TempDir(), pairOptions{Bare: true, LAN: lan, Berth: map[string]any{"cniPodCIDRs": []string{"node"}}})
	}
	for _, p := range []*Pair{w.A, w.B} {
		p.nodeIs("Ready", "True")
	}
	return w
}

// listen serves outside of the cluster until the test ends.
func (w *TwoHosts) listen() {
	var l net.Listener
	err := w.lan.RunOutside(func() (err error) {
		l, err = net.Listen("tcp", ":0")
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	_, w.outside, _ = net.SplitHostPort(l.Addr().String())
	server := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprintln(rw, strings.TrimPrefix(host, "::ffff:"))
	})}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(l) }()
	w.t.Cleanup(func() {
		if err := server.Close(); err != nil {
			w.t.Error(err)
		}
		<-ended
	})
}

// addresses returns those of a pod or a node at a path, IPv4 first.
func (w *TwoHosts) addresses(kind, name, path string) (out []netip.Addr) {
	w.t.Helper()
	for text := range strings.FieldsSeq(w.Kubectl(w.t, "get", kind, name, "-o", "jsonpath={"+path+"}")) {
		out = append(out, addr(w.t, text))
	}
	slices.SortFunc(out, netip.Addr.Compare)
	if len(out) != 2 || !out[0].Is4() || !out[1].Is6() {
		w.t.Fatalf("%s %s: got addresses %v", kind, name, out)
	}
	return out
}

// waitForSource waits until the response to a pod's request at an address contains the client's address.
func (w *TwoHosts) waitForSource(pod string, at netip.Addr, port, path string, want netip.Addr) {
	w.t.Helper()
	url := "http://" + net.JoinHostPort(at.String(), port) + path
	w.A.until(pod+" at "+url+" to be "+want.String(), func() string {
		out, err := w.TryKubectl(w.t, "", "exec", pod, "--", "/bin/testbox", "get", url)
		if err == nil && slices.Contains(strings.Fields(out), want.String()) {
			return ""
		}
		return out
	})
}

// ns is the network namespace of a node's host.
func (w *TwoHosts) ns(p *Pair) netns.NsHandle {
	w.t.Helper()
	ns, err := netns.GetFromName(p.Host.Name)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = ns.Close() })
	return ns
}

// installedRoutes returns berth's routes and rules in the network namespace of a host, with the kernel's rule
// handles.
func (w *TwoHosts) installedRoutes(p *Pair) string {
	w.t.Helper()
	h, err := netlink.NewHandleAt(w.ns(p), unix.NETLINK_ROUTE)
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
	c, err := nftables.New(nftables.WithNetNSFd(int(w.ns(p))))
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
			w.t.Fatalf("%d rules, %v", len(rules), err)
		}
		out = append(out, fmt.Sprintf("rule %d of family %d", rules[0].Handle, t.Family))
	}
	return strings.Join(out, "\n")
}

// TestPodNetworkAcrossHosts: pods reach each other directly by the routes of the agents. Outside of
// the cluster, the node's address is visible. Restarts change nothing, the routes to a deleted node
// are removed, and disabling routes removes them.
func TestPodNetworkAcrossHosts(t *testing.T) {
	t.Parallel()
	w := startApart(t)
	a, b := w.A, w.B
	for _, p := range []*Pair{a, b} {
		p.until("the routes of "+p.Node, func() string {
			got := p.field("node", p.Node, `.status.conditions[?(@.type=="NetworkUnavailable")]`)
			if strings.Contains(got, `"status":"False"`) && strings.Contains(got, "BerthHasRoutes") && strings.Contains(got,
				"pods of 1 of 1 other nodes are reachable") {
				return ""
			}
			return got
		})
	}
	w.Apply(t, a.pod("a", "", "sleep"))
	w.Apply(t, b.pod("b", "", "serve", "8080"))
	a.waitForField("pod", "a", ready, "True")
	b.waitForField("pod", "b", ready, "True")
	fromA, toB := w.addresses("pod", "a", ".status.podIPs[*].ip"), w.addresses("pod", "b", ".status.podIPs[*].ip")
	nodeA := w.addresses("node", a.Node, `.status.addresses[?(@.type=="InternalIP")].address`)
	reached := func() {
		t.Helper()
		for i, outside := range []netip.Addr{w.lan.Outside4, w.lan.Outside6} {
			w.waitForSource("a", toB[i], "8080", "/peer", fromA[i])
			w.waitForSource("a", outside, w.outside, "/", nodeA[i])
		}
	}
	reached()

	// A restart and a crash of both agents.
	before := w.installedRoutes(a)
	if strings.Count(before, " via ") != 2 || strings.Count(before, "rule ") != 2 {
		t.Errorf("%s: got\n%s", a.Node, before)
	}
	changes := w.monitorRoutes(a)
	ctx, cancel := context.WithTimeout(t.Context(), waitBound)
	defer cancel()
	if err := a.Agent.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	w.Apply(t, a.pod("later", "", "print", "up", ",", "sleep"))
	a.waitForField("pod", "later", ready, "True") // it has synced with the server
	if got := append(changes(), w.installedRoutes(a)); len(got) != 1 || got[0] != before {
		t.Errorf("restart changed %s, before:\n%s", got, before)
	}

	// The agent of B is killed: its pods keep running and are reachable. Then the node is deleted.
	if err := b.Agent.Kill9(); err != nil {
		t.Fatal(err)
	}
	reached()
	w.Kubectl(t, "delete", "node", b.Node)
	a.until("the way to the node that is gone to go", func() string {
		if got := w.installedRoutes(a); strings.Contains(got, " via ") {
			return got
		}
		return ""
	})
	if err := b.Agent.Start(ctx); err != nil {
		t.Fatal(err)
	}
	a.until("the way to the node that has come back", func() string {
		if got := w.installedRoutes(a); strings.Count(got, " via ") != 2 {
			return got
		}
		return ""
	})
	b.nodeIs("Ready", "True")
	w.disableRoutes(ctx)
}

// monitorRoutes monitors the kernel. The returned function lists the changed routes of berth.
func (w *TwoHosts) monitorRoutes(p *Pair) func() []string {
	w.t.Helper()
	updates, done := make(chan netlink.RouteUpdate), make(chan struct{})
	if err := netlink.RouteSubscribeAt(w.ns(p), updates, done); err != nil {
		w.t.Fatal(err)
	}
	var seen []string
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for u := range updates {
			if u.Protocol == routes.Protocol {
				seen = append(seen, u.String())
			}
		}
	}()
	return func() []string {
		close(done)
		<-ended
		return seen
	}
}

// disableRoutes disables routes on A in the configuration.
func (w *TwoHosts) disableRoutes(ctx context.Context) {
	w.t.Helper()
	a := w.A
	kept := filepath.Join(a.Agent.StateDir, gateway.FileName)
	if _, err := os.Stat(kept); err != nil {
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
	a.until("all that berth has made to go", func() string {
		if _, err := os.Stat(kept); err == nil {
			return kept + " is there"
		}
		return w.installedRoutes(a)
	})
	a.until("the bridge to masquerade", func() string {
		if text, _ := os.ReadFile(filepath.Join(a.Host.ConfDir, "10-berth.conflist")); !strings.Contains(string(text),
			`"ipMasq": true`) {
			return string(text)
		}
		return ""
	})
}
