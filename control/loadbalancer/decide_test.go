package loadbalancer

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

func addresses(texts ...string) (out []netip.Addr) {
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

func pool(t testing.TB, texts ...string) Pool {
	t.Helper()
	p, err := ParsePool(texts)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func service(name string, age int, change ...func(*Service)) Service {
	s := Service{
		Name: Name{"default", name}, Created: time.Unix(int64(1000-age), 0), IPv4: true, Ports: []Port{{"TCP", 80}},
	}
	for _, f := range change {
		f(&s)
	}
	return s
}

func has(texts ...string) func(*Service) {
	return func(s *Service) { s.Current, s.Admitted = addresses(texts...), true }
}

func wants(texts ...string) func(*Service) {
	return func(s *Service) { s.Wanted = addresses(texts...) }
}

func port(n int32) func(*Service) { return func(s *Service) { s.Ports = []Port{{"TCP", n}} } }

func dual(s *Service) { s.IPv6 = true }

func onlyOn(nodes ...string) func(*Service) {
	return func(s *Service) {
		s.Local, s.Endpoints = true, map[string]bool{}
		for _, n := range nodes {
			s.Endpoints[n] = true
		}
	}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	ssh := map[Port]string{{"TCP", 22}: "SSH"}
	nodes := []Node{
		{Name: "b", Addresses: addresses("192.0.2.2", "2001:db8::2"), Usable: true, Reserved: ssh},
		{Name: "a", Addresses: addresses("192.0.2.1", "2001:db8::1"), Usable: true, Reserved: ssh},
		{Name: "c", Addresses: addresses("192.0.2.3")},
	}
	v4 := pool(t, "192.0.2.100-192.0.2.101")
	for _, c := range []struct {
		name     string
		services []Service
		nodes    []Node
		pool     Pool
		want     string
	}{
		{"addresses of usable nodes", []Service{service("a", 1)}, nodes, nil, "a: 192.0.2.1 192.0.2.2"},
		{"both families", []Service{service("a", 1, dual)}, nodes, nil,
			"a: 192.0.2.1 192.0.2.2 2001:db8::1 2001:db8::2"},
		{"policy Local", []Service{service("a", 1, onlyOn("b", "c"))}, nodes, nil, "a: 192.0.2.2"},
		{"a wanted node address", []Service{service("a", 1, wants("192.0.2.2"))}, nodes, nil, "a: 192.0.2.2"},
		{"a wanted address of no node", []Service{service("a", 1, wants("192.0.2.9"))}, nodes, nil,
			"a: (requested address 192.0.2.9 is not an address of a node)"},
		{"one port on two Services", []Service{service("young", 1), service("old", 2)}, nodes, nil,
			"old: 192.0.2.1 192.0.2.2\nyoung: (port 80/TCP of 192.0.2.1 belongs to Service default/old)"},
		{"the first Service keeps the port", []Service{service("young", 1, has("192.0.2.1")), service("old", 2)}, nodes,
			nil, "old: (port 80/TCP of 192.0.2.1 belongs to Service default/young)\nyoung: 192.0.2.1 192.0.2.2"},
		{"also without endpoints", []Service{service("young", 1, has(), onlyOn()), service("old", 2)}, nodes, nil,
			"old: (port 80/TCP of 192.0.2.1 belongs to Service default/young)\nyoung:"},
		{"different ports", []Service{service("a", 1), service("b", 2, port(81))}, nodes, nil,
			"a: 192.0.2.1 192.0.2.2\nb: 192.0.2.1 192.0.2.2"},
		{"one port on different nodes", []Service{service("a", 1, wants("192.0.2.1")), service("b", 2,
			wants("192.0.2.2"))}, nodes, nil, "a: 192.0.2.1\nb: 192.0.2.2"},
		{"a reserved port", []Service{service("a", 1, port(22))}, nodes, nil,
			"a: (port 22/TCP of 192.0.2.1 is used by SSH of node a)"},
		{"no node is ready", []Service{service("a", 1, has("192.0.2.1")), service("b", 1, port(81))}, []Node{{Name: "a",
			Addresses: addresses("192.0.2.1")}, {Name: "b", Addresses: addresses("192.0.2.2")}}, nil,
			"a: 192.0.2.1\nb:"},

		{"pool", []Service{service("young", 1), service("old", 2)}, nodes, v4, "old: 192.0.2.100\nyoung: 192.0.2.101"},
		{"pool: kept", []Service{service("young", 1, has("192.0.2.100")), service("old", 2)}, nodes, v4,
			"old: 192.0.2.101\nyoung: 192.0.2.100"},
		{"pool: full", []Service{service("a", 3), service("b", 2), service("c", 1)}, nodes, v4,
			"a: 192.0.2.100\nb: 192.0.2.101\nc: (the load balancer pool has no free IPv4 address)"},
		{"pool: not of that family", []Service{service("a", 3, func(s *Service) { s.IPv4, s.IPv6 = false, true })},
			nodes, v4, "a: (the load balancer pool has no IPv6 addresses)"},
		{"pool: one family of two", []Service{service("a", 3, dual)}, nodes, v4, "a: 192.0.2.100"},
		{"pool: one family is full", []Service{service("a", 3, dual), service("b", 2, dual)}, nodes,
			pool(t, "192.0.2.100-192.0.2.101", "2001:db8::100-2001:db8::100"), "a: 192.0.2.100 2001:db8::100\n" +
				"b: 192.0.2.101 (the load balancer pool has no free IPv6 address)"},
		{"pool: wanted", []Service{service("a", 3), service("b", 2, wants("192.0.2.100"))}, nodes, v4,
			"a: 192.0.2.101\nb: 192.0.2.100"},
		{"pool: wanted, taken", []Service{service("a", 3, has("192.0.2.100")), service("b", 2, wants("192.0.2.100"))},
			nodes, v4, "a: 192.0.2.100\nb: (requested address 192.0.2.100 belongs to Service default/a)"},
		{"pool: wanted, outside", []Service{service("b", 2, wants("192.0.2.7"))}, nodes, v4,
			"b: (requested address 192.0.2.7 is not in the load balancer pool)"},
		{"pool: another address is wanted now", []Service{service("b", 2, has("192.0.2.100"), wants("192.0.2.101"))},
			nodes, v4, "b: 192.0.2.101"},
		{"pool: has changed", []Service{service("b", 2, has("192.0.2.7"))}, nodes, v4, "b: 192.0.2.100"},
		{"pool: with an address of a node", []Service{service("b", 2)}, []Node{{Name: "a",
			Addresses: addresses("192.0.2.100")}}, v4, "b: 192.0.2.101"},
		{"pool: two Services have an address", []Service{service("a", 2, has("192.0.2.100")), service("b", 3,
			has("192.0.2.100"))}, nodes, v4, "a: 192.0.2.101\nb: 192.0.2.100"},
	} {
		if got := show(Decide(Input{Services: c.services, Nodes: c.nodes, Pool: c.pool})); got != c.want {
			t.Errorf("%s:\ngot  %q\nwant %q", c.name, got, c.want)
		}
	}
}

func show(all map[Name]Assignment) string {
	var lines []string
	for name, a := range all {
		line := name.Name + ":"
		for _, address := range a.Addresses {
			line += " " + address.String()
		}
		if a.Problem != "" {
			line += " (" + a.Problem + ")"
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func TestParsePool(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"192.0.2.16/28":            "[192.0.2.17-192.0.2.30]",
		"192.0.2.16/31":            "[192.0.2.16-192.0.2.17]",
		"192.0.2.16/32":            "[192.0.2.16-192.0.2.16]",
		"2001:db8::10/124":         "[2001:db8::11-2001:db8::1f]",
		"192.0.2.1 - 192.0.2.3":    "[192.0.2.1-192.0.2.3]",
		"192.0.2.17/28":            `"192.0.2.17/28": did you mean 192.0.2.16/28?`,
		"192.0.2.5-192.0.2.3":      `"192.0.2.5-192.0.2.3" is not a range`,
		"192.0.2.5-2001:db8::1":    `is not a range`,
		"127.0.0.0/8":              "is not an address that a Service can have",
		"192.0.2.1":                "is neither a CIDR",
		"10.0.0.0/8,10.0.0.0/16":   "10.0.0.1-10.0.255.254 overlaps 10.0.0.1-10.255.255.254",
		"192.0.2.1/32,2001::1/128": "[192.0.2.1-192.0.2.1 2001::1-2001::1]",
	} {
		p, err := ParsePool(strings.Split(text, ","))
		got := fmt.Sprint(p)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
	p := pool(t, "192.0.2.16/28")
	if !p.Overlaps(netip.MustParsePrefix("192.0.2.0/24")) || p.Overlaps(netip.MustParsePrefix("192.0.2.0/28")) ||
		p.Overlaps(netip.MustParsePrefix("2001:db8::/32")) {
		t.Error("Overlaps is wrong")
	}
}

// TestModel changes a world at random, applies each decision, and checks the invariants.
func TestModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 1)), services: map[Name]*Service{}}
		if seed%2 == 0 {
			w.pool = pool(t, "192.0.2.2-192.0.2.7", "2001:db8::/125")
		}
		for step := range 60 {
			w.change(step)
			if w.step(); t.Failed() {
				t.Fatalf("seed %d, step %d", seed, step)
			}
		}
	}
}

