package proxy

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"berth/services"
)

// check asks and compares. The wanted answer has alternatives separated by "|".
func check(t *testing.T, from *host, network, source, to, want string) {
	t.Helper()
	timeout := answerTimeout
	if want == "silence" {
		timeout = silence
	}
	got := from.askWithin(network, source, to, timeout)
	if !slices.Contains(strings.Split(want, "|"), got) {
		t.Errorf("%s %s from %s %s: got %q, want %q", network, to, from.name, source, got, want)
	}
}

func TestClusterIP(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serveAll()
	w.set(service(nil), "10.1.0.12", "fd01::12")
	pod, client, node := w.pods[0], w.client, w.node
	check(t, pod, "tcp", "", "10.43.0.1:80", "pod2 10.1.0.11")
	check(t, pod, "udp", "", "10.43.0.1:53", "pod2 10.1.0.11")
	check(t, pod, "tcp", "", "[fd43::1]:80", "pod2 fd01::11")
	check(t, pod, "udp", "", "[fd43::1]:53", "pod2 fd01::11")
	// What is not from a local pod is masqueraded: the answer must come back through this node.
	check(t, client, "tcp", "", "10.43.0.1:80", "pod2 10.1.0.1")
	check(t, client, "udp", "", "[fd43::1]:53", "pod2 fd01::1")
	check(t, node, "tcp", "", "10.43.0.1:80", "pod2 10.1.0.1")
	check(t, node, "tcp", "", "[fd43::1]:80", "pod2 fd01::1")
	// Ports that the Service does not have.
	check(t, pod, "tcp", "", "10.43.0.1:81", "refused")
	check(t, pod, "udp", "", "10.43.0.1:80", "refused")
	check(t, pod, "tcp", "", "[fd43::1]:81", "refused")
	check(t, node, "tcp", "", "10.43.0.1:81", "refused")
	// An endpoint on another node gets the pod's own address.
	w.set(service(nil), "10.2.0.11", "fd02::11")
	check(t, pod, "tcp", "", "10.43.0.1:80", "other 10.1.0.11")
	check(t, pod, "udp", "", "[fd43::1]:53", "other fd01::11")
	check(t, client, "tcp", "", "10.43.0.1:80", "other 198.18.0.1")
}

func TestWithoutEndpoints(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serveAll()
	external := func(s *services.Service) { s.Ports[0].NodePort = 30080 }
	w.set(service(external))
	for _, from := range []*host{w.pods[0], w.client, w.node} {
		check(t, from, "tcp", "", "10.43.0.1:80", "refused")
		check(t, from, "udp", "", "10.43.0.1:53", "refused")
		check(t, from, "tcp", "", "[fd43::1]:80", "refused")
		check(t, from, "tcp", "", "192.0.2.1:30080", "refused")
	}
	w.set(service(external), "10.1.0.12")
	check(t, w.pods[0], "tcp", "", "10.43.0.1:80", "pod2 10.1.0.11")
	check(t, w.pods[0], "tcp", "", "[fd43::1]:80", "refused")
}

func TestHairpin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serveAll()
	w.set(service(func(s *services.Service) { s.Ports[0].NodePort = 30080 }), "10.1.0.11", "fd01::11")
	for _, filter := range []bool{true, false} {
		w.bridgeFilter(filter)
		check(t, w.pods[0], "tcp", "", "10.43.0.1:80", "pod1 10.1.0.1")
		check(t, w.pods[0], "udp", "", "10.43.0.1:53", "pod1 10.1.0.1")
		check(t, w.pods[0], "tcp", "", "[fd43::1]:80", "pod1 fd01::1")
		check(t, w.pods[0], "tcp", "", "192.0.2.1:30080", "pod1 10.1.0.1")
		if filter { // without it, the answer to another pod of the bridge does not pass the node's rules
			check(t, w.pods[1], "tcp", "", "10.43.0.1:80", "pod1 10.1.0.12")
		}
		w.node.must(w.node.h.LinkSetHairpin(w.node.link("veth1"), false)) // needed with the filter only
	}
}

