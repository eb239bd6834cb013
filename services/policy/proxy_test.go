package policy

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"berth/services"
	"berth/services/policy/selection"
	"berth/services/proxy"
)

// TestWithServiceProxy: policies for traffic that berth's service proxy routes compare the addresses
// of the endpoint, and a pod reaches itself through its Service.
func TestWithServiceProxy(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	n.outside.addRoute("10.96.0.0/16", "192.0.2.1")
	n.addRoute("10.96.0.0/16", "192.0.2.9") // instead of a default route
	s := newStore()
	e := n.enforcer(s)
	server4, _ := n.setLocalPod(s, testPod("n1", 2, "server"), 2)
	client4, _ := n.setLocalPod(s, testPod("n1", 3, "client"), 3)
	other4, _ := n.setLocalPod(s, testPod("n1", 4, "other"), 4)
	for _, name := range []string{"veth2", "veth4"} { // as the bridge plugin does with hairpinMode
		link, err := n.h.LinkByName(name)
		n.must(err)
		n.must(n.h.LinkSetHairpin(link, true))
	}
	all := services.NewStore()
	var slices []*services.Slice
	var objects []*services.Service
	addresses := map[string]netip.Addr{
		"server": netip.MustParseAddr("10.96.0.1"), "other": netip.MustParseAddr("10.96.0.2")}
	for name, endpoint := range map[string]netip.Addr{"server": server4, "other": other4} {
		of := services.Name{Namespace: "n1", Name: name}
		objects = append(objects, &services.Service{Name: of, Type: corev1.ServiceTypeClusterIP,
			ClusterIPs: []netip.Addr{addresses[name]},
			Ports:      []services.Port{{Protocol: corev1.ProtocolTCP, Port: 8080}}})
		slices = append(slices, &services.Slice{Service: of, Name: name,
			Ports:     []services.EndpointPort{{Protocol: corev1.ProtocolTCP, Port: 80}},
			Endpoints: []services.Endpoint{{Address: endpoint, Ready: true, Serving: true}}})
	}
	all.ReplaceServices(objects)
	all.ReplaceSlices(slices)
	p := proxy.New(proxy.Options{Store: all, NetNS: n.ns, Log: slog.New(slog.DiscardHandler),
		Node: proxy.Node{Name: "n", PodCIDRs: testConfig.PodRanges}})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	defer func() {
		stop()
		n.must(<-done)
	}()
	waitFor(t, "the proxy has rules", func() bool { return p.Status().Synced })
	n.setPolicy(s, "n1", "server", networkingv1.NetworkPolicySpec{
		PodSelector: *app("server"), PolicyTypes: []networkingv1.PolicyType{"Ingress", "Egress"},
		Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From:  []networkingv1.NetworkPolicyPeer{{PodSelector: app("client")}},
			Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromInt32(80))}}}},
	})
	n.must(e.Sync())
	n.expect("from a selected pod", client4, addresses["server"], selection.TCP, 8080, true)
	n.expect("from another pod", other4, addresses["server"], selection.TCP, 8080, false)
	n.expect("from outside", outside4, addresses["server"], selection.TCP, 8080, false)
	n.expect("from an isolated pod", server4, addresses["other"], selection.TCP, 8080, false)
	n.expect("an isolated pod to itself", server4, addresses["server"], selection.TCP, 8080, true)
	n.expect("a pod to itself", other4, addresses["other"], selection.TCP, 8080, true)
	n.expect("from the node", netip.MustParseAddr("192.0.2.1"), addresses["server"], selection.TCP, 8080, true)
}
