package rules_test

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"berth/services/policy/policytest"
	"berth/services/policy/rules"
	"berth/services/policy/selection"
)

// netpol is the cluster of the upstream end-to-end tests of network policies: namespaces x, y and z
// with the pods a, b and c in each. All pods are on the node. They serve the ports 80 and 81.
type netpol struct {
	index    *selection.Index
	compiler *rules.Compiler
	pods     []netpolPod
}

type netpolPod struct {
	ns, pod string
	address netip.Addr
}

func newNetpol() *netpol {
	c := &netpol{index: selection.New(), compiler: rules.New()}
	for i, ns := range []string{"x", "y", "z"} {
		c.index.SetNamespace(ns, selection.MakeLabels(map[string]string{"ns": ns}))
		for j, name := range []string{"a", "b", "c"} {
			p := netpolPod{ns, name, netip.AddrFrom4([4]byte{10, 1, byte(i), byte(2 + j)})}
			c.pods = append(c.pods, p)
			c.setPod(p, map[string]string{"pod": name})
		}
	}
	return c
}

func (c *netpol) setPod(p netpolPod, labels map[string]string) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: p.pod, Labels: labels,
		UID: types.UID(p.ns + "/" + p.pod)}}
	for _, port := range []int32{80, 81} {
		for _, protocol := range policytest.Protocols {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Ports: []corev1.ContainerPort{{
				Name: fmt.Sprintf("serve-%d-%s", port, protocol), ContainerPort: port, Protocol: protocol}}})
		}
	}
	compact := selection.FromPodAt(pod, []netip.Addr{p.address})
	c.index.SetPod(compact)
	c.compiler.SetPod(compact)
}

// connection is one cell of the table of what is reachable.
type connection struct {
	from, to netpolPod
	protocol corev1.Protocol
	port     int
}

func (c connection) String() string {
	return fmt.Sprintf("%s/%s > %s/%s %s/%d", c.from.ns, c.from.pod, c.to.ns, c.to.pod, c.protocol, c.port)
}

// expect compares all connections with the expectation. A pod always reaches itself.
func (c *netpol) expect(t *testing.T, what string, want func(connection) bool) {
	t.Helper()
	c.compiler.Update(c.index.Take(), c.index)
	c.compiler.Transaction(c.index)
	for _, from := range c.pods {
		for _, to := range c.pods {
			for _, protocol := range policytest.Protocols {
				for _, port := range []int{80, 81} {
					x := connection{from, to, protocol, port}
					number, _ := selection.ParseProtocol(protocol)
					got, _, err := policytest.Evaluate(c.compiler.Ruleset(), policytest.Packet{Source: from.address,
						Destination: to.address, Protocol: number, Port: uint16(port)})
					if err != nil || got != (from == to || want(x)) {
						t.Fatalf("%s: %s: accepted %t, error %v", what, x, got, err)
					}
				}
			}
		}
	}
}

func (c *netpol) set(t *testing.T, ns, name string, spec networkingv1.NetworkPolicySpec) {
	t.Helper()
	p, err := selection.FromNetworkPolicy(&networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: spec})
	if err != nil {
		t.Fatal(err)
	}
	c.index.SetPolicy(p)
}

type (
	npSpec = networkingv1.NetworkPolicySpec
	npPeer = networkingv1.NetworkPolicyPeer
	npPort = networkingv1.NetworkPolicyPort
)

func byLabel(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

func byExpression(key string, values ...string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: key, Operator: metav1.LabelSelectorOpIn, Values: values}}}
}

// ingressFrom isolates pod a and allows peers on ports.
func ingressFrom(peers []npPeer, ports ...npPort) npSpec {
	return npSpec{PodSelector: *byLabel("pod", "a"), PolicyTypes: []networkingv1.PolicyType{"Ingress"},
		Ingress: []networkingv1.NetworkPolicyIngressRule{{From: peers, Ports: ports}}}
}

// egressTo restricts what pod a may reach.
func egressTo(peers []npPeer, ports ...npPort) npSpec {
	return npSpec{PodSelector: *byLabel("pod", "a"), PolicyTypes: []networkingv1.PolicyType{"Egress"},
		Egress: []networkingv1.NetworkPolicyEgressRule{{To: peers, Ports: ports}}}
}

func npNumber(port int32, protocol corev1.Protocol) npPort {
	number := intstr.FromInt32(port)
	return npPort{Port: &number, Protocol: &protocol}
}

func npRange(first, last int32) npPort {
	p := npNumber(first, corev1.ProtocolTCP)
	p.EndPort = &last
	return p
}

