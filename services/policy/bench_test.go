package policy

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/services/policy/rules"
	"berth/services/policy/selection"
)

// Sizes of the cluster of the benchmark. The pods of the node are the first ones.
const (
	benchPolicies, benchPods, benchNamespaces, benchLocal = 1000, 10000, 100, 110
)

func benchPod(i int, label string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: fmt.Sprintf("ns-%d", i%benchNamespaces), Name: fmt.Sprintf("pod-%d", i),
		UID: types.UID(fmt.Sprintf("uid-%d", i)),
		Labels: map[string]string{"app": fmt.Sprintf("app-%d", i%7), "pod-template-hash": fmt.Sprintf("h%d", i%500),
			"tier": label},
	}}
	p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}}}
	address := netip.AddrFrom4([4]byte{10, 2 + byte(i>>16), byte(i >> 8), byte(i)})
	if i < benchLocal {
		address = podAddresses(i + 2)[0]
	}
	p.Status.PodIP = address.String()
	return p
}

// benchPolicy selects pods of a namespace and allows peers by several selectors: one of ten policies
// those of all namespaces.
func benchPolicy(i int) *networkingv1.NetworkPolicy {
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{
		Namespace: fmt.Sprintf("ns-%d", i%benchNamespaces), Name: fmt.Sprintf("policy-%d", i)}}
	np.Spec.PodSelector = *app(fmt.Sprintf("app-%d", i%7))
	peer := networkingv1.NetworkPolicyPeer{PodSelector: app(fmt.Sprintf("app-%d", (i+1)%7))}
	if i%10 == 0 {
		peer.NamespaceSelector = &metav1.LabelSelector{}
	}
	np.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{peer,
		{IPBlock: &networkingv1.IPBlock{CIDR: fmt.Sprintf("172.16.%d.0/24", i%250)}}}}}
	np.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{peer}}}
	return np
}

func benchCompact(b *testing.B, np *networkingv1.NetworkPolicy) *selection.Policy {
	p, err := selection.FromNetworkPolicy(np)
	if err != nil {
		b.Fatal(err)
	}
	return p
}

func benchStore(b *testing.B) *Store {
	s := NewStore()
	s.SetPodRanges(testConfig.PodRanges)
	spaces := map[string]selection.Labels{}
	for i := range benchNamespaces {
		name := fmt.Sprintf("ns-%d", i)
		spaces[name] = selection.MakeLabels(map[string]string{corev1.LabelMetadataName: name})
	}
	s.ReplaceNamespaces(spaces)
	var pods []*selection.Pod
	for i := range benchPods {
		pods = append(pods, selection.FromPod(benchPod(i, "a")))
		if i < benchLocal {
			s.SetLocalPod(benchPod(i, "a"), pods[i].Addresses)
		}
	}
	s.ReplacePods(pods)
	var policies []*selection.Policy
	for i := range benchPolicies {
		policies = append(policies, benchCompact(b, benchPolicy(i)))
	}
	s.ReplacePolicies(policies)
	return s
}

