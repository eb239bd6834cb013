package selection

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func selector(pairs ...string) *metav1.LabelSelector {
	s := &metav1.LabelSelector{MatchLabels: map[string]string{}}
	for i := 0; i < len(pairs); i += 2 {
		s.MatchLabels[pairs[i]] = pairs[i+1]
	}
	return s
}

// describe returns a policy as text: the subject, then each direction.
func describe(p *Policy) string {
	var b strings.Builder
	fmt.Fprintf(&b, "subject(%s)", p.Subject)
	for _, d := range []struct {
		name string
		*Direction
	}{{"ingress", p.Ingress}, {"egress", p.Egress}} {
		if d.Direction == nil {
			continue
		}
		fmt.Fprintf(&b, " %s", d.name)
		for _, r := range d.Rules {
			fmt.Fprintf(&b, " [any:%t %q %v any:%t %v %v]", r.AnyPeer, r.Groups, r.Blocks, r.AnyPort, r.Ports, r.Named)
		}
	}
	return b.String()
}

func TestFromNetworkPolicy(t *testing.T) {
	t.Parallel()
	type spec = networkingv1.NetworkPolicySpec
	type ingress = []networkingv1.NetworkPolicyIngressRule
	type egress = []networkingv1.NetworkPolicyEgressRule
	in, out := networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress
	from := func(p ...networkingv1.NetworkPolicyPeer) spec { return spec{Ingress: ingress{{From: p}}} }
	to := func(p ...networkingv1.NetworkPolicyPort) spec { return spec{Ingress: ingress{{Ports: p}}} }
	for _, c := range []struct {
		name string
		spec spec
		want string
		err  string
	}{
		{"no rules and no types isolate for ingress", spec{}, "subject() ingress", ""},
		{"egress rules isolate for egress too", spec{Egress: egress{{}}},
			"subject() ingress egress [any:true [] [] any:true [] []]", ""},
		{"types are taken as they are", spec{PolicyTypes: []networkingv1.PolicyType{out}, Ingress: ingress{{}}},
			"subject() egress", ""},
		{"both types", spec{PolicyTypes: []networkingv1.PolicyType{in, out}}, "subject() ingress egress", ""},
		{"unknown type", spec{PolicyTypes: []networkingv1.PolicyType{in, "X"}}, "subject() ingress", "unknown type"},
		{"pods of the namespace", from(networkingv1.NetworkPolicyPeer{PodSelector: selector("a", "b")}),
			`subject() ingress [any:false ["namespace ns pods(a=b)"] [] any:true [] []]`, ""},
		{"pods of other namespaces", from(networkingv1.NetworkPolicyPeer{NamespaceSelector: selector("n", "m")}),
			`subject() ingress [any:false ["namespaces(n=m) pods()"] [] any:true [] []]`, ""},
		{"both selectors", from(networkingv1.NetworkPolicyPeer{
			NamespaceSelector: &metav1.LabelSelector{}, PodSelector: selector("a", "b")}),
			`subject() ingress [any:false ["namespaces() pods(a=b)"] [] any:true [] []]`, ""},
		{"expressions", from(networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "z", Operator: metav1.LabelSelectorOpDoesNotExist},
				{Key: "a", Operator: metav1.LabelSelectorOpIn, Values: []string{"y", "x"}}}}}),
			`subject() ingress [any:false ["namespace ns pods(a in (x,y),!z)"] [] any:true [] []]`, ""},
		{"invalid expression selects nothing", from(networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "z", Operator: "Near"}}}}),
			`subject() ingress [any:false [] [] any:true [] []]`, "spec.ingress[0].from[0].podSelector"},
		{"invalid subject selects all pods", spec{PodSelector: metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "z", Operator: "Near"}}}},
			`subject() ingress`, "spec.podSelector"},
		{"empty peer allows nothing", from(networkingv1.NetworkPolicyPeer{}),
			`subject() ingress [any:false [] [] any:true [] []]`, "empty peer"},
		{"block with exceptions", from(networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{
			CIDR: "10.1.2.3/16", Except: []string{"10.1.0.0/24"}}}),
			`subject() ingress [any:false [] [{10.1.0.0/16 [10.1.0.0/24]}] any:true [] []]`, ""},
		{"block with an invalid exception allows nothing", from(networkingv1.NetworkPolicyPeer{
			IPBlock: &networkingv1.IPBlock{CIDR: "10.1.0.0/16", Except: []string{"x"}}}),
			`subject() ingress [any:false [] [] any:true [] []]`, "ipBlock.except[0]"},
		{"block and selector", from(networkingv1.NetworkPolicyPeer{
			PodSelector: selector(), IPBlock: &networkingv1.IPBlock{CIDR: "10.1.0.0/16"}}),
			`subject() ingress [any:false [] [] any:true [] []]`, "ipBlock with a selector"},
		{"ports", to(
			networkingv1.NetworkPolicyPort{Port: new(intstr.FromInt32(80))},
			networkingv1.NetworkPolicyPort{Protocol: new(corev1.ProtocolUDP)},
			networkingv1.NetworkPolicyPort{Protocol: new(corev1.ProtocolSCTP), Port: new(intstr.FromInt32(1)),
				EndPort: new(int32(9))},
			networkingv1.NetworkPolicyPort{Port: new(intstr.FromString("http"))}),
			`subject() ingress [any:true [] [] any:false [{TCP 80 80} {UDP 0 65535} {SCTP 1 9}] [{http TCP}]]`, ""},
		{"port range that ends before it starts", to(networkingv1.NetworkPolicyPort{
			Port: new(intstr.FromInt32(9)), EndPort: new(int32(8))}),
			`subject() ingress [any:true [] [] any:false [] []]`, "invalid port range 9-8"},
		{"end of a named port", to(networkingv1.NetworkPolicyPort{
			Port: new(intstr.FromString("http")), EndPort: new(int32(8))}),
			`subject() ingress [any:true [] [] any:false [] []]`, "port is a name"},
		{"unknown protocol", to(networkingv1.NetworkPolicyPort{Protocol: new(corev1.Protocol("ICMP"))}),
			`subject() ingress [any:true [] [] any:false [] []]`, "unknown protocol"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p, err := FromNetworkPolicy(&networkingv1.NetworkPolicy{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: c.spec})
			if got := describe(p); got != c.want {
				t.Errorf("got\n%s, want\n%s", got, c.want)
			}
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("error: got %v, want %q", err, c.err)
			}
		})
	}
}

