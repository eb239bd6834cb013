package rules_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/services/policy/policytest"
	"berth/services/policy/rules"
	"berth/services/policy/selection"
)

// node is a node whose rules follow a seeded cluster.
type node struct {
	t        *testing.T
	w        *policytest.World
	index    *selection.Index
	compiler *rules.Compiler
	kernel   *rules.Ruleset
	// published has the groups that index, which is that of a server, computes. Then policies has the
	// policies. It is nil if the node computes the groups itself.
	published *selection.Published
	policies  *selection.Index
}

func newNode(t *testing.T, seed uint64) *node {
	n := &node{t: t, w: policytest.NewWorld(seed), index: selection.New(), compiler: rules.New(),
		policies: selection.New()}
	n.compiler.SetConfig(rules.Config{
		PodRanges: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd01::/64")},
		Bridges:   []string{"cni0"},
	})
	for _, ns := range n.w.Namespaces {
		n.index.SetNamespace(ns.Name, selection.MakeLabels(ns.Labels))
	}
	return n
}

func (n *node) setPod(p *corev1.Pod) {
	compact := selection.FromPod(p)
	n.index.SetPod(compact)
	if p.Spec.NodeName == policytest.LocalNode {
		n.compiler.SetPod(compact)
	}
}

func (n *node) deletePod(i int) {
	p := n.w.Pods[i]
	n.w.Pods = slices.Delete(n.w.Pods, i, i+1)
	n.index.DeletePod(types.NamespacedName{Namespace: p.Namespace, Name: p.Name})
	n.compiler.DeletePod(p.UID)
}

// change makes one change of the cluster.
func (n *node) change() {
	w := n.w
	pods := len(w.Pods)
	switch action := w.Rand.IntN(20); {
	case action < 6 && pods < 12 || pods == 0:
		p := w.AddPod(policytest.Pick(w, policytest.LocalNode, policytest.LocalNode, "other"))
		p.Spec.HostNetwork = w.Rand.IntN(12) == 0
		n.setPod(p)
	case action < 8:
		n.deletePod(w.Rand.IntN(pods))
	case action < 10:
		i := w.Rand.IntN(pods)
		p := w.Pods[i].DeepCopy()
		p.Labels = map[string]string{"app": policytest.Pick(w, "a", "b"), "tier": policytest.Pick(w, "a", "b")}
		w.Pods[i] = p
		n.setPod(p)
	case action == 10:
		i := w.Rand.IntN(pods)
		p := w.Pods[i].DeepCopy()
		p.Status.Phase = policytest.Pick(w, corev1.PodSucceeded, corev1.PodRunning)
		w.Pods[i] = p
		n.setPod(p)
	case action < 16:
		p, err := selection.FromNetworkPolicy(w.SetPolicy())
		if err != nil {
			n.t.Fatal(err)
		}
		n.setPolicy(p)
	case action == 16 && len(w.Policies) > 0:
		n.deletePolicy(w.Rand.IntN(len(w.Policies)))
	case action == 17 && len(w.Policies) > 0 && pods > 0: // a policy is created again, and a pod is gone
		np := w.Policies[0]
		n.deletePolicy(0)
		n.deletePod(w.Rand.IntN(pods))
		p, err := selection.FromNetworkPolicy(np)
		if err != nil {
			n.t.Fatal(err)
		}
		n.setPolicy(p)
		w.Policies = append(w.Policies, np)
	case action == 18 && w.Rand.IntN(4) == 0:
		for len(w.Policies) > 0 {
			n.deletePolicy(0)
		}
	default:
		i := w.Rand.IntN(len(w.Namespaces))
		ns := w.Namespaces[i].DeepCopy()
		ns.Labels["team"] = policytest.Pick(w, "x", "y")
		w.Namespaces[i] = ns
		n.index.SetNamespace(ns.Name, selection.MakeLabels(ns.Labels))
	}
}

func (n *node) setPolicy(p *selection.Policy) {
	n.index.SetPolicy(p)
	n.policies.SetPolicy(p)
}

func (n *node) deletePolicy(i int) {
	np := n.w.Policies[i]
	n.w.Policies = slices.Delete(n.w.Policies, i, i+1)
	n.index.DeletePolicy(types.NamespacedName{Namespace: np.Namespace, Name: np.Name})
	n.policies.DeletePolicy(types.NamespacedName{Namespace: np.Namespace, Name: np.Name})
}

