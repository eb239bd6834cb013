package ruleset

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"berth/services"
)

// endpoint parses "ADDRESS [node=N] [zones=A,B] [nodes=A,B] [notready] [serving] [terminating]". An
// endpoint is ready and serving unless the text says otherwise.
func endpoint(text string) services.Endpoint {
	fields := strings.Fields(text)
	e := services.Endpoint{Address: netip.MustParseAddr(fields[0]), Ready: true, Serving: true}
	for _, f := range fields[1:] {
		name, value, _ := strings.Cut(f, "=")
		switch name {
		case "node":
			e.Node = value
		case "zones":
			e.ForZones = strings.Split(value, ",")
		case "nodes":
			e.ForNodes = strings.Split(value, ",")
		case "notready":
			e.Ready, e.Serving = false, false
		case "terminating": // serving, as until the readiness probe fails
			e.Ready, e.Terminating = false, true
		case "gone":
			e.Ready, e.Serving, e.Terminating = false, false, true
		default:
			panic(f)
		}
	}
	return e
}

func slice(port uint16, endpoints ...string) *services.Slice {
	s := &services.Slice{
		Service: services.Name{Namespace: "ns", Name: "web"}, Name: fmt.Sprint("web-", port),
		Ports: []services.EndpointPort{{Protocol: corev1.ProtocolTCP, Port: port}},
	}
	for _, text := range endpoints {
		s.Endpoints = append(s.Endpoints, endpoint(text))
		s.IPv6 = s.Endpoints[0].Address.Is6()
	}
	return s
}

func texts(all []netip.AddrPort) string {
	var out []string
	for _, a := range all {
		out = append(out, strings.TrimPrefix(a.String(), "10.1.0."))
	}
	return strings.Join(out, " ")
}

var testNode = &Node{
	Name: "n1", Zone: "a",
	Addresses:         []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
	PodCIDRs:          []netip.Prefix{netip.MustParsePrefix("10.1.0.0/25"), netip.MustParsePrefix("fd01::/64")},
	NodePortAddresses: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
}

func service(change func(*services.Service)) *services.Service {
	svc := &services.Service{
		Name: services.Name{Namespace: "ns", Name: "web"}, Type: corev1.ServiceTypeClusterIP,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.43.0.1")},
		Ports:      []services.Port{{Protocol: corev1.ProtocolTCP, Port: 80}},
	}
	if change != nil {
		change(svc)
	}
	return svc
}