// TestEgressToNamedPortOfAnyPeer: the named ports of all pods are needed.
func TestEgressToNamedPortOfAnyPeer(t *testing.T) {
	t.Parallel()
	p, err := FromNetworkPolicy(&networkingv1.NetworkPolicy{Spec: networkingv1.NetworkPolicySpec{
		Egress: []networkingv1.NetworkPolicyEgressRule{{
			Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromString("http"))}}}}}})
	if err != nil || len(p.Groups) != 1 || p.Groups[0].Key != AllPods {
		t.Errorf("got groups %v and error %v, want the group of all pods", p.Groups, err)
	}
}

func TestFromPod(t *testing.T) {
	t.Parallel()
	always := corev1.ContainerRestartPolicyAlways
	port := func(name string, n int32) []corev1.ContainerPort {
		return []corev1.ContainerPort{{Name: name, ContainerPort: n}}
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "p", UID: "u", Labels: map[string]string{"b": "2", "a": "1"}},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{
				{Ports: port("init", 1)}, {Ports: port("side", 2), RestartPolicy: &always}},
			Containers: []corev1.Container{{Ports: port("main", 3)}, {Ports: port("", 4)}},
		},
		Status: corev1.PodStatus{
			PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}, {IP: "x"}}},
	}
	p := FromPod(pod)
	if got, want := fmt.Sprint(p.Ports), "[{side TCP 2} {main TCP 3}]"; got != want {
		t.Errorf("ports: got %s, want %s", got, want)
	}
	if got, want := fmt.Sprint(p.Addresses), "[10.0.0.1 fd00::1]"; got != want {
		t.Errorf("addresses: got %s, want %s", got, want)
	}
	if p.Labels.Get("a") != "1" || p.Labels.Get("b") != "2" || p.Labels.Has("c") || p.Labels.Get("c") != "" {
		t.Errorf("unexpected labels %v", p.Labels)
	}
	if !p.selectable() {
		t.Error("a pod with addresses cannot be selected")
	}
	trimmed := pod.DeepCopy()
	TrimPod(trimmed)
	if !FromPod(trimmed).Equal(p) {
		t.Errorf("trimmed pod: got %+v, want %+v", FromPod(trimmed), p)
	}
	pod.Status.Phase = corev1.PodSucceeded
	if q := FromPod(pod); q.selectable() || len(q.Addresses) > 0 || q.Equal(p) {
		t.Errorf("ended pod: got addresses %v", q.Addresses)
	}
	pod.Status.Phase, pod.Spec.HostNetwork = corev1.PodRunning, true
	if FromPod(pod).selectable() {
		t.Error("a pod on the host network can be selected")
	}
}