func npName(name string, protocol corev1.Protocol) npPort {
	port := intstr.FromString(name)
	return npPort{Port: &port, Protocol: &protocol}
}

func npBlock(cidr string, except ...string) npPeer {
	return npPeer{IPBlock: &networkingv1.IPBlock{CIDR: cidr, Except: except}}
}

// xa reports whether a pod is x/a.
func xa(p netpolPod) bool { return p.ns == "x" && p.pod == "a" }

// TestNetpol has the cases of the upstream end-to-end tests of network policies that apply policies of
// namespace x. The expectations are written by hand.
func TestNetpol(t *testing.T) {
	t.Parallel()
	tcp80 := npNumber(80, corev1.ProtocolTCP)
	both := npPeer{PodSelector: byLabel("pod", "b"), NamespaceSelector: byLabel("ns", "y")}
	for _, row := range []struct {
		name     string
		policies []npSpec
		want     func(connection) bool
	}{
		{"default deny ingress", []npSpec{{PolicyTypes: []networkingv1.PolicyType{"Ingress"}}},
			func(c connection) bool { return c.to.ns != "x" }},
		{"default deny all", []npSpec{{PolicyTypes: []networkingv1.PolicyType{"Ingress", "Egress"}}},
			func(c connection) bool { return c.to.ns != "x" && c.from.ns != "x" }},
		{"allow all", []npSpec{{Ingress: []networkingv1.NetworkPolicyIngressRule{{}}}},
			func(connection) bool { return true }},
		{"pods of the namespace", []npSpec{ingressFrom([]npPeer{{PodSelector: byLabel("pod", "b")}})},
			func(c connection) bool { return !xa(c.to) || c.from.ns == "x" && c.from.pod == "b" }},
		{"another namespace", []npSpec{ingressFrom([]npPeer{{NamespaceSelector: byLabel("ns", "y")}})},
			func(c connection) bool { return !xa(c.to) || c.from.ns == "y" }},
		{"pods by expression", []npSpec{ingressFrom([]npPeer{{PodSelector: byExpression("pod", "b", "c")}})},
			func(c connection) bool { return !xa(c.to) || c.from.ns == "x" }},
		{"namespaces by expression", []npSpec{ingressFrom([]npPeer{{NamespaceSelector: byExpression("ns", "y", "z")}})},
			func(c connection) bool { return !xa(c.to) || c.from.ns != "x" }},
		{"pods or namespaces", []npSpec{ingressFrom([]npPeer{
			{PodSelector: byLabel("pod", "b")}, {NamespaceSelector: byLabel("ns", "y")}})},
			func(c connection) bool {
				return !xa(c.to) || c.from.ns == "y" || c.from.ns == "x" && c.from.pod == "b"
			}},
		{"pods and namespaces", []npSpec{ingressFrom([]npPeer{both})},
			func(c connection) bool { return !xa(c.to) || c.from.ns == "y" && c.from.pod == "b" }},
		{"pods in all namespaces", []npSpec{ingressFrom([]npPeer{
			{PodSelector: byLabel("pod", "b"), NamespaceSelector: &metav1.LabelSelector{}}})},
			func(c connection) bool { return !xa(c.to) || c.from.pod == "b" }},
		{"port", []npSpec{ingressFrom(nil, tcp80)},
			func(c connection) bool { return !xa(c.to) || c.protocol == "TCP" && c.port == 80 }},
		{"port and namespace", []npSpec{ingressFrom([]npPeer{{NamespaceSelector: byLabel("ns", "y")}}, tcp80)},
			func(c connection) bool {
				return !xa(c.to) || c.from.ns == "y" && c.protocol == "TCP" && c.port == 80
			}},
		{"overlapping policies", []npSpec{
			ingressFrom([]npPeer{{NamespaceSelector: byLabel("ns", "x")}}, tcp80),
			ingressFrom([]npPeer{{NamespaceSelector: byLabel("ns", "y")}}, npNumber(81, corev1.ProtocolTCP)),
			{PodSelector: *byLabel("pod", "b"), PolicyTypes: []networkingv1.PolicyType{"Ingress"}}},
			func(c connection) bool {
				return !xa(c.to) && (c.to.ns != "x" || c.to.pod != "b") ||
					xa(c.to) && c.protocol == "TCP" &&
						(c.from.ns == "x" && c.port == 80 || c.from.ns == "y" && c.port == 81)
			}},
		{"named port", []npSpec{ingressFrom(nil, npName("serve-81-TCP", corev1.ProtocolTCP))},
			func(c connection) bool { return !xa(c.to) || c.protocol == "TCP" && c.port == 81 }},
		{"named port of egress", []npSpec{egressTo(nil, npName("serve-80-UDP", corev1.ProtocolUDP))},
			func(c connection) bool { return !xa(c.from) || c.protocol == "UDP" && c.port == 80 }},
		{"port range", []npSpec{egressTo(nil, npRange(81, 90))},
			func(c connection) bool { return !xa(c.from) || c.protocol == "TCP" && c.port == 81 }},
		{"any port of a protocol", []npSpec{ingressFrom(nil, npPort{Protocol: new(corev1.ProtocolUDP)})},
			func(c connection) bool { return !xa(c.to) || c.protocol == "UDP" }},
		{"SCTP is not TCP", []npSpec{ingressFrom(nil, npNumber(81, corev1.ProtocolSCTP))},
			func(c connection) bool { return !xa(c.to) || c.protocol == "SCTP" && c.port == 81 }},
		{"deny egress", []npSpec{{PodSelector: *byLabel("pod", "a"), PolicyTypes: []networkingv1.PolicyType{"Egress"}}},
			func(c connection) bool { return !xa(c.from) }},
		{"egress to pods and namespaces", []npSpec{egressTo([]npPeer{both})},
			func(c connection) bool { return !xa(c.from) || c.to.ns == "y" && c.to.pod == "b" }},
		{"ingress and egress apart", []npSpec{egressTo(nil), ingressFrom([]npPeer{both})},
			func(c connection) bool { return !xa(c.to) || c.from.ns == "y" && c.from.pod == "b" }},
		{"block of egress", []npSpec{egressTo([]npPeer{npBlock("10.1.1.0/24")})},
			func(c connection) bool { return !xa(c.from) || c.to.ns == "y" }},
		{"block with an exception", []npSpec{egressTo([]npPeer{npBlock("10.1.1.0/24", "10.1.1.3/32")})},
			func(c connection) bool { return !xa(c.from) || c.to.ns == "y" && c.to.pod != "b" }},
		{"exception that another block allows", []npSpec{
			egressTo([]npPeer{npBlock("10.1.1.0/24", "10.1.1.3/32")}), egressTo([]npPeer{npBlock("10.1.1.3/32")})},
			func(c connection) bool { return !xa(c.from) || c.to.ns == "y" }},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			c := newNetpol()
			for i, spec := range row.policies {
				c.set(t, "x", fmt.Sprint(i), spec)
			}
			c.expect(t, "policies", row.want)
			for i := range row.policies {
				c.index.DeletePolicy(types.NamespacedName{Namespace: "x", Name: fmt.Sprint(i)})
			}
			c.expect(t, "policies are deleted", func(connection) bool { return true })
		})
	}
}

