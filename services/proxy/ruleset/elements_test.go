package ruleset

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"berth/services"
)

func prefixes(all ...string) (out []netip.Prefix) {
	for _, p := range all {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func TestTargets(t *testing.T) {
	t.Parallel()
	both := []*services.Slice{slice(80, "10.1.0.1 node=n1", "10.1.0.2 node=n2")}
	remote := []*services.Slice{slice(80, "10.1.0.2 node=n2")}
	restricted := func(s *services.Service) { s.LoadBalancerSourceRanges = prefixes("192.0.2.0/24") }
	for _, c := range []struct {
		name   string
		kind   Kind
		slices []*services.Slice
		change func(*services.Service)
		want   string
	}{
		{"ClusterIP", ClusterIP, both, nil, "cluster-2"},
		{"affinity", ClusterIP, both, func(s *services.Service) { s.AffinitySeconds = 30 }, "cluster-2-affinity-30"},
		{"no endpoints", ClusterIP, nil, func(s *services.Service) { s.AffinitySeconds = 30 }, "no-endpoints"},
		{"internal Local", ClusterIP, both, func(s *services.Service) { s.InternalLocal = true }, "local-1"},
		{"internal Local without", ClusterIP, remote,
			func(s *services.Service) { s.InternalLocal = true }, "no-local-endpoints"},
		{"internal Local without any", ClusterIP, nil,
			func(s *services.Service) { s.InternalLocal = true }, "no-endpoints"},
		{"NodePort", NodePort, both, nil, "cluster-2"},
		{"NodePort without", NodePort, nil, nil, "no-endpoints"},
		{"internal Local does not affect NodePort", NodePort, both,
			func(s *services.Service) { s.InternalLocal = true }, "cluster-2"},
		{"external Local", NodePort, both, func(s *services.Service) { s.ExternalLocal = true }, "external-local-2-1"},
		{"external Local without", ExternalIP, remote,
			func(s *services.Service) { s.ExternalLocal = true }, "external-local-1-0"},
		{"external Local does not affect ClusterIP", ClusterIP, both,
			func(s *services.Service) { s.ExternalLocal = true }, "cluster-2"},
		{"load balancer with ranges", LoadBalancerIP, both, restricted, "firewall-cluster-2"},
		{"load balancer with ranges without endpoints", LoadBalancerIP, nil, restricted, "firewall-no-endpoints"},
		{"ranges do not affect NodePort", NodePort, both, restricted, "cluster-2"},
		{"range of all addresses", LoadBalancerIP, both, func(s *services.Service) {
			s.LoadBalancerSourceRanges = prefixes("192.0.2.0/24", "0.0.0.0/0")
		}, "cluster-2"},
		{"ranges of the other family", LoadBalancerIP, both, func(s *services.Service) {
			s.LoadBalancerSourceRanges = prefixes("fd00::/8")
		}, "cluster-2"},
	} {
		svc := service(func(s *services.Service) {
			s.Ports[0].NodePort = 30000
			if c.change != nil {
				c.change(s)
			}
		})
		sel := Select(svc, &svc.Ports[0], false, c.slices, testNode)
		got := targetOf(svc, c.kind, false, &sel)
		if got.Chain() != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got.Chain(), c.want)
		}
	}
}

// TestTargetNames: chains of two targets have the same name only if the chains are the same.
func TestTargetNames(t *testing.T) {
	t.Parallel()
	chains := map[string]Target{}
	for _, class := range []Class{Internal, InternalLocal, ExternalLocal, Reject, Drop} {
		for _, firewall := range []bool{false, true} {
			for i := range uint32(27) {
				target := Target{class, firewall, i % 3, i / 3 % 3, i / 9}
				switch class {
				case Internal, External:
					target.Local = 0
				case InternalLocal:
					target.Cluster = 0
				case Reject, Drop:
					target.Cluster, target.Local, target.Affinity = 0, 0, 0
				case ExternalLocal:
				}
				if other, taken := chains[target.Chain()]; taken && other != target {
					t.Errorf("%+v and %+v have the chain %s", target, other, target.Chain())
				}
				chains[target.Chain()] = target
				if back, ok := ParseChain(target.Chain()); !ok || back != target {
					t.Errorf("%+v: chain %s is read as %+v", target, target.Chain(), back)
				}
			}
		}
	}
	for _, name := range []string{
		"", "services", "cluster-x", "cluster-1-2", "cluster-1-affinity-", "local-01", "no-endpoints-1",
	} {
		if target, ok := ParseChain(name); ok {
			t.Errorf("%q is read as %+v", name, target)
		}
	}
}

func TestAllowedSources(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name         string
		ranges, want []netip.Prefix
	}{
		{"nested and equal ranges",
			prefixes("198.51.100.0/25", "198.51.100.7/32", "198.51.100.0/24", "198.51.100.0/24", "203.0.113.0/24"),
			prefixes("198.51.100.0/24", "203.0.113.0/24")},
		{"a range with the node allows the load balancer address",
			prefixes("192.0.2.0/28"), prefixes("192.0.2.0/28", "203.0.113.9/32")},
		{"other family", prefixes("198.51.100.0/24", "fd00::/8"), prefixes("198.51.100.0/24")},
	} {
		svc := service(func(s *services.Service) { s.LoadBalancerSourceRanges = c.ranges })
		f := Frontend{NewKey(netip.MustParseAddr("203.0.113.9"), TCP, 80), LoadBalancerIP, 0}
		if got := allowedSources(svc, f, testNode); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
	for p, want := range map[string]string{
		"192.0.2.0/24": "192.0.2.255", "192.0.2.7/32": "192.0.2.7",
		"fd00::/8": "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
	} {
		if got := LastAddr(netip.MustParsePrefix(p)); got != netip.MustParseAddr(want) {
			t.Errorf("last address of %s: got %s, want %s", p, got, want)
		}
	}
}

func TestKeyLayout(t *testing.T) {
	t.Parallel()
	for a, want := range map[string]string{
		"10.43.0.1": "\x0a\x2b\x00\x01\x11\x00\x00\x00\x00\x35\x00\x00",
		"fd43::1": "\xfd\x43\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01" +
			"\x11\x00\x00\x00\x00\x35\x00\x00",
	} {
		k := NewKey(netip.MustParseAddr(a), UDP, 53)
		if got := string(k.Bytes()); got != want {
			t.Errorf("%s: got %q, want %q", a, got, want)
		}
		if back, ok := ParseKey([]byte(want+"\x01\x00\x00\x00"), k.Addr().Is6()); !ok || back != k {
			t.Errorf("%s: read back as %v", a, back)
		}
	}
	if k := NewKey(netip.MustParseAddr("::ffff:10.43.0.1"), UDP, 53); k.Addr() != netip.MustParseAddr("10.43.0.1") {
		t.Errorf("mapped address: got %v", k)
	}
	if _, ok := ParseKey([]byte("short"), false); ok {
		t.Error("a short key is accepted")
	}
	svc := service(func(s *services.Service) { s.Ports[0].Name = "http" })
	f := Frontend{NewKey(netip.MustParseAddr("10.43.0.1"), ProtocolNumber(corev1.ProtocolTCP), 80), ClusterIP, 0}
	if got := comment(svc, f); got != "ns/web:http ClusterIP" {
		t.Errorf("got comment %q", got)
	}
}