// model is the state that an Index must agree with.
type model struct {
	policies   map[types.NamespacedName]*Policy
	pods       map[types.NamespacedName]*Pod
	namespaces map[string]Labels
}

// members returns the members of all groups by invariant S1, with the addresses of the pods.
func (m *model) members() map[GroupKey]map[types.NamespacedName]string {
	out := map[GroupKey]map[types.NamespacedName]string{}
	for _, p := range m.policies {
		for _, s := range p.Groups {
			out[s.Key] = map[types.NamespacedName]string{}
			for name, pod := range m.pods {
				inNamespace := s.Namespace == name.Namespace
				if s.Namespaces != nil {
					labels, known := m.namespaces[name.Namespace]
					inNamespace = known && s.Namespaces.Matches(labels)
				}
				if inNamespace && s.Pods.Matches(pod.Labels) && !pod.HostNetwork && len(pod.Addresses) > 0 {
					out[s.Key][name] = fmt.Sprint(pod.Member)
				}
			}
		}
	}
	return out
}

// TestIndexModel applies seeded changes to an Index and checks invariants S1 and S2.
func TestIndexModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 7))
		pick := func(texts ...string) string { return texts[rng.IntN(len(texts))] }
		randomLabels := func() map[string]string {
			out := map[string]string{}
			for range rng.IntN(3) {
				out[pick("a", "b")] = pick("1", "2")
			}
			return out
		}
		x := New()
		m := model{map[types.NamespacedName]*Policy{}, map[types.NamespacedName]*Pod{}, map[string]Labels{}}
		seen := map[GroupKey]map[types.NamespacedName]string{} // what a consumer of Take knows
		ns := func() string { return pick("n1", "n2", "n3") }
		for step := range 300 {
			switch rng.IntN(8) {
			case 0, 1, 2:
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
					Namespace: ns(), Name: pick("p", "q", "r"), Labels: randomLabels()}}
				pod.Spec.HostNetwork = rng.IntN(10) == 0
				var at []netip.Addr
				if rng.IntN(5) > 0 {
					at = append(at, netip.AddrFrom4([4]byte{10, 0, 0, byte(rng.IntN(9))}))
				}
				p := FromPodAt(pod, at)
				x.SetPod(p)
				m.pods[p.Name] = p
			case 3:
				name := types.NamespacedName{Namespace: ns(), Name: pick("p", "q", "r")}
				if _, want := m.pods[name]; x.DeletePod(name) != want {
					t.Fatalf("seed %d: DeletePod is not %t", seed, want)
				}
				delete(m.pods, name)
			case 4:
				n, l := ns(), MakeLabels(randomLabels())
				x.SetNamespace(n, l)
				m.namespaces[n] = l
			case 5:
				n := ns()
				x.DeleteNamespace(n)
				delete(m.namespaces, n)
			case 6:
				np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns(), Name: pick("x", "y")}}
				rule := networkingv1.NetworkPolicyIngressRule{}
				for range rng.IntN(3) {
					pods := &metav1.LabelSelector{MatchLabels: randomLabels()}
					peer := networkingv1.NetworkPolicyPeer{PodSelector: pods}
					if rng.IntN(2) == 0 {
						peer.NamespaceSelector = &metav1.LabelSelector{MatchLabels: randomLabels()}
					}
					rule.From = append(rule.From, peer)
				}
				np.Spec.Ingress = append(np.Spec.Ingress, rule)
				p, err := FromNetworkPolicy(np)
				if err != nil {
					t.Fatal(err)
				}
				x.SetPolicy(p)
				m.policies[p.Name] = p
			case 7:
				name := types.NamespacedName{Namespace: ns(), Name: pick("x", "y")}
				x.DeletePolicy(name)
				delete(m.policies, name)
			}
			if rng.IntN(4) > 0 {
				continue
			}
			want := m.members()
			for key := range want {
				got := map[types.NamespacedName]string{}
				for name, member := range x.Members(key) {
					got[name] = fmt.Sprint(*member)
				}
				if !maps.Equal(got, want[key]) {
					t.Fatalf("seed %d, step %d, S1: group %s: got %v, want %v", seed, step, key, got, want[key])
				}
			}
			if len(x.groups) != len(want) {
				t.Fatalf("seed %d, step %d: got %d groups, want %d", seed, step, len(x.groups), len(want))
			}
			take(t, x, seen, want)
			for key := range want {
				if !maps.Equal(seen[key], want[key]) {
					t.Fatalf("seed %d, step %d, S2: group %s: got %v, want %v", seed, step, key, seen[key], want[key])
				}
			}
		}
	}
}

