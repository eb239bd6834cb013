package control

import (
	"net/netip"
	"strings"
	"testing"

	"berth/control"
	"berth/control/loadbalancer"
)

// TestLoadBalancerPool checks the addresses, events and finalizers of Services of type LoadBalancer.
func TestLoadBalancerPool(t *testing.T) {
	t.Parallel()
	s := Start(t, func(c *control.Config) {
		c.LoadBalancerPool = loadbalancer.Pool{{First: netip.MustParseAddr("192.0.2.10"),
			Last: netip.MustParseAddr("192.0.2.11")}}
	})
	get := func(name, path string) string {
		out, err := s.TryKubectl(t, "", "get", "service", name, "-o", "jsonpath={"+path+"}")
		if err != nil {
			return err.Error() + out
		}
		return strings.TrimSpace(out)
	}
	const address, finalizers = ".status.loadBalancer.ingress[*].ip", ".metadata.finalizers"
	apply := func(name, spec string) {
		s.Apply(t, "apiVersion: v1\nkind: Service\nmetadata: {name: "+name+"}\nspec: "+spec)
	}
	requireAddress := func(name, want string) {
		t.Helper()
		waitUntil(t, name+" has "+want, func() bool { return get(name, address) == want })
	}
	apply("a", "{type: LoadBalancer, ports: [{port: 80}]}")
	requireAddress("a", "192.0.2.10")
	apply("b", "{type: LoadBalancer, clusterIP: 10.43.0.99, ports: [{port: 80}], loadBalancerIP: 192.0.2.11}")
	requireAddress("b", "192.0.2.11")
	if got := get("b", finalizers); got != `["service.kubernetes.io/load-balancer-cleanup"]` {
		t.Errorf("got finalizers %s", got)
	}
	if got := s.Kubectl(t, "get", "service", "b"); !strings.Contains(got, "192.0.2.11") {
		t.Errorf("kubectl get service does not show the address: %s", got)
	}
	apply("c", "{type: LoadBalancer, ports: [{port: 80}]}")
	waitUntil(t, "event of a full pool", func() bool {
		out, err := s.TryKubectl(t, "", "get", "events", "--field-selector", "reason=SyncLoadBalancerFailed")
		return err == nil && strings.Contains(out, "the load balancer pool has no free IPv4 address")
	})
	apply("foreign", "{type: LoadBalancer, loadBalancerClass: example.com/other, ports: [{port: 80}]}")

	// The deletion waits for the controller, and releases the cluster IP with the last finalizer.
	s.Kubectl(t, "delete", "service", "b", "--timeout=4m")
	requireAddress("c", "192.0.2.11")
	apply("again", "{clusterIP: 10.43.0.99, ports: [{port: 80}]}")

	apply("a", "{type: ClusterIP, ports: [{port: 80}]}")
	waitUntil(t, "the address and the finalizer of a are gone", func() bool {
		return get("a", address) == "" && get("a", finalizers) == ""
	})
	if got := get("foreign", address) + get("foreign", finalizers); got != "" {
		t.Errorf("a Service of another class has %s", got)
	}
}
