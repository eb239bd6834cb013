package ruleset

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"berth/services"
)

var seeds = flag.Uint64("seeds", 100, "number of worlds of TestModel")

// world makes random Services, EndpointSlices and packets from few names, addresses and ports, so that
// they meet.
type world struct{ *rand.Rand }

func pick[T any](w world, all ...T) T { return all[w.IntN(len(all))] }

func (w world) chance(n int) bool { return w.IntN(n) == 0 }

func (w world) addr(ipv6 bool, v4, v6 string, n int) netip.Addr {
	if ipv6 {
		return netip.MustParseAddr(fmt.Sprint(v6, 1+w.IntN(n)))
	}
	return netip.MustParseAddr(fmt.Sprint(v4, 1+w.IntN(n)))
}

func (w world) some(n int, f func() netip.Addr) (out []netip.Addr) {
	for range w.IntN(n) {
		out = append(out, f())
	}
	return out
}

func (w world) name() services.Name {
	return services.Name{Namespace: pick(w, "a", "b"), Name: pick(w, "x", "y", "z")}
}

// clusterIP is derived from the name: the API server does not give an address to two Services.
func clusterIP(n services.Name, ipv6 bool) netip.Addr {
	i := 1 + 3*int(n.Namespace[0]-'a') + int(n.Name[0]-'x')
	if ipv6 {
		return netip.MustParseAddr(fmt.Sprint("fd43::", i))
	}
	return netip.MustParseAddr(fmt.Sprint("10.43.0.", i))
}

func (w world) update(name services.Name) Update {
	if w.chance(6) {
		return Update{Name: name}
	}
	svc := &services.Service{
		Name: name, Type: pick(w, corev1.ServiceTypeClusterIP, corev1.ServiceTypeLoadBalancer),
		InternalLocal: w.chance(4), ExternalLocal: w.chance(3), Headless: w.chance(12),
	}
	if w.chance(15) {
		svc.ProxiedBy = "other"
	}
	if w.chance(4) {
		svc.AffinitySeconds = int32(w.IntN(3))
	}
	families := pick(w, []bool{false}, []bool{true}, []bool{false, true})
	for _, ipv6 := range families {
		svc.ClusterIPs = append(svc.ClusterIPs, clusterIP(name, ipv6))
	}
	for i := range 1 + w.IntN(2) {
		p := services.Port{Name: pick(w, "p", "q"), Protocol: pick(w, corev1.ProtocolTCP, corev1.ProtocolUDP),
			Port: uint16(80 + i)}
		if w.chance(2) {
			p.NodePort = uint16(80 + w.IntN(3))
		}
		svc.Ports = append(svc.Ports, p)
	}
	address := func() netip.Addr { // also addresses of other kinds
		ipv6 := w.chance(2)
		switch w.IntN(4) {
		case 0:
			return clusterIP(w.name(), ipv6)
		case 1:
			return w.addr(ipv6, "192.0.2.", "2001:db8::", 1)
		}
		return w.addr(ipv6, "198.51.100.", "2001:db8:1::", 2)
	}
	svc.LoadBalancerIPs, svc.ExternalIPs = w.some(3, address), w.some(3, address)
	for range w.IntN(3) {
		text := pick(w, "203.0.113.0/25", "203.0.113.4/32", "192.0.2.0/24", "0.0.0.0/0", "2001:db8:2::/64", "::/0")
		svc.LoadBalancerSourceRanges = append(svc.LoadBalancerSourceRanges, netip.MustParsePrefix(text))
	}
	u := Update{Name: name, Service: svc}
	hosts := w.Perm(9) // no endpoint is in two EndpointSlices: which one counts is a matter of TestSelect
	for i := range w.IntN(4) {
		u.Slices = append(u.Slices, w.slice(name, i, hosts[2*i:2*i+w.IntN(3)]))
	}
	return u
}