func TestSelect(t *testing.T) {
	t.Parallel()
	nodePort := func(s *services.Service) { s.Ports[0].NodePort = 30000 }
	externalLocal := func(s *services.Service) { nodePort(s); s.ExternalLocal = true }
	internalLocal := func(s *services.Service) { s.InternalLocal = true }
	for _, c := range []struct {
		name           string
		change         func(*services.Service)
		slices         []*services.Slice
		cluster, local string
		any            bool
		topology       string
	}{
		{name: "no endpoints"},
		{name: "ready endpoints of all nodes, sorted",
			slices:  []*services.Slice{slice(80, "10.1.0.2 node=n2", "10.1.0.1 node=n1")},
			cluster: "1:80 2:80", any: true},
		{name: "endpoints of two EndpointSlices with different ports, each once",
			slices: []*services.Slice{
				slice(80, "10.1.0.1", "10.1.0.2"), slice(81, "10.1.0.3"), slice(80, "10.1.0.2 node=n1")},
			cluster: "1:80 2:80 3:81", any: true},
		{name: "endpoints that are not ready are not used",
			slices: []*services.Slice{slice(80, "10.1.0.1 notready", "10.1.0.2")}, cluster: "2:80", any: true},
		{name: "only endpoints that are not ready",
			slices: []*services.Slice{slice(80, "10.1.0.1 notready", "10.1.0.2 gone")}},
		{name: "terminating endpoints are not used beside ready ones",
			slices: []*services.Slice{slice(80, "10.1.0.1 terminating", "10.1.0.2")}, cluster: "2:80", any: true},
		{name: "terminating endpoints that serve are used if no endpoint is ready",
			slices:  []*services.Slice{slice(80, "10.1.0.1 terminating", "10.1.0.2 notready", "10.1.0.3 gone")},
			cluster: "1:80", any: true},
		{name: "policy Cluster has no local list", change: nodePort,
			slices: []*services.Slice{slice(80, "10.1.0.1 node=n1")}, cluster: "1:80", any: true},
		{name: "external policy Local needs both lists", change: externalLocal,
			slices:  []*services.Slice{slice(80, "10.1.0.1 node=n1", "10.1.0.2 node=n2")},
			cluster: "1:80 2:80", local: "1:80", any: true},
		{name: "external policy Local without an external frontend",
			change: func(s *services.Service) { s.ExternalLocal = true },
			slices: []*services.Slice{slice(80, "10.1.0.1 node=n1")}, cluster: "1:80", any: true},
		{name: "external policy Local and only a terminating endpoint on this node", change: externalLocal,
			slices:  []*services.Slice{slice(80, "10.1.0.1 node=n1 terminating", "10.1.0.2 node=n2")},
			cluster: "2:80", local: "1:80", any: true},
		{name: "internal policy Local", change: internalLocal,
			slices: []*services.Slice{slice(80, "10.1.0.1 node=n1", "10.1.0.2 node=n2")}, local: "1:80", any: true},
		{name: "internal policy Local with endpoints on other nodes only", change: internalLocal,
			slices: []*services.Slice{slice(80, "10.1.0.2 node=n2")}, any: true},
		{name: "zone hints", topology: "PreferSameZone",
			slices:  []*services.Slice{slice(80, "10.1.0.1 zones=a", "10.1.0.2 zones=b", "10.1.0.3 zones=b,a")},
			cluster: "1:80 3:80", any: true},
		{name: "zone hints are ignored if a ready endpoint has none",
			slices:  []*services.Slice{slice(80, "10.1.0.1 zones=a", "10.1.0.2 zones=b", "10.1.0.3")},
			cluster: "1:80 2:80 3:80", any: true},
		{name: "zone hints apply although an endpoint that is not ready has none", topology: "PreferSameZone",
			slices:  []*services.Slice{slice(80, "10.1.0.1 zones=a", "10.1.0.2 zones=b", "10.1.0.3 notready")},
			cluster: "1:80", any: true},
		{name: "zone hints are ignored if none is for this zone",
			slices: []*services.Slice{slice(80, "10.1.0.1 zones=b")}, cluster: "1:80", any: true},
		{name: "node hints win over zone hints", topology: "PreferSameNode",
			slices:  []*services.Slice{slice(80, "10.1.0.1 zones=a nodes=n1", "10.1.0.2 zones=a nodes=n2")},
			cluster: "1:80", any: true},
		{name: "zone hints apply if no node hint is for this node", topology: "PreferSameZone",
			slices:  []*services.Slice{slice(80, "10.1.0.1 zones=b nodes=n3", "10.1.0.2 zones=a nodes=n2")},
			cluster: "2:80", any: true},
		{name: "local lists ignore hints", change: externalLocal, topology: "PreferSameZone",
			slices:  []*services.Slice{slice(80, "10.1.0.1 node=n1 zones=b", "10.1.0.2 node=n2 zones=a")},
			cluster: "2:80", local: "1:80", any: true},
		{name: "ports of another name or protocol",
			slices: []*services.Slice{
				{Ports: []services.EndpointPort{{Name: "x", Protocol: corev1.ProtocolTCP, Port: 1}},
					Endpoints: []services.Endpoint{endpoint("10.1.0.1")}},
				{Ports: []services.EndpointPort{{Protocol: corev1.ProtocolUDP, Port: 1}},
					Endpoints: []services.Endpoint{endpoint("10.1.0.1")}}}},
		{name: "endpoints of the other family", slices: []*services.Slice{slice(80, "fd01::1")}},
	} {
		svc := service(c.change)
		got := Select(svc, &svc.Ports[0], false, c.slices, testNode)
		if texts(got.Cluster) != c.cluster || texts(got.Local) != c.local || got.HasAny != c.any ||
			got.Topology != c.topology {
			t.Errorf("%s: got cluster %q, local %q, any %t, topology %q; want %q, %q, %t, %q", c.name,
				texts(got.Cluster), texts(got.Local), got.HasAny, got.Topology, c.cluster, c.local, c.any, c.topology)
		}
	}
}

