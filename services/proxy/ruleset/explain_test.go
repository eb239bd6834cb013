package ruleset

import (
	"net/netip"
	"strings"
	"testing"

	"berth/services"
)

func TestExplainEndpoints(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		change    func(*services.Service)
		endpoints []string
		want      []string // by endpoint
	}{
		{"readiness", nil, []string{"10.1.0.1", "10.1.0.2 notready", "10.1.0.3 terminating", "10.1.0.4 gone"},
			[]string{"cluster", "not ready", "terminating, and other endpoints are ready",
				"terminating and not serving"}},
		{"only terminating", nil, []string{"10.1.0.3 terminating", "10.1.0.4 gone"},
			[]string{"cluster", "terminating and not serving"}},
		{"zone", nil, []string{"10.1.0.1 zones=a", "10.1.0.2 zones=b"},
			[]string{"cluster", "hints prefer endpoints for this zone"}},
		{"node", nil, []string{"10.1.0.1 nodes=n1", "10.1.0.2 nodes=n2"},
			[]string{"cluster", "hints prefer endpoints for this node"}},
		{"internal Local", func(s *services.Service) { s.InternalLocal = true },
			[]string{"10.1.0.1 node=n1", "10.1.0.2 node=n2"},
			[]string{"local", "on another node, and internalTrafficPolicy is Local"}},
		{"external Local", func(s *services.Service) { s.ExternalLocal, s.Ports[0].NodePort = true, 30000 },
			[]string{"10.1.0.1 node=n1", "10.1.0.2 node=n2"}, []string{"cluster local", "cluster"}},
	} {
		svc := service(c.change)
		x := Explain(svc, []*services.Slice{slice(80, c.endpoints...)}, testNode, nil)
		if x.NotProxied != "" || len(x.Ports) != 1 || len(x.Ports[0].Endpoints) != len(c.want) {
			t.Fatalf("%s: got %+v", c.name, x)
		}
		for i, e := range x.Ports[0].Endpoints {
			got := e.Reason
			if e.Cluster {
				got += "cluster"
			}
			if e.Local {
				got += " local"
			}
			if got = strings.TrimSpace(got); got != c.want[i] {
				t.Errorf("%s: endpoint %s: got %q, want %q", c.name, e.Address, got, c.want[i])
			}
		}
	}
}

func TestExplainFrontends(t *testing.T) {
	t.Parallel()
	external := func(s *services.Service) { s.ExternalIPs = []netip.Addr{netip.MustParseAddr("198.51.100.1")} }
	first, second := service(external), service(external)
	second.Name.Name, second.ClusterIPs = "zeb", []netip.Addr{netip.MustParseAddr("10.43.0.2")}
	s := NewState(testNode)
	all := []*services.Slice{slice(80, "10.1.0.1")}
	s.Apply([]Update{{first.Name, first, all}, {second.Name, second, nil}})
	x := Explain(second, nil, testNode, s)
	if len(x.Frontends) != 2 || x.Frontends[0].OwnedBy.Name != "" || x.Frontends[1].OwnedBy != first.Name ||
		x.Frontends[0].Target.Class != Reject {
		t.Errorf("got %+v", x.Frontends)
	}
	for want, change := range map[string]func(*services.Service){
		"another proxy": func(s *services.Service) { s.ProxiedBy = "x" },
		"headless":      func(s *services.Service) { s.Headless, s.ClusterIPs = true, nil },
		"ExternalName":  func(s *services.Service) { s.Type, s.ClusterIPs = "ExternalName", nil },
		"no ClusterIP":  func(s *services.Service) { s.ClusterIPs = nil },
	} {
		x := Explain(service(change), all, testNode, s)
		if !strings.Contains(x.NotProxied, want) || len(x.Frontends) > 0 {
			t.Errorf("%s: got %+v", want, x)
		}
	}
}

// TestLocalDNSIsNotRouted: the node answers at the DNS ports of an address, and routes the other ports.
func TestLocalDNSIsNotRouted(t *testing.T) {
	t.Parallel()
	dns := service(func(s *services.Service) {
		s.Ports = []services.Port{
			{Name: "dns", Protocol: "UDP", Port: 53}, {Name: "dns-tcp", Protocol: "TCP", Port: 53},
			{Name: "metrics", Protocol: "TCP", Port: 9153},
		}
	})
	node := *testNode
	node.LocalDNS = dns.ClusterIPs
	if node.Equal(testNode) {
		t.Error("nodes with other DNS addresses are equal")
	}
	for _, c := range []struct {
		node *Node
		want int
	}{{testNode, 4}, {&node, 1}} {
		if got := Frontends(dns, c.node); len(got) != c.want || got[len(got)-1].Key.Port != 9153 {
			t.Errorf("got %d frontends, want %d: %v", len(got), c.want, got)
		}
	}
	x := Explain(dns, nil, &node, nil)
	if len(x.Frontends) != 3 || !x.Frontends[0].AnsweredLocally || !x.Frontends[1].AnsweredLocally ||
		x.Frontends[2].AnsweredLocally {
		t.Errorf("got %+v", x.Frontends)
	}
	// The elements go when the DNS server starts, also those for the rest of the address.
	s := NewState(testNode)
	s.Apply([]Update{{dns.Name, dns, nil}})
	s.SetNode(&node)
	change := s.Apply([]Update{{dns.Name, dns, nil}})
	if len(change.Delete) == 0 || len(change.Add) != 0 || len(change.StaleUDP) != 1 {
		t.Errorf("got %+v", change)
	}
}