// BenchmarkSync measures the time from a change to the rule in the kernel at 1,000 policies, 10,000
// pods and 110 pods of the node. Compute measures the same without the kernel.
func BenchmarkSync(b *testing.B) {
	ns, err := newNamespace()
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = ns.Close() }()
	changes := []struct {
		name   string
		change func(s *Store, i int)
	}{
		{"pod of another node is replaced", func(s *Store, i int) {
			s.SetPod(selection.FromPod(benchPod(benchLocal+i%1000, fmt.Sprint(i))))
		}},
		{"pod of another node changes its address", func(s *Store, i int) {
			p := benchPod(benchLocal, "a")
			p.Status.PodIP = fmt.Sprintf("10.3.%d.%d", i>>8&0xff, i&0xff)
			s.SetPod(selection.FromPod(p))
		}},
		{"pod of the node starts and ends", func(s *Store, i int) {
			if p := benchPod(benchLocal-1, "b"); i%2 == 0 {
				s.DeleteLocalPod(p.UID)
			} else {
				s.SetLocalPod(p, []netip.Addr{netip.MustParseAddr(p.Status.PodIP)})
			}
		}},
		{"policy of pods of the node changes", func(s *Store, i int) {
			np := benchPolicy(0)
			np.Spec.Ingress[0].From[1].IPBlock.CIDR = fmt.Sprintf("172.17.%d.0/24", i%250)
			s.SetPolicy(benchCompact(b, np))
		}},
	}
	s := benchStore(b)
	e := New(Options{Store: s, NetNS: ns, Log: slog.New(slog.DiscardHandler)})
	if err := e.Sync(); err != nil {
		b.Fatal(err)
	}
	for _, c := range changes {
		b.Run(c.name, func(b *testing.B) {
			for i := range b.N {
				c.change(s, i)
				if err := e.Sync(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	computed := benchStore(b)
	computed.take(false)
	for _, c := range changes {
		b.Run("compute/"+c.name, func(b *testing.B) {
			for i := range b.N {
				c.change(computed, i)
				computed.take(false)
			}
		})
	}
	b.Run("audit", func(b *testing.B) {
		for range b.N {
			e.Trigger()
			if err := e.Sync(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("everything", func(b *testing.B) {
		for range b.N {
			full := benchStore(b)
			if err := New(Options{Store: full, NetNS: ns, Log: slog.New(slog.DiscardHandler)}).Sync(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkOneNamespace measures the worst distribution: all policies select all pods of the node.
func BenchmarkOneNamespace(b *testing.B) {
	ns, err := newNamespace()
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = ns.Close() }()
	s := newStore()
	for i := range benchLocal {
		p := benchPod(i, "a")
		p.Namespace, p.Labels["app"] = "n1", "app-1"
		s.SetLocalPod(p, podAddresses(i+2))
	}
	for i := range benchPolicies {
		np := benchPolicy(i)
		np.Namespace, np.Spec.PodSelector = "n1", *app("app-1")
		s.SetPolicy(benchCompact(b, np))
	}
	e := New(Options{Store: s, NetNS: ns, Log: slog.New(slog.DiscardHandler)})
	b.Run("everything", func(b *testing.B) {
		for range b.N {
			e.known = false
			if err := errors.Join(e.kernel.apply(&rules.Transaction{Remove: true}, nil), e.Sync()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("pod of the node changes", func(b *testing.B) {
		for i := range b.N {
			p := benchPod(0, fmt.Sprint(i))
			p.Namespace, p.Labels["app"] = "n1", fmt.Sprintf("app-%d", i%2)
			s.SetLocalPod(p, podAddresses(2))
			if err := e.Sync(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkPackets measures connections and round trips between two pods of one bridge: without rules,
// with one policy, and in a cluster of 1,000 policies and 10,000 pods of which 20 policies isolate both
// pods.
func BenchmarkPackets(b *testing.B) {
	for _, c := range []struct {
		name     string
		policies int
	}{{"no policies", 0}, {"one policy", 1}, {"1,000 policies", benchPolicies}} {
		n := newTestNode(b)
		s := newStore()
		if c.policies > 1 {
			s = benchStore(b)
			for i := range benchLocal {
				s.DeleteLocalPod(benchPod(i, "a").UID)
			}
		}
		client, _ := n.setLocalPod(s, testPod("ns-1", 2, "client"), 2)
		server, _ := n.setLocalPod(s, testPod("ns-1", 3, "server"), 3)
		for i := range min(c.policies, 10) { // the last one allows the traffic
			for _, direction := range []networkingv1.PolicyType{"Ingress", "Egress"} {
				peer := []networkingv1.NetworkPolicyPeer{{PodSelector: app(fmt.Sprintf("app-%d", i%7))}}
				if i == min(c.policies, 10)-1 {
					peer[0].PodSelector = &metav1.LabelSelector{}
				}
				n.setPolicy(s, "ns-1", fmt.Sprintf("%s-%d", direction, i), networkingv1.NetworkPolicySpec{
					PolicyTypes: []networkingv1.PolicyType{direction},
					Ingress:     []networkingv1.NetworkPolicyIngressRule{{From: peer}},
					Egress:      []networkingv1.NetworkPolicyEgressRule{{To: peer}},
				})
			}
		}
		n.must(n.enforcer(s).Sync())
		to := netip.AddrPortFrom(server, 80).String()
		b.Run("connection/"+c.name, func(b *testing.B) {
			_, err := inside(n.at(client).ns, func() (any, error) {
				for range b.N {
					conn, err := net.Dial("tcp", to)
					if err != nil {
						return nil, err
					}
					if err := conn.(*net.TCPConn).SetLinger(0); err != nil { // ports are reused at once
						return nil, err
					}
					if err := conn.Close(); err != nil {
						return nil, err
					}
				}
				return nil, nil
			})
			n.must(err)
		})
		works := n.connection(client, server)
		b.Run("round trip/"+c.name, func(b *testing.B) {
			for range b.N {
				n.must(works())
			}
		})
	}
}

// BenchmarkMemory reports the memory of the input and the rules of the same cluster.
func BenchmarkMemory(b *testing.B) {
	var before, after runtime.MemStats
	for range b.N {
		runtime.GC()
		runtime.ReadMemStats(&before)
		s := benchStore(b)
		s.take(false)
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "MiB")
		runtime.KeepAlive(s)
	}
}