func TestServingEndpointsKeepUDPFlows(t *testing.T) {
	t.Parallel()
	svc := service(nil)
	all := slice(80,
		"10.1.0.1 zones=a", "10.1.0.2 zones=b", "10.1.0.3 terminating", "10.1.0.4 gone", "10.1.0.5 notready")
	got := Select(svc, &svc.Ports[0], false, []*services.Slice{all}, testNode)
	if texts(got.Cluster) != "1:80" || texts(got.Serving) != "1:80 2:80 3:80" {
		t.Errorf("got cluster %q and serving %q", texts(got.Cluster), texts(got.Serving))
	}
}

func TestLocalReady(t *testing.T) {
	t.Parallel()
	svc := service(func(s *services.Service) { s.ClusterIPs = append(s.ClusterIPs, netip.MustParseAddr("fd43::1")) })
	all := []*services.Slice{
		slice(80, "10.1.0.1 node=n1", "10.1.0.2 node=n2", "10.1.0.3 node=n1 notready", "10.1.0.4 node=n1 terminating"),
		slice(81, "10.1.0.1 node=n1", "10.1.0.5 node=n1"), slice(80, "fd01::1 node=n1"),
	}
	if n := LocalReady(svc, all, testNode); n != 2 {
		t.Errorf("got %d endpoints, want 2", n)
	}
	svc.ClusterIPs = nil
	if n := LocalReady(svc, all, testNode); n != 0 {
		t.Errorf("without an address: got %d endpoints, want 0", n)
	}
}

func TestFrontends(t *testing.T) {
	t.Parallel()
	ips := func(all ...string) (out []netip.Addr) {
		for _, a := range all {
			out = append(out, netip.MustParseAddr(a))
		}
		return out
	}
	for _, c := range []struct {
		name   string
		change func(*services.Service)
		want   []string
	}{
		{"ClusterIP", nil, []string{"10.43.0.1/0/0 ClusterIP", "10.43.0.1/6/80 ClusterIP"}},
		{"headless", func(s *services.Service) { s.ClusterIPs, s.Headless = nil, true }, nil},
		{"external name", func(s *services.Service) { s.Type = corev1.ServiceTypeExternalName }, nil},
		{"another proxy", func(s *services.Service) { s.ProxiedBy = "x" }, nil},
		{"unknown protocol", func(s *services.Service) { s.Ports[0].Protocol = "DCCP" },
			[]string{"10.43.0.1/0/0 ClusterIP"}},
		{"all kinds, in the families of the ClusterIPs", func(s *services.Service) {
			s.Ports[0].NodePort, s.Ports[0].Protocol = 30000, corev1.ProtocolSCTP
			s.LoadBalancerIPs, s.ExternalIPs = ips("198.51.100.1", "2001:db8::2"), ips("198.51.100.2", "2001:db8::3")
		}, []string{"10.43.0.1/0/0 ClusterIP", "10.43.0.1/132/80 ClusterIP", "192.0.2.1/132/30000 NodePort",
			"198.51.100.1/132/80 LoadBalancer", "198.51.100.2/132/80 ExternalIP"}},
		{"two families", func(s *services.Service) {
			s.ClusterIPs = ips("10.43.0.1", "fd43::1")
			s.Ports[0].NodePort, s.Ports[0].Protocol = 30000, corev1.ProtocolUDP
		}, []string{"10.43.0.1/0/0 ClusterIP", "10.43.0.1/17/80 ClusterIP", "192.0.2.1/17/30000 NodePort",
			"fd43::1/0/0 ClusterIP", "fd43::1/17/80 ClusterIP", "2001:db8::1/17/30000 NodePort"}},
	} {
		var got []string
		for _, f := range Frontends(service(c.change), testNode) {
			got = append(got, fmt.Sprintf("%s/%d/%d %s", f.Addr(), f.Protocol, f.Key.Port, f.Kind))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}