// publish brings the changes of the server's groups to the node, all at once or one by one.
func (n *node) publish() {
	changes := n.index.Take()
	all := map[selection.GroupKey]map[types.NamespacedName]*selection.Member{}
	for _, np := range n.w.Policies {
		p, err := selection.FromNetworkPolicy(np)
		if err != nil {
			n.t.Fatal(err)
		}
		for _, g := range p.Groups {
			all[g.Key] = maps.Collect(n.index.Members(g.Key))
		}
	}
	if n.w.Rand.IntN(2) == 0 {
		n.published.Replace(all)
		return
	}
	for key := range changes.Created {
		for name := range maps.Collect(n.published.Members(key)) {
			n.published.DeleteMember(key, name)
		}
		for name, m := range all[key] {
			n.published.SetMember(key, name, m)
		}
	}
	for key, members := range changes.Members {
		for name, c := range members {
			if c.New != nil {
				n.published.SetMember(key, name, c.New)
			} else {
				n.published.DeleteMember(key, name)
			}
		}
	}
}

// sync applies the changes to the rules and checks invariants R5 and R6.
func (n *node) sync() error {
	groups := rules.Groups(n.index)
	if n.published != nil {
		n.publish()
		groups = n.published
		n.compiler.Update(n.published.Take(n.policies), groups)
	} else {
		n.compiler.Update(n.index.Take(), groups)
	}
	tx := n.compiler.Transaction(groups)
	next, err := policytest.Apply(n.kernel, tx)
	if err != nil {
		return fmt.Errorf("R6: %w", err)
	}
	n.kernel = next
	if err := policytest.Equal(n.kernel, n.compiler.Ruleset()); err != nil {
		return fmt.Errorf("R6: %w", err)
	}
	if (n.kernel != nil) != (len(n.w.Policies) > 0) {
		return fmt.Errorf("R5: table is %t with %d policies", n.kernel != nil, len(n.w.Policies))
	}
	if tx := n.compiler.Transaction(groups); !tx.Empty() {
		return fmt.Errorf("R6: second transaction is not empty: %+v", tx)
	}
	return nil
}

// check compares the verdicts with those of the oracle: invariants R1, R3 and R4.
func (n *node) check() (accepted, dropped int, err error) {
	for _, v6 := range []bool{false, true} {
		pods, addresses := n.w.Ends(v6)
		for i, from := range pods {
			for j, to := range pods {
				t := policytest.Traffic{
					From: from, To: to, FromAddress: addresses[i], Address: addresses[j],
					Protocol: policytest.Pick(n.w, policytest.Protocols...),
					Port:     policytest.Pick(n.w, policytest.Ports...),
				}
				protocol, _ := selection.ParseProtocol(t.Protocol)
				want := n.w.Allowed(t, n.enforces(from), n.enforces(to))
				got, counters, err := policytest.Evaluate(n.kernel, policytest.Packet{
					Source: t.FromAddress, Destination: t.Address, Protocol: protocol, Port: uint16(t.Port)})
				if err != nil {
					return 0, 0, err
				}
				if n.kernel != nil && (n.unknown(from) || n.unknown(to)) {
					want = false
				}
				if got != want {
					return 0, 0, fmt.Errorf("R1: %s > %s %s/%d: accepted %t, want %t", name(from), name(to),
						t.Protocol, t.Port, got, want)
				}
				drops := slices.DeleteFunc(slices.Clone(counters), func(name string) bool {
					return strings.Contains(name, "-allow-")
				})
				if got != (len(drops) == 0) || len(drops) > 1 || len(counters)-len(drops) > 2 {
					return 0, 0, fmt.Errorf("%s > %s: accepted %t, counters %v", name(from), name(to), got, counters)
				}
				if got {
					accepted++
				} else {
					dropped++
				}
			}
		}
	}
	return accepted, dropped, nil
}

// enforces reports whether this node enforces policies on the pod.
func (n *node) enforces(p *corev1.Pod) bool {
	return p != nil && p.Spec.NodeName == policytest.LocalNode && !p.Spec.HostNetwork
}

// unknown reports whether the pod has an address of the pod ranges without being a pod of them.
func (n *node) unknown(p *corev1.Pod) bool {
	return p != nil && p.Spec.NodeName == policytest.LocalNode && p.Spec.HostNetwork
}

func name(p *corev1.Pod) string {
	if p == nil {
		return "outside"
	}
	return p.Namespace + "/" + p.Name
}