// TestNetpolUpdates has the cases of the upstream tests that change labels and policies.
func TestNetpolUpdates(t *testing.T) {
	t.Parallel()
	c := newNetpol()
	c.set(t, "x", "p", ingressFrom([]npPeer{{NamespaceSelector: byLabel("team", "new")}}))
	c.expect(t, "no namespace has the label", func(c connection) bool { return !xa(c.to) })
	c.index.SetNamespace("z", selection.MakeLabels(map[string]string{"ns": "z", "team": "new"}))
	c.expect(t, "namespace with the label", func(c connection) bool { return !xa(c.to) || c.from.ns == "z" })
	c.index.DeleteNamespace("z")
	c.expect(t, "namespace is deleted", func(c connection) bool { return !xa(c.to) })
	c.set(t, "x", "p", ingressFrom([]npPeer{{PodSelector: byLabel("role", "client")}}))
	c.expect(t, "no pod has the label", func(c connection) bool { return !xa(c.to) })
	c.setPod(c.pods[1], map[string]string{"pod": "b", "role": "client"})
	c.expect(t, "pod with the label", func(c connection) bool {
		return !xa(c.to) || c.from.ns == "x" && c.from.pod == "b"
	})
	c.setPod(c.pods[0], map[string]string{"pod": "other"})
	c.expect(t, "pod that the policy does not select any more", func(connection) bool { return true })
	c.setPod(c.pods[2], map[string]string{"pod": "a"})
	c.expect(t, "pod that the policy selects now", func(c connection) bool {
		return c.to.ns != "x" || c.to.pod != "c" || c.from.ns == "x" && c.from.pod == "b"
	})
}
