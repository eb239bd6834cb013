package policy

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/services/policy/policytest"
	"berth/services/policy/rules"
	"berth/services/policy/selection"
)

var testConfig = rules.Config{
	PodRanges: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd01::/64")},
	Bridges:   []string{"cni0"},
}

// TestKernelModel applies the rulesets of seeded clusters to the kernel as transactions. It compares
// what the kernel has with the ruleset, and what packets do with the oracle.
func TestKernelModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			n := newTestNode(t)
			w := policytest.NewWorld(seed)
			index, compiler := selection.New(), rules.New()
			compiler.SetConfig(testConfig)
			for _, ns := range w.Namespaces {
				index.SetNamespace(ns.Name, selection.MakeLabels(ns.Labels))
			}
			set := func(p *corev1.Pod) {
				compact := selection.FromPod(p)
				index.SetPod(compact)
				if p.Spec.NodeName == policytest.LocalNode {
					compiler.SetPod(compact)
				}
			}
			add := func(node string) {
				p := w.AddPod(node)
				if node == policytest.LocalNode {
					n.addPod(int(netip.MustParseAddr(p.Status.PodIP).As4()[3]))
				}
				set(p)
			}
			for range 4 {
				add(policytest.LocalNode)
				add("other")
			}
			var results [2]int
			for step := range 30 {
				for range 1 + w.Rand.IntN(2) {
					p, err := selection.FromNetworkPolicy(w.SetPolicy())
					n.must(err)
					index.SetPolicy(p)
				}
				if i := w.Rand.IntN(len(w.Pods)); step%3 == 1 { // churn
					old := w.Pods[i]
					w.Pods = append(w.Pods[:i], w.Pods[i+1:]...)
					index.DeletePod(types.NamespacedName{Namespace: old.Namespace, Name: old.Name})
					compiler.DeletePod(old.UID)
					if old.Spec.NodeName == policytest.LocalNode {
						n.removePod(int(netip.MustParseAddr(old.Status.PodIP).As4()[3]))
					}
					add(old.Spec.NodeName)
				}
				compiler.Update(index.Take(), index)
				n.must(kernel{n.ns}.apply(compiler.Transaction(index), nil))
				if difference, err := (kernel{n.ns}).differs(compiler.Ruleset()); difference != "" || err != nil {
					t.Fatalf("step %d: kernel differs: %s, error %v", step, difference, err)
				}
				for range 12 {
					if n.probe(w) {
						results[1]++
					} else {
						results[0]++
					}
				}
			}
			if results[0] < 30 || results[1] < 30 {
				t.Errorf("dropped %d and delivered %d packets, want at least 30 of each", results[0], results[1])
			}
		})
	}
}

// probe sends a packet between two random ends and compares the result with the oracle.
func (n *testNode) probe(w *policytest.World) bool {
	n.t.Helper()
	pods, addresses := w.Ends(w.Rand.IntN(2) == 0)
	i, j := w.Rand.IntN(len(pods)), w.Rand.IntN(len(pods))
	local := func(p *corev1.Pod) bool { return p != nil && p.Spec.NodeName == policytest.LocalNode }
	for !local(pods[i]) && !local(pods[j]) || i == j {
		i, j = w.Rand.IntN(len(pods)), w.Rand.IntN(len(pods))
	}
	traffic := policytest.Traffic{
		From: pods[i], To: pods[j], FromAddress: addresses[i], Address: addresses[j],
		Protocol: policytest.Pick(w, policytest.Protocols...), Port: policytest.Pick(w, policytest.Ports...),
	}
	protocol, _ := selection.ParseProtocol(traffic.Protocol)
	want := w.Allowed(traffic, local(pods[i]), local(pods[j]))
	got := n.reaches(traffic.FromAddress, traffic.Address, protocol, int(traffic.Port))
	if got != want {
		n.t.Fatalf("%s > %s %s/%d: delivered %t, want %t", traffic.FromAddress, traffic.Address, traffic.Protocol,
			traffic.Port, got, want)
	}
	return got
}

// TestLargeSets: sets and transactions that do not fit into one message.
func TestLargeSets(t *testing.T) {
	t.Parallel()
	ns, err := newNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ns.Close() }()
	n := &testNode{host: &host{t: t}}
	s := newStore()
	address := func(i int) []netip.Addr {
		return []netip.Addr{
			netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)}),
			netip.AddrFrom16([16]byte{0xfd, 2, 14: byte(i >> 8), 15: byte(i)}),
		}
	}
	const pods, local = 3000, 300
	for i := range pods {
		p := testPod("n1", i, "peer")
		if s.SetPod(selection.FromPodAt(p, address(i))); i < local {
			s.SetLocalPod(p, address(i))
		}
	}
	n.setPolicy(s, "n1", "p", networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{
		From: []networkingv1.NetworkPolicyPeer{{PodSelector: app("peer")}}}}})
	k := kernel{ns}
	n.must(k.apply(s.take(false).changes, nil))
	n.must(k.apply(s.take(false).changes, nil)) // nothing
	for i := range pods / 2 {
		s.DeleteLocalPod(testPod("n1", i, "peer").UID)
		s.DeletePod(types.NamespacedName{Namespace: "n1", Name: fmt.Sprintf("p%d", i)})
	}
	for i := range local {
		s.SetLocalPod(testPod("n1", pods+i, "peer"), address(pods+i))
	}
	n.must(k.apply(s.take(false).changes, nil))
	whole := s.take(true).whole
	if difference, err := k.differs(whole); difference != "" || err != nil {
		t.Errorf("kernel differs: %s, error %v", difference, err)
	}
	elements := 0
	for _, set := range whole.Sets {
		elements += len(set.Elements)
	}
	if want := 2 * (pods/2 + local); elements < want {
		t.Errorf("got %d elements, want at least %d", elements, want)
	}
}