// TestModel checks the invariants of the package on seeded clusters that change. In half of them a
// server computes the members of groups.
func TestModel(t *testing.T) {
	t.Parallel()
	accepted, dropped := 0, 0
	for seed := range uint64(25) {
		n := newNode(t, seed)
		if seed%2 == 1 {
			n.published = selection.NewPublished()
		}
		for step := range 50 {
			for range 1 + n.w.Rand.IntN(3) {
				n.change()
			}
			err := n.sync()
			var a, d int
			if err == nil {
				a, d, err = n.check()
			}
			if err != nil {
				for _, np := range n.w.Policies {
					t.Logf("%+v", describe(np))
				}
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
			accepted, dropped = accepted+a, dropped+d
		}
	}
	if ratio := float64(accepted) / float64(accepted+dropped); ratio < 0.2 || ratio > 0.8 {
		t.Errorf("accepted %d of %d packets: the policies of the model are too strict or too lax",
			accepted, accepted+dropped)
	}
}

func describe(np *networkingv1.NetworkPolicy) string {
	text, err := np.Marshal()
	return fmt.Sprintf("%s/%s: %d bytes %v %+v", np.Namespace, np.Name, len(text), err, np.Spec)
}

// TestPodsWithTheSameAddress: the rules are those of the pod that was set last, also when the older one
// has ended.
func TestPodsWithTheSameAddress(t *testing.T) {
	t.Parallel()
	n := newNode(t, 1)
	at := netip.MustParseAddr("10.1.0.7")
	pod := func(uid, app string) *selection.Pod {
		p := &corev1.Pod{}
		p.Namespace, p.Name, p.UID, p.Labels = "n1", uid, types.UID(uid), map[string]string{"app": app}
		return selection.FromPodAt(p, []netip.Addr{at})
	}
	np := &networkingv1.NetworkPolicy{}
	np.Namespace, np.Name = "n1", "deny-a"
	np.Spec.PodSelector.MatchLabels = map[string]string{"app": "a"}
	p, err := selection.FromNetworkPolicy(np)
	if err != nil {
		t.Fatal(err)
	}
	n.index.SetPolicy(p)
	n.w.Policies = append(n.w.Policies, np)
	for _, c := range []struct {
		name   string
		change func()
		want   bool
	}{
		{"isolated pod", func() { n.compiler.SetPod(pod("old", "a")) }, false},
		{"newer pod without a policy", func() { n.compiler.SetPod(pod("new", "b")) }, true},
		{"newer pod with a policy", func() { n.compiler.SetPod(pod("new", "a")) }, false},
		{"older pod ended", func() { n.compiler.DeletePod("old") }, false},
		{"no policy any more", func() { n.compiler.SetPod(pod("new", "b")) }, true},
	} {
		c.change()
		if err := n.sync(); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		got, _, err := policytest.Evaluate(n.kernel, policytest.Packet{
			Source: netip.MustParseAddr("192.0.2.1"), Destination: at, Protocol: selection.TCP, Port: 80})
		if err != nil || got != c.want {
			t.Errorf("%s: accepted %t, want %t, error %v", c.name, got, c.want, err)
		}
	}
}

// TestMembersWithTheSameAddress: an address stays in a group until the last member that has it is gone.
func TestMembersWithTheSameAddress(t *testing.T) {
	t.Parallel()
	n := newNode(t, 1)
	at, peer := netip.MustParseAddr("10.1.0.7"), netip.MustParseAddr("10.2.0.7")
	pod := func(name string, a netip.Addr) *selection.Pod {
		p := &corev1.Pod{}
		p.Namespace, p.Name, p.UID = "n1", name, types.UID(name)
		return selection.FromPodAt(p, []netip.Addr{a})
	}
	n.compiler.SetPod(pod("local", at))
	np := &networkingv1.NetworkPolicy{}
	np.Namespace, np.Name = "n1", "p"
	np.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{
		From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}}}}
	p, err := selection.FromNetworkPolicy(np)
	if err != nil {
		t.Fatal(err)
	}
	n.setPolicy(p)
	n.w.Policies = append(n.w.Policies, np)
	for _, c := range []struct {
		name   string
		change func()
		want   bool
	}{
		{"no member", func() {}, false},
		{"one member", func() { n.index.SetPod(pod("a", peer)) }, true},
		{"two members", func() { n.index.SetPod(pod("b", peer)) }, true},
		{"one member again", func() { n.index.DeletePod(types.NamespacedName{Namespace: "n1", Name: "a"}) }, true},
		{"member with another address", func() { n.index.SetPod(pod("b", at)) }, false},
	} {
		c.change()
		if err := n.sync(); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		got, _, err := policytest.Evaluate(n.kernel, policytest.Packet{
			Source: peer, Destination: at, Protocol: selection.TCP, Port: 80})
		if err != nil || got != c.want {
			t.Errorf("%s: accepted %t, want %t, error %v", c.name, got, c.want, err)
		}
	}
}

