package explain

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"berth/nodeapi"
	"berth/services"
	"berth/services/proxy/ruleset"
)

// serviceOf explains the Service default/web with the given endpoints, "ADDRESS NODE STATE", on node n1.
func serviceOf(change func(*services.Service, *ServiceState), endpoints ...string) nodeapi.Service {
	svc := &services.Service{
		Name: services.Name{Namespace: "default", Name: "web"}, Type: corev1.ServiceTypeClusterIP,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.43.0.7")},
		Ports:      []services.Port{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
	}
	s := ServiceState{Service: svc, Proxy: proxyOn, EndpointsKnown: true}
	slice := &services.Slice{
		Service: svc.Name, Name: "web-1",
		Ports: []services.EndpointPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 8080}},
	}
	for _, text := range endpoints {
		f := append(strings.Fields(text), "ready")
		slice.Endpoints = append(slice.Endpoints, services.Endpoint{
			Address: netip.MustParseAddr(f[0]), Node: f[1], Pod: "web-" + f[1], Ready: f[2] == "ready",
			Serving: f[2] == "ready",
		})
	}
	s.Slices = []*services.Slice{slice}
	if change != nil {
		change(svc, &s)
	}
	node := &ruleset.Node{Name: "n1", NodePortAddresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	state := ruleset.NewState(node)
	rival := &services.Service{
		Name: services.Name{Namespace: "default", Name: "first"}, Type: svc.Type, ExternalIPs: svc.ExternalIPs,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.43.0.8")},
		Ports:      []services.Port{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
	}
	state.Apply([]ruleset.Update{
		{Name: rival.Name, Service: rival, Slices: s.Slices}, {Name: svc.Name, Service: svc, Slices: s.Slices},
	})
	s.Explanation = ruleset.Explain(svc, s.Slices, node, state)
	return Service(s)
}

func TestServiceSummaryAndProblems(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		change    func(*services.Service, *ServiceState)
		endpoints []string
		summary   string
		problems  []string
	}{
		{"all ready", nil, []string{"10.1.0.1 n1", "10.1.1.1 n2"},
			"this node sends connections for default/web to 2 of 2 endpoints", nil},
		{"one not ready", nil, []string{"10.1.0.1 n1", "10.1.1.1 n2 unready"},
			"this node sends connections for default/web to 1 of 2 endpoints", nil},
		{"no endpoints", nil, nil, "nothing answers at the addresses of default/web",
			[]string{"Port 80/TCP has no endpoints: no running pod"}},
		{"none ready", nil, []string{"10.1.0.1 n1 unready", "10.1.1.1 n2 unready"},
			"nothing answers at the addresses of default/web",
			[]string{"Port 80/TCP has 2 endpoints, and none is used: 2 not ready."}},
		{"another port", func(s *services.Service, _ *ServiceState) { s.Ports[0].Name = "https" },
			[]string{"10.1.0.1 n1"}, "nothing answers at the addresses of default/web",
			[]string{`the EndpointSlices of the Service have no port "https" with protocol TCP.`}},
		{"internal policy Local", func(s *services.Service, _ *ServiceState) { s.InternalLocal = true },
			[]string{"10.1.1.1 n2"}, "nothing answers at the addresses of default/web", []string{
				"1 on another node, and internalTrafficPolicy is Local.",
				"ClusterIP 10.43.0.7:80/TCP drops connections: internalTrafficPolicy is Local",
			}},
		{"external policy Local", func(s *services.Service, _ *ServiceState) {
			s.Type, s.ExternalLocal, s.Ports[0].NodePort = corev1.ServiceTypeNodePort, true, 30080
		}, []string{"10.1.1.1 n2"},
			"this node sends connections to 1 of 1 endpoint of default/web, but not from all of its addresses",
			[]string{"NodePort 30080/TCP drops connections of other hosts: externalTrafficPolicy is Local"}},
		{"address of another Service", func(s *services.Service, _ *ServiceState) {
			s.ExternalIPs = []netip.Addr{netip.MustParseAddr("198.51.100.1")}
		}, []string{"10.1.0.1 n1"},
			"this node sends connections to 1 of 1 endpoint of default/web, but not from all of its addresses",
			[]string{"ExternalIP 198.51.100.1:80/TCP leads to Service default/first"}},
		{"no address of a load balancer", func(s *services.Service, _ *ServiceState) {
			s.Type = corev1.ServiceTypeLoadBalancer
		}, []string{"10.1.0.1 n1"}, "this node sends connections for default/web to 1 of 1 endpoint",
			[]string{"The load balancer has no address that nodes route: see status.loadBalancer of the Service."}},
		{"no address of a load balancer of a file", func(s *services.Service, x *ServiceState) {
			s.Type = corev1.ServiceTypeLoadBalancer
			x.LoadBalancerProblem = "port 80/TCP of 192.0.2.1 belongs to Service default/first"
		}, []string{"10.1.0.1 n1"}, "this node sends connections for default/web to 1 of 1 endpoint",
			[]string{"nodes route: port 80/TCP of 192.0.2.1 belongs to Service default/first."}},
		{"another host has the address", func(s *services.Service, x *ServiceState) {
			s.Type, s.LoadBalancerIPs = corev1.ServiceTypeLoadBalancer, []netip.Addr{netip.MustParseAddr("192.0.2.200")}
			x.AddressHolder = func(netip.Addr) string { return "02:00:00:00:00:01" }
		}, []string{"10.1.0.1 n1"},
			"this node sends connections to 1 of 1 endpoint of default/web, but not from all of its addresses",
			[]string{"LoadBalancer address 192.0.2.200 is not announced: the host with hardware address " +
				"02:00:00:00:00:01 has it."}},
		{"proxy off", func(_ *services.Service, s *ServiceState) { s.Proxy = proxyOff }, []string{"10.1.0.1 n1"},
			"this node does not route default/web: serviceProxy is off. Another program may route it", nil},
		{"server not reached", func(_ *services.Service, s *ServiceState) {
			s.Proxy, s.EndpointsKnown = "unknown", false
		}, nil, "this node does not route default/web yet: it has not reached its API server since it was installed",
			[]string{"The endpoints are not known"}},
		{"rules not written", func(_ *services.Service, s *ServiceState) { s.ProxyError = "no nftables" },
			[]string{"10.1.0.1 n1"}, "this node sends connections for default/web to 1 of 1 endpoint",
			[]string{"The rules in the kernel are not up to date: no nftables."}},
		{"headless", func(s *services.Service, _ *ServiceState) { s.Headless, s.ClusterIPs = true, nil },
			[]string{"10.1.0.1 n1", "10.1.1.1 n2 unready"},
			"default/web is headless: DNS returns 1 of 2 endpoints to clients, and the node routes nothing", nil},
		{"headless without endpoints", func(s *services.Service, _ *ServiceState) {
			s.Headless, s.ClusterIPs = true, nil
		}, nil, "default/web is headless: DNS returns 0 of 0 endpoints to clients, and the node routes nothing",
			[]string{"There are no endpoints"}},
		{"external name", func(s *services.Service, _ *ServiceState) {
			s.Type, s.ClusterIPs, s.ExternalName = corev1.ServiceTypeExternalName, nil, "db.example.com"
		}, nil, "default/web is another name for db.example.com, which DNS returns to clients", nil},
		{"another proxy", func(s *services.Service, _ *ServiceState) { s.ProxiedBy = "mesh" }, nil,
			"this node does not route default/web: label service.kubernetes.io/service-proxy-name selects another " +
				"proxy: mesh", nil},
	} {
		got := serviceOf(c.change, c.endpoints...)
		if got.Summary != c.summary {
			t.Errorf("%s: got summary %q, want %q", c.name, got.Summary, c.summary)
		}
		if !slices.EqualFunc(got.Problems, c.problems, strings.Contains) {
			t.Errorf("%s: got problems %q, want %q", c.name, got.Problems, c.problems)
		}
	}
}

func TestServiceEndpointsAreNotUsedWithoutProxy(t *testing.T) {
	t.Parallel()
	got := serviceOf(func(_ *services.Service, s *ServiceState) { s.Proxy = proxyOff }, "10.1.0.1 n1")
	if e := got.Ports[0].Endpoints[0]; e.Used || e.Reason == "" ||
		got.Frontends[0].Action != "not routed by this node" {
		t.Errorf("got %+v and %+v", e, got.Frontends)
	}
}