// take applies the changes of an Index to what a consumer knows.
func take(t *testing.T, x *Index, seen, present map[GroupKey]map[types.NamespacedName]string) {
	t.Helper()
	changes := x.Take()
	for key := range changes.Created {
		seen[key] = map[types.NamespacedName]string{}
		for name, member := range x.Members(key) {
			seen[key][name] = fmt.Sprint(*member)
		}
	}
	for key, members := range changes.Members {
		if _, created := changes.Created[key]; created {
			t.Fatalf("group %s is both created and changed", key)
		}
		for name, c := range members {
			old, known := seen[key][name]
			if known != (c.Old != nil) || known && old != fmt.Sprint(*c.Old) {
				t.Fatalf("group %s, pod %s: old member is %v, want %q", key, name, c.Old, old)
			}
			if c.New == nil {
				delete(seen[key], name)
			} else {
				seen[key][name] = fmt.Sprint(*c.New)
			}
		}
	}
	for key := range seen {
		if present[key] == nil {
			delete(seen, key)
		}
	}
}

// countingSelector counts how often a selector of pods is evaluated.
type countingSelector struct {
	labels.Selector
	n *int
}

func (c countingSelector) Matches(l labels.Labels) bool { *c.n++; return c.Selector.Matches(l) }

// TestPodChangeEvaluatesGroupsOfItsNamespace checks invariant S3.
func TestPodChangeEvaluatesGroupsOfItsNamespace(t *testing.T) {
	t.Parallel()
	x, evaluated := New(), 0
	for i := range 100 {
		ns := fmt.Sprintf("n%d", i)
		x.SetNamespace(ns, MakeLabels(map[string]string{"name": ns}))
		np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "p"}}
		np.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{
			{PodSelector: selector("a", "b")},
			{NamespaceSelector: selector("name", ns), PodSelector: selector("c", "d")}}}}
		p, err := FromNetworkPolicy(np)
		if err != nil {
			t.Fatal(err)
		}
		for i := range p.Groups {
			p.Groups[i].Pods = countingSelector{p.Groups[i].Pods, &evaluated}
		}
		x.SetPolicy(p)
	}
	x.SetPod(FromPodAt(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n7", Name: "p"}},
		[]netip.Addr{netip.MustParseAddr("10.0.0.1")}))
	if evaluated != 2 {
		t.Errorf("a pod change has evaluated %d groups, want 2", evaluated)
	}
}
