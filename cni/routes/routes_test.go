package routes

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

func nets(texts ...string) (out []netip.Prefix) {
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func node(name string, since int64, ranges string, addresses ...string) Node {
	n := Node{Name: name, RegisteredAt: time.Unix(since, 0), PodCIDRs: nets(strings.Fields(ranges)...)}
	for _, a := range addresses {
		n.Addresses = append(n.Addresses, netip.MustParseAddr(a))
	}
	return n
}

// host is a node with the networks 10.0.0.0/24 on eth0 and 172.16.0.0/16 on eth1, and a pod bridge.
func host() Input {
	return Input{Enabled: true, PodCIDRs: nets("10.42.0.0/24", "fd42::/64"), Links: []Link{
		{Index: 2, Name: "eth0", Prefixes: nets("10.0.0.1/24", "fd00::1/64")},
		{Index: 3, Name: "eth1", Prefixes: nets("172.16.0.1/16")},
		{Index: 4, Name: "cni0", Prefixes: nets("10.42.0.1/24", "fd42::1/64")},
	}}
}

func route(r, via string, link, protocol int) Route {
	out := Route{Dst: netip.MustParsePrefix(r), LinkIndex: link, Protocol: protocol}
	if via != "" {
		out.NextHop = netip.MustParseAddr(via)
	}
	return out
}

func describePlan(p Plan) string {
	var out []string
	for _, r := range p.Remove {
		out = append(out, fmt.Sprintf("-%s via %s dev %d", r.Dst, r.NextHop, r.LinkIndex))
	}
	for _, r := range p.Add {
		out = append(out, fmt.Sprintf("+%s via %s dev %d", r.Dst, r.NextHop, r.LinkIndex))
	}
	return strings.Join(append(out, fmt.Sprint(p.Reachable)), ", ")
}

func TestRoutes(t *testing.T) {
	b := node("b", 1, "10.42.1.0/24 fd42:0:0:1::/64", "10.0.0.2", "fd00::2")
	b4 := node("b", 1, "10.42.1.0/24", "10.0.0.2")
	for name, row := range map[string]struct {
		change  func(*Input)
		want    string
		problem string
	}{
		"a new node gets a route per family": {func(in *Input) { in.Nodes = []Node{b} },
			"+10.42.1.0/24 via 10.0.0.2 dev 2, +fd42:0:0:1::/64 via fd00::2 dev 2, 1", ""},
		"a family without local pod CIDRs gets no route": {func(in *Input) {
			in.Nodes, in.PodCIDRs = []Node{b}, nets("10.42.0.0/24")
		},
			"+10.42.1.0/24 via 10.0.0.2 dev 2, 1", ""},
		"the first address on a network of the host is the next hop": {func(in *Input) {
			in.Nodes = []Node{node("b", 1, "10.42.1.0/24", "192.0.2.1", "172.16.9.9")}
		},
			"+10.42.1.0/24 via 172.16.9.9 dev 3, 1", ""},
		"an existing route is kept": {func(in *Input) {
			in.Nodes, in.Routes = []Node{b4}, []Route{route("10.42.1.0/24", "10.0.0.2", 2, Protocol)}
		}, "1", ""},
		"a changed address changes the route": {func(in *Input) {
			in.Nodes, in.Routes = []Node{b4}, []Route{route("10.42.1.0/24", "10.0.0.9", 2, Protocol)}
		}, "-10.42.1.0/24 via 10.0.0.9 dev 2, +10.42.1.0/24 via 10.0.0.2 dev 2, 1", ""},
		"the route of a deleted node is removed": {func(in *Input) {
			in.Routes = []Route{route("10.42.1.0/24", "10.0.0.2", 2, Protocol), route("10.42.2.0/24", "10.0.0.3", 2, 4)}
		}, "-10.42.1.0/24 via 10.0.0.2 dev 2, 0", ""},
		"disabled, only berth's routes are removed": {func(in *Input) {
			in.Enabled, in.Nodes, in.Routes = false, []Node{b4}, []Route{route("10.42.1.0/24", "10.0.0.2", 2, Protocol),
				route("10.42.2.0/24", "10.0.0.3", 2, 4)}
		}, "-10.42.1.0/24 via 10.0.0.2 dev 2, 0", ""},
		"a foreign route with the same next hop is used": {func(in *Input) {
			in.Nodes, in.Routes = []Node{b4}, []Route{route("10.42.1.0/24", "10.0.0.2", 2, 4)}
		}, "1", ""},
		"a conflicting foreign route is kept and reported": {func(in *Input) {
			in.Nodes, in.Routes = []Node{b4}, []Route{route("10.42.1.0/24", "10.0.0.7", 2, 4)}
		}, "0", "b: conflicting route 10.42.1.0/24 via 10.0.0.7 to eth0 (protocol 4) of another component: pods in " +
			"10.42.1.0/24 should be reached via 10.0.0.2"},
		"a foreign route to a part of the range is reported": {func(in *Input) {
			in.Nodes, in.Routes = []Node{b4}, []Route{route("10.42.1.128/25", "", 3, 2)}
		}, "+10.42.1.0/24 via 10.0.0.2 dev 2, 0", "b: conflicting route 10.42.1.128/25 to eth1 (protocol 2) of " +
			"another component: pods in 10.42.1.0/24 should be reached via 10.0.0.2"},
		"a node behind a router is unreachable": {func(in *Input) {
			in.Nodes = []Node{node("b", 1, "10.42.1.0/24", "192.0.2.1")}
		},
			"0", "b: node address 192.0.2.1 is not on a network of this host: pods in 10.42.1.0/24 are reachable " +
				"only through routers with a route to them"},
		"an address of this host is not a next hop": {func(in *Input) {
			in.Nodes = []Node{node("b", 1, "10.42.1.0/24", "10.0.0.1")}
		},
			"0", "b: node address 10.0.0.1 is an address of this host on eth0: pods in 10.42.1.0/24 are unreachable"},
		"another address of this host is not a next hop": {func(in *Input) {
			in.Links[0].Prefixes = append(in.Links[0].Prefixes, nets("10.0.0.9/32", "fd00::9/64")...)
			in.Nodes = []Node{node("b", 1, "10.42.1.0/24 fd42:0:0:1::/64", "10.0.0.9", "fd00::9"),
				node("c", 1, "10.42.2.0/24", "10.0.0.3")}
		}, "+10.42.2.0/24 via 10.0.0.3 dev 2, 1", "b: node address 10.0.0.9 is an address of this host on eth0: pods " +
			"in 10.42.1.0/24 are unreachable\n" +
			"b: node address fd00::9 is an address of this host on eth0: pods in fd42:0:0:1::/64 are unreachable"},
		"an address of this host on another network is not a next hop": {func(in *Input) {
			in.Nodes = []Node{node("b", 1, "10.42.1.0/24", "172.16.0.1")}
		},
			"0", "b: node address 172.16.0.1 is an address of this host on eth1: pods in 10.42.1.0/24 are unreachable"},
		"a broadcast address is not a next hop": {func(in *Input) {
			in.Nodes = []Node{node("b", 1, "10.42.1.0/24", "10.0.0.255")}
		},
			"0", "b: node address 10.0.0.255 is the broadcast address of 10.0.0.0/24 on eth0: pods in 10.42.1.0/24 " +
				"are unreachable"},
		"a later usable address is used": {func(in *Input) {
			in.Nodes = []Node{node("b", 1, "10.42.1.0/24", "10.0.0.255", "10.0.0.2")}
		},
			"+10.42.1.0/24 via 10.0.0.2 dev 2, 1", ""},
		"a network of two addresses has no broadcast address": {func(in *Input) {
			in.Links[0].Prefixes, in.Nodes = nets("10.0.0.0/31"), []Node{node("b", 1, "10.42.1.0/24", "10.0.0.1")}
		}, "+10.42.1.0/24 via 10.0.0.1 dev 2, 1", ""},
		"an address of a pod is not a next hop": {func(in *Input) {
			in.Nodes = []Node{node("b", 1, "10.42.1.0/24", "10.42.0.7")}
		},
			"0", "b: node address 10.42.0.7 is not on a network of this host: pods in 10.42.1.0/24 are reachable " +
				"only through routers with a route to them"},
		"a node without an address of the family is reported": {func(in *Input) {
			in.Nodes = []Node{node("b", 1, "10.42.1.0/24", "fd00::2")}
		},
			"0", "b: the node has no address in the family of its pod CIDR 10.42.1.0/24"},
		"a range that contains the host's network is rejected": {func(in *Input) {
			in.Nodes = []Node{node("b", 1, "10.0.0.0/8", "10.0.0.2")}
		},
			"0", "b: pod CIDR 10.0.0.0/8 overlaps that of this node, 10.42.0.0/24"},
		"a range inside the host's network is rejected": {func(in *Input) {
			in.Nodes = []Node{node("b", 1, "172.16.3.0/24", "10.0.0.2")}
		},
			"0", "b: pod CIDR 172.16.3.0/24 overlaps the network 172.16.0.0/16 of eth1"},
		"the node that registered first keeps an overlapping range": {func(in *Input) {
			in.Nodes = []Node{node("a", 9, "10.42.1.0/24", "10.0.0.9"), node("b", 1, "10.42.1.0/25", "10.0.0.2")}
		}, "+10.42.1.0/25 via 10.0.0.2 dev 2, 1", "a: pod CIDR 10.42.1.0/24 overlaps that of another node, " +
			"10.42.1.0/25"},
		"a node without pod CIDRs needs no routes": {func(in *Input) {
			in.PodCIDRs, in.Nodes = nil, []Node{b4}
		}, "0", ""},
	} {
		in := host()
		row.change(&in)
		p := Decide(in)
		var problems []string
		for _, tr := range p.Problems {
			problems = append(problems, tr.Node+": "+tr.Message)
		}
		if got := describePlan(p); got != row.want || strings.Join(problems, "\n") != row.problem {
			t.Errorf("%s:\n got %s\nwant %s\n%s", name, got, row.want, strings.Join(problems, "\n"))
		}
	}
}

// TestMarkRejected: a rejected route is a problem of its node only. A route without a node is an error of
// the host.
func TestMarkRejected(t *testing.T) {
	in := host()
	in.Nodes = []Node{
		node("b", 1, "10.42.1.0/24 fd42:0:0:1::/64", "10.0.0.2", "fd00::2"),
		node("c", 1, "10.42.2.0/24", "10.0.0.3"),
		node("far", 1, "10.42.3.0/24", "192.0.2.1"),
	}
	in.Routes = []Route{route("10.42.9.0/24", "10.0.0.9", 2, Protocol)}
	p := Decide(in)
	if p.Reachable != 2 || len(p.Add) != 3 || len(p.Problems) != 1 {
		t.Fatalf("%+v", p)
	}
	for _, r := range p.Add {
		if r.Dst.Overlaps(netip.MustParsePrefix("10.42.2.0/24")) {
			continue
		}
		if !p.MarkRejected(r, "refused") {
			t.Errorf("MarkRejected: no node for route %v", r)
		}
	}
	if p.MarkRejected(p.Remove[0], "refused") {
		t.Errorf("MarkRejected: got a node for removed route %v", p.Remove[0])
	}
	if got, want := fmt.Sprint(p.Reachable, p.Problems[1:]), "1 [{b refused} {b refused}]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestMasquerading(t *testing.T) {
	in := host()
	in.Nodes = []Node{
		node("b", 1, "10.42.1.0/24 fd42:0:0:1::/64", "10.0.0.2", "fd00::2"),
		node("far", 2, "10.42.3.0/24", "192.0.2.1"),
		node("bad", 3, "172.16.3.0/24", "10.0.0.3"),
	}
	p := Decide(in)
	want := "{[{10.42.0.0 10.42.0.255} {fd42:: fd42::ffff:ffff:ffff:ffff}] [{10.42.0.0 10.42.1.255} {10.42.3.0 " +
		"10.42.3.255} {fd42:: fd42::1:ffff:ffff:ffff:ffff}]}"
	if got := fmt.Sprint(p.Masquerade); got != want || !p.MasqueradeChanged {
		t.Errorf("got %s (change: %t)\nwant %s", got, p.MasqueradeChanged, want)
	}
	in.Masquerade = p.Masquerade
	if Decide(in).MasqueradeChanged {
		t.Error("unchanged rules were planned again")
	}
	in.Enabled = false
	if p := Decide(in); !p.MasqueradeChanged || !p.Masquerade.Equal(Masquerade{}) {
		t.Error("masquerading rules remain after it was disabled")
	}
}

func TestMergeRanges(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "[]",
		"10.0.0.0/24 10.0.2.0/24":           "[{10.0.0.0 10.0.0.255} {10.0.2.0 10.0.2.255}]",
		"10.0.1.0/24 10.0.0.0/24":           "[{10.0.0.0 10.0.1.255}]",
		"10.0.0.0/8 10.1.0.0/16 11.0.0.0/8": "[{10.0.0.0 11.255.255.255}]",
		"255.255.255.0/24 ::/64":            "[{255.255.255.0 255.255.255.255} {:: ::ffff:ffff:ffff:ffff}]",
		"ffff:ffff:ffff:ffff::/64 0.0.0.0/0": "[{0.0.0.0 255.255.255.255} {ffff:ffff:ffff:ffff:: " +
			"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff}]",
		"10.0.0.0/25 10.0.0.128/25 10.0.1.0/30": "[{10.0.0.0 10.0.1.3}]",
	} {
		if got := fmt.Sprint(MergeRanges(nets(strings.Fields(text)...))); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}

// TestDecideConverges: for random nodes in any order, one plan establishes the desired state and changes no
// foreign routes (R1 to R4).
func TestDecideConverges(t *testing.T) {
	for seed := range uint64(3000) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		in := host()
		for i := range rnd.IntN(12) {
			n := node(
				fmt.Sprint("n", i),
				int64(rnd.IntN(3)),
				fmt.Sprintf("10.42.%d.0/%d", rnd.IntN(5), 22+rnd.IntN(4)),
				fmt.Sprintf("10.0.0.%d", 1+rnd.IntN(4)),
			)
			n.PodCIDRs[0] = n.PodCIDRs[0].Masked()
			if rnd.IntN(3) == 0 {
				n.PodCIDRs, n.Addresses = append(
					n.PodCIDRs,
					nets(fmt.Sprintf("fd42:0:0:%d::/64", rnd.IntN(4)))...), append(
					n.Addresses,
					netip.MustParseAddr("fd00::2"),
				)
			}
			in.Nodes = append(in.Nodes, n)
		}
		for range rnd.IntN(8) {
			r := route(
				fmt.Sprintf("10.42.%d.0/24", rnd.IntN(5)),
				fmt.Sprintf("10.0.0.%d", 2+rnd.IntN(3)),
				2,
				[]int{Protocol, 4}[rnd.IntN(2)],
			)
			if !slices.ContainsFunc(in.Routes, func(o Route) bool {
				return o.Dst == r.Dst && o.Protocol == r.Protocol
			}) {
				in.Routes = append(in.Routes, r)
			}
		}
		p := Decide(in)
		shuffled := in
		shuffled.Nodes, shuffled.Routes, shuffled.Links = slices.Clone(
			in.Nodes,
		), slices.Clone(
			in.Routes,
		), slices.Clone(
			in.Links,
		)
		slices.Reverse(shuffled.Nodes)
		slices.Reverse(shuffled.Routes)
		slices.Reverse(shuffled.Links)
		if a, b := fmt.Sprint(p), fmt.Sprint(Decide(shuffled)); a != b {
			t.Fatalf("seed %d: the plan depends on the order\n%s\n%s", seed, a, b)
		}
		for _, r := range p.Remove {
			if r.Protocol != Protocol {
				t.Fatalf("seed %d: removes foreign route %v", seed, r)
			}
			in.Routes = slices.DeleteFunc(in.Routes, func(o Route) bool { return o == r })
		}
		for _, r := range p.Add {
			if slices.ContainsFunc(in.Routes, func(o Route) bool { return o.Dst == r.Dst }) {
				t.Fatalf("seed %d: a second route to %s", seed, r.Dst)
			}
			if slices.ContainsFunc(in.PodCIDRs, r.Dst.Overlaps) ||
				r.Dst.Overlaps(netip.MustParsePrefix("10.0.0.0/24")) {
				t.Fatalf("seed %d: %s overlaps local addresses", seed, r.Dst)
			}
			in.Routes = append(in.Routes, r)
		}
		in.Masquerade = p.Masquerade
		if again := Decide(in); len(again.Add)+len(again.Remove) > 0 || again.MasqueradeChanged {
			t.Fatalf("seed %d: no convergence: %s", seed, describePlan(again))
		}
	}
}