type world struct {
	t        *testing.T
	rng      *rand.Rand
	services map[Name]*Service
	nodes    []Node
	pool     Pool
}

func (w *world) change(step int) {
	switch w.rng.IntN(5) {
	case 0, 1:
		s := service(fmt.Sprint("s", w.rng.IntN(12)), -step, port(80+w.rng.Int32N(3)))
		s.IPv4 = w.rng.IntN(4) > 0
		s.IPv6 = !s.IPv4 || w.rng.IntN(3) == 0
		if w.rng.IntN(4) == 0 {
			s.Wanted = addresses(fmt.Sprint("192.0.2.", w.rng.IntN(10)))
		}
		if w.rng.IntN(3) == 0 {
			onlyOn(fmt.Sprint("n", w.rng.IntN(4)))(&s)
		}
		if old := w.services[s.Name]; old != nil { // an edit
			s.Created, s.Current, s.Admitted = old.Created, old.Current, old.Admitted
		}
		w.services[s.Name] = &s
	case 2:
		delete(w.services, Name{"default", fmt.Sprint("s", w.rng.IntN(12))})
	default:
		name := fmt.Sprint("n", w.rng.IntN(4))
		w.nodes = slices.DeleteFunc(w.nodes, func(n Node) bool { return n.Name == name })
		if w.rng.IntN(3) > 0 {
			w.nodes = append(w.nodes, Node{
				Name: name, Usable: w.rng.IntN(3) > 0,
				Addresses: addresses("192.0.2."+name[1:], "2001:db8::"+name[1:]),
			})
		}
	}
}

