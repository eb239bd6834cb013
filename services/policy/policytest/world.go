package policytest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// LocalNode is the node that enforces policies on its pods.
const LocalNode = "local"

// World is a seeded cluster that changes.
type World struct {
	Cluster
	Rand *rand.Rand
	next int
	// DualStack gives each pod an address of each family.
	DualStack bool
	// Address returns the address of the pod with a number on a node. It can be replaced.
	Address func(node string, number int, v6 bool) netip.Addr
}

// NewWorld returns a cluster of three namespaces without pods and policies.
func NewWorld(seed uint64) *World {
	w := &World{Rand: rand.New(rand.NewPCG(seed, 42)), DualStack: true, Address: address}
	for _, name := range []string{"n1", "n2", "n3"} {
		w.Namespaces = append(w.Namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{corev1.LabelMetadataName: name}}})
	}
	return w
}

// address returns addresses of 10.1.0.0/24 and fd01::/64 for the local node, and others for others.
func address(node string, number int, v6 bool) netip.Addr {
	at := byte(2)
	if node == LocalNode {
		at = 1
	}
	if v6 {
		return netip.AddrFrom16([16]byte{0xfd, at, 15: byte(number)})
	}
	return netip.AddrFrom4([4]byte{10, at, 0, byte(number)})
}

// Pick returns one of the values.
func Pick[T any](w *World, values ...T) T { return values[w.Rand.IntN(len(values))] }

func (w *World) chance(percent int) bool { return w.Rand.IntN(100) < percent }

func (w *World) labels() map[string]string {
	out := map[string]string{}
	for _, key := range []string{"app", "tier"} {
		if w.chance(70) {
			out[key] = Pick(w, "a", "b")
		}
	}
	return out
}

// AddPod adds a pod to a node and returns it.
func (w *World) AddPod(node string) *corev1.Pod {
	w.next++
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: Pick(w, w.Namespaces...).Name, Name: fmt.Sprintf("p%d", w.next),
			UID: types.UID(fmt.Sprintf("uid-%d", w.next)), Labels: w.labels(),
		},
		Spec:   corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, name := range []string{"http", "dns"} {
		if w.chance(60) {
			pod.Spec.Containers[0].Ports = append(pod.Spec.Containers[0].Ports, corev1.ContainerPort{
				Name: name, ContainerPort: Pick[int32](w, Ports...), Protocol: Pick(w, Protocols...)})
		}
	}
	number := w.free(node)
	ips := []string{w.Address(node, number, false).String()}
	if w.DualStack {
		ips = append(ips, w.Address(node, number, true).String())
	}
	pod.Status.PodIP = ips[0]
	for _, ip := range ips {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	w.Pods = append(w.Pods, pod)
	return pod
}

// free returns the lowest number whose address no pod of the node has, so that addresses are reused.
func (w *World) free(node string) int {
	for number := 2; ; number++ {
		ip := w.Address(node, number, false).String()
		if !slices.ContainsFunc(w.Pods, func(p *corev1.Pod) bool { return p.Status.PodIP == ip }) {
			return number
		}
	}
}

// Protocols and Ports are those of the traffic and of the policies of a World.
var (
	Protocols = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}
	Ports     = []int32{80, 81, 82, 443}
)

func (w *World) selector() *metav1.LabelSelector {
	switch w.Rand.IntN(5) {
	case 0:
		return &metav1.LabelSelector{}
	case 1:
		op := Pick(w, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn)
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: Pick(w, "app", "tier"), Operator: op, Values: []string{Pick(w, "a", "b")}}}}
	case 2:
		op := Pick(w, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist)
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: Pick(w, "app", "tier"), Operator: op}}}
	}
	return &metav1.LabelSelector{MatchLabels: map[string]string{Pick(w, "app", "tier"): Pick(w, "a", "b")}}
}

func (w *World) namespaceSelector() *metav1.LabelSelector {
	switch w.Rand.IntN(3) {
	case 0:
		return &metav1.LabelSelector{}
	case 1:
		return &metav1.LabelSelector{MatchLabels: map[string]string{"team": Pick(w, "x", "y")}}
	}
	return &metav1.LabelSelector{MatchLabels: map[string]string{
		corev1.LabelMetadataName: Pick(w, w.Namespaces...).Name}}
}