func TestExternalPolicyCluster(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serveAll()
	w.node.address("eth0", "192.0.2.2/24") // not an address for NodePorts
	svc := service(func(s *services.Service) {
		s.Type = corev1.ServiceTypeLoadBalancer
		s.Ports[0].NodePort, s.Ports[1].NodePort = 30080, 30053
		s.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8:5::1")}
		s.ExternalIPs = []netip.Addr{netip.MustParseAddr("198.51.100.2")}
	})
	for _, c := range []struct{ endpoint, endpoint6, want, want6 string }{
		{"10.1.0.12", "fd01::12", "pod2 10.1.0.1", "pod2 fd01::1"},
		{"10.2.0.11", "fd02::11", "other 198.18.0.1", "other 2001:db8:1::1"},
	} {
		w.set(svc, c.endpoint, c.endpoint6)
		for _, from := range []*host{w.client, w.pods[0], w.node} {
			check(t, from, "tcp", "", "192.0.2.1:30080", c.want)
			check(t, from, "udp", "", "192.0.2.1:30053", c.want)
			check(t, from, "tcp", "", "[2001:db8::1]:30080", c.want6)
			check(t, from, "tcp", "", "198.51.100.1:80", c.want)
			check(t, from, "udp", "", "198.51.100.2:53", c.want)
			check(t, from, "tcp", "", "[2001:db8:5::1]:80", c.want6)
		}
		check(t, w.client, "tcp", "", "192.0.2.2:30080", "refused")
		check(t, w.node, "tcp", "", "127.0.0.1:30080", "refused")
	}
}

func TestExternalPolicyLocal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serveAll()
	svc := service(func(s *services.Service) {
		s.Ports[0].NodePort, s.ExternalLocal = 30080, true
		s.ExternalIPs = []netip.Addr{netip.MustParseAddr("198.51.100.2")}
	})
	w.set(svc, "10.1.0.12", "10.2.0.11")
	for range 8 { // by chance, the other endpoint would be chosen
		check(t, w.client, "tcp", "", "192.0.2.1:30080", "pod2 192.0.2.100")
		check(t, w.client, "tcp", "", "198.51.100.2:80", "pod2 192.0.2.100")
	}
	check(t, w.pods[0], "tcp", "", "192.0.2.1:30080", "pod2 10.1.0.11|other 10.1.0.11")
	check(t, w.node, "tcp", "", "192.0.2.1:30080", "pod2 10.1.0.1|other 198.18.0.1")
	w.set(svc, "10.2.0.11")
	check(t, w.client, "tcp", "", "192.0.2.1:30080", "silence")
	check(t, w.client, "tcp", "", "198.51.100.2:80", "silence")
	check(t, w.pods[0], "tcp", "", "192.0.2.1:30080", "other 10.1.0.11")
	check(t, w.node, "tcp", "", "198.51.100.2:80", "other 198.18.0.1")
	check(t, w.client, "tcp", "", "10.43.0.1:80", "other 198.18.0.1")
	w.set(svc)
	check(t, w.client, "tcp", "", "192.0.2.1:30080", "refused")
}

func TestInternalPolicyLocal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serveAll()
	svc := service(func(s *services.Service) { s.InternalLocal, s.Ports[0].NodePort = true, 30080 })
	w.set(svc, "10.1.0.12", "10.2.0.11")
	for range 8 {
		check(t, w.pods[0], "tcp", "", "10.43.0.1:80", "pod2 10.1.0.11")
	}
	w.set(svc, "10.2.0.11")
	check(t, w.pods[0], "tcp", "", "10.43.0.1:80", "silence")
	check(t, w.pods[0], "tcp", "", "192.0.2.1:30080", "other 198.18.0.1")
}

func TestLoadBalancerSourceRanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serveAll()
	svc := service(func(s *services.Service) {
		s.Type, s.Ports[0].NodePort = corev1.ServiceTypeLoadBalancer, 30080
		s.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8:5::1")}
		s.LoadBalancerSourceRanges = []netip.Prefix{
			netip.MustParsePrefix("192.0.2.100/32"), netip.MustParsePrefix("192.0.2.96/30"),
			netip.MustParsePrefix("192.0.2.98/31"), netip.MustParsePrefix("2001:db8:9::/64"),
		}
	})
	w.set(svc, "10.1.0.12", "fd01::12")
	check(t, w.client, "tcp", "192.0.2.100", "198.51.100.1:80", "pod2 10.1.0.1")
	check(t, w.client, "tcp", "192.0.2.101", "198.51.100.1:80", "silence")
	check(t, w.client, "tcp", "", "[2001:db8:5::1]:80", "silence")
	check(t, w.pods[0], "tcp", "", "198.51.100.1:80", "silence")
	check(t, w.client, "tcp", "192.0.2.101", "192.0.2.1:30080", "pod2 10.1.0.1")
	check(t, w.client, "tcp", "192.0.2.101", "10.43.0.1:80", "pod2 10.1.0.1")
	w.set(svc)
	check(t, w.client, "tcp", "192.0.2.100", "198.51.100.1:80", "refused")
	check(t, w.client, "tcp", "192.0.2.101", "198.51.100.1:80", "silence")
}

// TestSpread: all endpoints are used.
func TestSpread(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serveAll()
	w.set(service(nil), "10.1.0.11", "10.1.0.12", "10.1.0.13", "10.2.0.11")
	missing := map[string]bool{"pod1": true, "pod2": true, "pod3": true, "other": true}
	for i := 0; len(missing) > 0; i++ {
		if i == 500 { // by chance, this fails once in 10^62 runs
			t.Fatalf("not used: %v", missing)
		}
		name, _, _ := strings.Cut(w.client.ask("udp", "", "10.43.0.1:53"), " ")
		delete(missing, name)
	}
}

func TestAffinity(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serveAll()
	svc := service(func(s *services.Service) {
		s.AffinitySeconds, s.Ports[0].NodePort = 600, 30080
	})
	byName := map[string][]string{
		"pod1": {"10.1.0.11", "fd01::11"}, "pod2": {"10.1.0.12", "fd01::12"}, "pod3": {"10.1.0.13", "fd01::13"},
		"other": {"10.2.0.11", "fd02::11"},
	}
	set := func(without ...string) {
		var all []string
		for name, addresses := range byName {
			if !slices.Contains(without, name) {
				all = append(all, addresses...)
			}
		}
		w.set(svc, all...)
	}
	for _, to := range []string{"10.43.0.1:80", "192.0.2.1:30080", "[fd43::1]:80"} {
		set()
		ask := func() string {
			name, _, _ := strings.Cut(w.client.ask("tcp", "", to), " ")
			if byName[name] == nil {
				t.Fatalf("%s: got %q", to, name)
			}
			return name
		}
		stays := func(want string) {
			t.Helper()
			for range 12 { // by chance, a random choice passes once in 10^7 runs
				if got := ask(); got != want {
					t.Fatalf("%s: got %s, want %s", to, got, want)
				}
			}
		}
		first := ask()
		stays(first)
		for name := range byName { // others come and go
			if name != first {
				set(name)
				stays(first)
			}
		}
		// The endpoint of the client is deleted. The client stays with the next one when it is back.
		set(first)
		second := ask()
		if second == first {
			t.Fatalf("%s: still %s", to, first)
		}
		stays(second)
		set()
		stays(second)
	}
	w.list()
}

// list prints the tables with nft if the test is asked to: a help while rules change.
func (w *world) list() {
	if path := os.Getenv("BERTH_NFT"); path != "" {
		_ = w.node.do(func() error {
			out, err := exec.Command(path, "list", "ruleset").CombinedOutput()
			fmt.Println(string(out), err)
			return nil
		})
	}
}