func (w *world) step() {
	in := Input{Nodes: w.nodes, Pool: w.pool}
	for _, s := range w.services {
		in.Services = append(in.Services, *s)
	}
	out := Decide(in)
	slices.Reverse(in.Services) // L5; the map has its own order, too
	slices.Reverse(in.Nodes)
	if again := Decide(in); show(again) != show(out) {
		w.t.Errorf("L5: got %s, then %s", show(out), show(again))
	}
	owner := map[string]Name{}
	for name, a := range out {
		s := w.services[name]
		for _, address := range a.Addresses {
			w.checkAddress(s, address, owner)
		}
		if len(w.pool) > 0 && len(a.Addresses) == 0 && a.Problem == "" {
			w.t.Errorf("L4: %s has neither an address nor a problem", name)
		}
	}
	for name, a := range out {
		s := w.services[name]
		s.Current, s.Admitted = a.Addresses, a.Problem == ""
	}
	if len(w.pool) == 0 {
		return
	}
	in.Services = append(in.Services, service("another", 10000)) // L2: older than all
	for i := range in.Services {
		if s := w.services[in.Services[i].Name]; s != nil {
			in.Services[i] = *s
		}
	}
	after := Decide(in)
	for name, a := range out {
		if !slices.Equal(after[name].Addresses, a.Addresses) {
			w.t.Errorf("L2: %s had %v and has %v after another Service was added", name, a, after[name])
		}
	}
}

func (w *world) checkAddress(s *Service, address netip.Addr, owner map[string]Name) {
	onNode := slices.ContainsFunc(w.nodes, func(n Node) bool { return slices.Contains(n.Addresses, address) })
	keys := []string{address.String()}
	if len(w.pool) == 0 {
		keys = nil
		for _, p := range s.Ports {
			keys = append(keys, fmt.Sprint(address, p))
		}
	} else if !w.pool.Contains(address) || onNode {
		w.t.Errorf("L3: %s has %s", s.Name, address)
	}
	if len(w.pool) == 0 && !onNode {
		w.t.Errorf("%s has %s, which is no node's", s.Name, address)
	}
	for _, key := range keys {
		if other, taken := owner[key]; taken {
			w.t.Errorf("L1: %s and %s have %s", s.Name, other, key)
		}
		owner[key] = s.Name
	}
	if address.Is6() && !s.IPv6 || address.Is4() && !s.IPv4 {
		w.t.Errorf("%s has %s of a family that it does not have", s.Name, address)
	}
}