// TestExceptions checks invariants R2 and R4 for packets that the model does not send.
func TestExceptions(t *testing.T) {
	t.Parallel()
	n := newNode(t, 1)
	pod := n.w.AddPod(policytest.LocalNode)
	n.setPod(pod)
	deny := &networkingv1.NetworkPolicy{}
	deny.Namespace, deny.Name = pod.Namespace, "deny"
	deny.Spec.PolicyTypes = []networkingv1.PolicyType{"Ingress", "Egress"}
	p, err := selection.FromNetworkPolicy(deny)
	if err != nil {
		t.Fatal(err)
	}
	n.index.SetPolicy(p)
	n.w.Policies = append(n.w.Policies, deny)
	if err := n.sync(); err != nil {
		t.Fatal(err)
	}
	at4, at6 := netip.MustParseAddr(pod.Status.PodIPs[0].IP), netip.MustParseAddr(pod.Status.PodIPs[1].IP)
	out4, out6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	link, other := netip.MustParseAddr("fe80::1"), netip.MustParseAddr("fe80::2")
	compact := selection.FromPod(pod)
	for _, c := range []struct {
		name    string
		packet  policytest.Packet
		want    bool
		counter string
	}{
		{"new connection from the pod", policytest.Packet{Source: at4, Destination: out4, Protocol: 6}, false,
			rules.DropCounter(rules.Egress, compact)},
		{"new connection to the pod", policytest.Packet{Source: out6, Destination: at6, Protocol: 6}, false,
			rules.DropCounter(rules.Ingress, compact)},
		{"established connection", policytest.Packet{Source: out4, Destination: at4, Established: true}, true, ""},
		{"neighbor solicitation", policytest.Packet{Source: link, Destination: other, Protocol: 58, ICMPv6Type: 135,
			Interface: "cni0"}, true, ""},
		{"multicast listener report", policytest.Packet{Source: link, Destination: netip.MustParseAddr("ff02::16"),
			Protocol: 58, ICMPv6Type: 143, Interface: "cni0"}, true, ""},
		{"echo request", policytest.Packet{Source: out6, Destination: at6, Protocol: 58, ICMPv6Type: 128}, false,
			rules.DropCounter(rules.Ingress, compact)},
		{"the pod to itself", policytest.Packet{Source: at4, Destination: at4, Protocol: 6, Port: 80}, true, ""},
		{"to an unknown address of the pod range", policytest.Packet{Source: out4,
			Destination: netip.MustParseAddr("10.1.0.200")}, false, rules.UnknownCounter(rules.Ingress)},
		{"from an unknown address of the pod range", policytest.Packet{Source: netip.MustParseAddr("fd01::99"),
			Destination: out6}, false, rules.UnknownCounter(rules.Egress)},
		{"link-local address of a pod", policytest.Packet{Source: link, Destination: other, Protocol: 6,
			Interface: "cni0"}, false, rules.UnknownCounter(rules.Egress)},
		{"forged source on the pod bridge", policytest.Packet{Source: out4, Destination: out4, Interface: "cni0"},
			false, rules.UnknownCounter(rules.Egress)},
		{"link-local address on another bridge", policytest.Packet{Source: link, Destination: other, Protocol: 6,
			Interface: "br0"}, true, ""},
		{"traffic of others", policytest.Packet{Source: out4, Destination: out4, Interface: "eth0"}, true, ""},
	} {
		got, counters, err := policytest.Evaluate(n.kernel, c.packet)
		if err != nil || got != c.want {
			t.Errorf("%s: accepted %t, want %t, error %v", c.name, got, c.want, err)
		}
		if c.counter != "" && !slices.Equal(counters, []string{c.counter}) {
			t.Errorf("%s: got counters %v, want %s", c.name, counters, c.counter)
		}
	}
}