func (w *World) block() *networkingv1.IPBlock {
	v6 := w.DualStack && w.chance(50)
	one := w.Address(Pick(w, LocalNode, "other"), 2+w.Rand.IntN(6), v6)
	some, _ := one.Prefix(one.BitLen() - 2)
	all, _ := one.Prefix(Pick(w, 0, one.BitLen()-8))
	b := &networkingv1.IPBlock{CIDR: Pick(w, some, all).String()}
	if b.CIDR == all.String() && w.chance(70) {
		b.Except = append(b.Except, some.String())
	}
	if w.chance(30) {
		b.Except = append(b.Except, netip.PrefixFrom(one, one.BitLen()).String())
	}
	return b
}

func (w *World) peers() (out []networkingv1.NetworkPolicyPeer) {
	for range w.Rand.IntN(3) {
		var p networkingv1.NetworkPolicyPeer
		switch w.Rand.IntN(4) {
		case 0:
			p.PodSelector = w.selector()
		case 1:
			p.NamespaceSelector = w.namespaceSelector()
		case 2:
			p.PodSelector, p.NamespaceSelector = w.selector(), w.namespaceSelector()
		case 3:
			p.IPBlock = w.block()
		}
		out = append(out, p)
	}
	return out
}

func (w *World) ports() (out []networkingv1.NetworkPolicyPort) {
	for range w.Rand.IntN(3) {
		var p networkingv1.NetworkPolicyPort
		if w.chance(60) {
			protocol := Pick(w, Protocols...)
			p.Protocol = &protocol
		}
		switch w.Rand.IntN(5) {
		case 0:
			name := intstr.FromString(Pick(w, "http", "dns"))
			p.Port = &name
		case 1:
			first, last := intstr.FromInt32(80), Pick[int32](w, 80, 81, 442)
			p.Port, p.EndPort = &first, &last
		case 2, 3:
			port := intstr.FromInt32(Pick(w, Ports...))
			p.Port = &port
		}
		out = append(out, p)
	}
	return out
}

// SetPolicy adds or replaces a policy and returns it.
func (w *World) SetPolicy() *networkingv1.NetworkPolicy {
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{
		Namespace: Pick(w, w.Namespaces...).Name, Name: Pick(w, "a", "b", "c")}}
	np.Spec.PodSelector = *w.selector()
	np.Spec.PolicyTypes = Pick(w, nil, []networkingv1.PolicyType{"Ingress"}, []networkingv1.PolicyType{"Egress"},
		[]networkingv1.PolicyType{"Ingress", "Egress"})
	for range w.Rand.IntN(3) {
		rule := networkingv1.NetworkPolicyIngressRule{From: w.peers(), Ports: w.ports()}
		np.Spec.Ingress = append(np.Spec.Ingress, rule)
	}
	for range w.Rand.IntN(3) {
		rule := networkingv1.NetworkPolicyEgressRule{To: w.peers(), Ports: w.ports()}
		np.Spec.Egress = append(np.Spec.Egress, rule)
	}
	w.Policies = slices.DeleteFunc(w.Policies, func(o *networkingv1.NetworkPolicy) bool {
		return o.Namespace == np.Namespace && o.Name == np.Name
	})
	w.Policies = append(w.Policies, np)
	return np
}

// Ends returns the pods and an address outside the cluster, as sources or destinations of traffic of
// a family. The pod of the address outside is nil.
func (w *World) Ends(v6 bool) (pods []*corev1.Pod, addresses []netip.Addr) {
	for _, p := range w.Pods {
		for _, ip := range p.Status.PodIPs {
			if a := netip.MustParseAddr(ip.IP); a.Is6() == v6 && p.Status.Phase == corev1.PodRunning {
				pods, addresses = append(pods, p), append(addresses, a)
			}
		}
	}
	outside := netip.MustParseAddr("192.0.2.9")
	if v6 {
		outside = netip.MustParseAddr("2001:db8::9")
	}
	return append(pods, nil), append(addresses, outside)
}