func (w world) slice(name services.Name, i int, hosts []int) *services.Slice {
	s := &services.Slice{Service: name, Name: fmt.Sprint("s", i), IPv6: w.chance(2)}
	for _, port := range []string{"p", "q"} {
		s.Ports = append(s.Ports, services.EndpointPort{Name: port,
			Protocol: pick(w, corev1.ProtocolTCP, corev1.ProtocolUDP), Port: uint16(8000 + i)})
	}
	hints := w.chance(2)
	for _, host := range hosts {
		a := netip.MustParseAddr(fmt.Sprint("10.1.0.", 1+host))
		if s.IPv6 {
			a = netip.MustParseAddr(fmt.Sprint("fd01::", 1+host))
		}
		e := services.Endpoint{Address: a, Node: pick(w, "", "n1", "n2"), Ready: !w.chance(3)}
		e.Serving, e.Terminating = e.Ready || w.chance(2), !e.Ready && w.chance(2)
		if hints && !w.chance(8) {
			e.ForZones = pick(w, []string{"a"}, []string{"b"}, []string{"a", "b"})
		}
		if hints && !w.chance(3) {
			e.ForNodes = pick(w, []string{"n1"}, []string{"n2"})
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

func (w world) packet(node *Node) packet {
	ipv6 := w.chance(2)
	p := packet{protocol: pick(w, TCP, UDP), port: uint16(80 + w.IntN(3))}
	switch w.IntN(5) {
	case 0, 1:
		p.dst = clusterIP(w.name(), ipv6)
	case 2:
		p.dst = w.addr(ipv6, "192.0.2.", "2001:db8::", 1)
	default:
		p.dst = w.addr(ipv6, "198.51.100.", "2001:db8:1::", 3)
	}
	switch w.IntN(4) {
	case 0:
		p.src, p.fromNode = w.addr(ipv6, "192.0.2.", "2001:db8::", 1), true
	case 1:
		p.src = w.addr(ipv6, "203.0.113.", "2001:db8:2::", 5)
	case 2:
		p.src = w.addr(ipv6, "198.51.100.", "2001:db8:1::", 3)
		p.fromNode = w.chance(2)
	default:
		p.src = w.addr(ipv6, "10.1.0.", "fd01::", 6)
	}
	return p
}

// node makes the node of the tests, or one that knows less.
func (w world) node() *Node {
	n := *testNode
	n.PodCIDRs = pick(w, n.PodCIDRs, prefixes("10.1.0.0/30", "fd01::/126"), nil)
	n.Zone = pick(w, "a", "b", "")
	n.NodePortAddresses = pick(w, n.NodePortAddresses, nil)
	return &n
}

// TestModel checks R1 to R4 in seeded worlds.
func TestModel(t *testing.T) {
	t.Parallel()
	for seed := range *seeds {
		w := world{rand.New(rand.NewPCG(seed, 17))}
		s := NewState(w.node())
		objects, kernel := map[services.Name]Update{}, map[ID]Element{}
		for step := range 12 {
			var updates []Update
			if w.chance(8) {
				s.SetNode(w.node())
				updates = sorted(objects)
			} else {
				updated := map[services.Name]Update{}
				for range 1 + w.IntN(3) {
					name := w.name()
					updated[name] = w.update(name)
				}
				updates = sorted(updated)
			}
			before := owners(s)
			c := s.Apply(updates)
			applyTo(t, kernel, c, fmt.Sprintf("seed %d, step %d", seed, step))
			for _, u := range updates {
				if objects[u.Name] = u; u.Service == nil {
					delete(objects, u.Name)
				}
			}
			checkOwnFrontends(t, seed, before, owners(s), updates, c)
			compareWithFresh(t, seed, s, objects, kernel)
			in := interpreter{kernel, s.Node()}
			for range 40 {
				p := w.packet(s.Node())
				if got, want := in.run(p), oracle(objects, s.Node(), p); !got.equal(want) {
					t.Fatalf("seed %d, step %d: packet %+v: got %+v, want %+v", seed, step, p, got, want)
				}
			}
		}
	}
}

func owners(s *State) map[Key]services.Name {
	out := map[Key]services.Name{}
	for k, c := range s.owners {
		out[k] = c.svc.Name
	}
	return out
}

// applyTo changes the elements as the kernel does: it refuses to delete what it does not have, and to
// add what it has.
func applyTo(t *testing.T, kernel map[ID]Element, c Change, at string) {
	t.Helper()
	for _, e := range c.Delete {
		if old, found := kernel[e.ID()]; !found || old.Value != e.Value {
			t.Fatalf("%s: deleted element %+v is not there (found %+v)", at, e, old)
		}
		delete(kernel, e.ID())
	}
	for _, e := range c.Add {
		if old, found := kernel[e.ID()]; found {
			t.Fatalf("%s: added element %+v is there: %+v", at, e, old)
		}
		kernel[e.ID()] = e
	}
}

// checkOwnFrontends checks R4.
func checkOwnFrontends(t *testing.T, seed uint64, before, after map[Key]services.Name, updates []Update, c Change) {
	t.Helper()
	changed := map[services.Name]bool{}
	for _, u := range updates {
		changed[u.Name] = true
	}
	for _, e := range append(c.Delete, c.Add...) {
		if e.Set == HairpinSet || e.Set == ClusterIPSet {
			continue
		}
		key, ok := ParseKey([]byte(e.Key), e.IPv6)
		if !ok || !changed[before[key]] && !changed[after[key]] {
			t.Fatalf("seed %d: element %+v of a Service that has not changed", seed, e)
		}
	}
}

// compareWithFresh checks R2 and R3: the elements do not depend on the history.
func compareWithFresh(
	t *testing.T, seed uint64, s *State, objects map[services.Name]Update, kernel map[ID]Element,
) {
	t.Helper()
	fresh := NewState(s.Node())
	want := map[ID]Element{}
	for _, e := range fresh.Apply(sorted(objects)).Add {
		want[e.ID()] = e
	}
	n := 0
	for _, ipv6 := range []bool{false, true} {
		for e := range s.All(ipv6) {
			n++
			if kernel[e.ID()] != e {
				t.Fatalf("seed %d: All returns %+v, the kernel has %+v", seed, e, kernel[e.ID()])
			}
		}
	}
	if n != len(kernel) || len(want) != len(kernel) {
		t.Fatalf("seed %d: All has %d elements, the kernel %d, a fresh state %d", seed, n, len(kernel), len(want))
	}
	chains := [2]map[string]int{{}, {}}
	for id, e := range want {
		if kernel[id] != e {
			t.Fatalf("seed %d: a fresh state has %+v, the kernel %+v", seed, e, kernel[id])
		}
		if e.Set == FrontendMap {
			chains[index(e.IPv6)][e.Value]++
		}
	}
	for i, ipv6 := range []bool{false, true} {
		if !maps.Equal(chains[i], s.Chains(ipv6)) {
			t.Fatalf("seed %d: got chains %v, want %v", seed, s.Chains(ipv6), chains[i])
		}
	}
}

// TestStaleUDP: a frontend is reported if it is new or gone or has lost an endpoint.
func TestStaleUDP(t *testing.T) {
	t.Parallel()
	udp := func(endpoints ...string) Update {
		s := slice(53, endpoints...)
		s.Ports[0].Protocol = corev1.ProtocolUDP
		svc := service(func(s *services.Service) { s.Ports[0].Protocol = corev1.ProtocolUDP })
		return Update{Name: svc.Name, Service: svc, Slices: []*services.Slice{s}}
	}
	s := NewState(testNode)
	for _, c := range []struct {
		name string
		u    Update
		want int
	}{
		{"new", udp("10.1.0.1"), 1},
		{"one more endpoint", udp("10.1.0.1", "10.1.0.2"), 0},
		{"no change", udp("10.1.0.1", "10.1.0.2"), 0},
		{"an endpoint that still serves", udp("10.1.0.1 terminating", "10.1.0.2"), 0},
		{"an endpoint that is gone", udp("10.1.0.2"), 1},
		{"an endpoint that does not serve", udp("10.1.0.2 notready"), 1},
		{"gone", Update{Name: udp().Name}, 1},
		{"TCP", Update{Name: udp().Name, Service: service(nil), Slices: []*services.Slice{slice(80, "10.1.0.1")}}, 0},
	} {
		if got := s.Apply([]Update{c.u}).StaleUDP; len(got) != c.want {
			t.Errorf("%s: got %v, want %d frontends", c.name, got, c.want)
		}
	}
}
