package policytest

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Cluster has the objects that decide what is allowed.
type Cluster struct {
	Namespaces []*corev1.Namespace
	Pods       []*corev1.Pod
	Policies   []*networkingv1.NetworkPolicy
}

// Traffic is the first packet of a connection.
type Traffic struct {
	// From and To are the pods at both ends; nil for an address outside the cluster.
	From, To             *corev1.Pod
	FromAddress, Address netip.Addr
	Protocol             corev1.Protocol
	Port                 int32
}

// Allowed reports whether policies allow the traffic. egress and ingress say at which of the two ends
// policies are enforced here: the source, the destination, or both.
func (c *Cluster) Allowed(t Traffic, egress, ingress bool) bool {
	if t.From != nil && t.From == t.To {
		return true
	}
	if egress && t.From != nil && !c.allows(t, t.From, t.To, t.Address, networkingv1.PolicyTypeEgress) {
		return false
	}
	return !ingress || t.To == nil || c.allows(t, t.To, t.From, t.FromAddress, networkingv1.PolicyTypeIngress)
}

// allows reports whether the policies of a pod allow its peer in a direction.
func (c *Cluster) allows(
	t Traffic, pod, peer *corev1.Pod, address netip.Addr, direction networkingv1.PolicyType,
) bool {
	if pod.Spec.HostNetwork {
		return true
	}
	isolated := false
	for _, np := range c.Policies {
		if np.Namespace != pod.Namespace || !matches(&np.Spec.PodSelector, pod.Labels) {
			continue
		}
		types := np.Spec.PolicyTypes
		if len(types) == 0 {
			types = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
			if len(np.Spec.Egress) > 0 {
				types = append(types, networkingv1.PolicyTypeEgress)
			}
		}
		if !slices.Contains(types, direction) {
			continue
		}
		isolated = true
		if direction == networkingv1.PolicyTypeIngress {
			for _, r := range np.Spec.Ingress {
				if c.anyPeer(np.Namespace, r.From, peer, address) && anyPort(r.Ports, t) {
					return true
				}
			}
			continue
		}
		for _, r := range np.Spec.Egress {
			if c.anyPeer(np.Namespace, r.To, peer, address) && anyPort(r.Ports, t) {
				return true
			}
		}
	}
	return !isolated
}

func matches(s *metav1.LabelSelector, l map[string]string) bool {
	selector, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && selector.Matches(labels.Set(l))
}

func (c *Cluster) anyPeer(
	namespace string, peers []networkingv1.NetworkPolicyPeer, pod *corev1.Pod, address netip.Addr,
) bool {
	return len(peers) == 0 || slices.ContainsFunc(peers, func(p networkingv1.NetworkPolicyPeer) bool {
		if p.IPBlock != nil {
			return netip.MustParsePrefix(p.IPBlock.CIDR).Contains(address) &&
				!slices.ContainsFunc(p.IPBlock.Except, func(e string) bool {
					return netip.MustParsePrefix(e).Contains(address)
				})
		}
		if pod == nil || pod.Spec.HostNetwork || p.PodSelector != nil && !matches(p.PodSelector, pod.Labels) {
			return false
		}
		if p.NamespaceSelector == nil {
			return pod.Namespace == namespace
		}
		return slices.ContainsFunc(c.Namespaces, func(n *corev1.Namespace) bool {
			return n.Name == pod.Namespace && matches(p.NamespaceSelector, n.Labels)
		})
	})
}

func anyPort(ports []networkingv1.NetworkPolicyPort, t Traffic) bool {
	return len(ports) == 0 || slices.ContainsFunc(ports, func(p networkingv1.NetworkPolicyPort) bool {
		protocol := corev1.ProtocolTCP
		if p.Protocol != nil {
			protocol = *p.Protocol
		}
		switch {
		case protocol != t.Protocol:
			return false
		case p.Port == nil:
			return true
		case p.Port.Type == intstr.Int && p.EndPort != nil:
			return p.Port.IntVal <= t.Port && t.Port <= *p.EndPort
		case p.Port.Type == intstr.Int:
			return p.Port.IntVal == t.Port
		}
		return t.To != nil && !t.To.Spec.HostNetwork && hasPort(t.To, p.Port.StrVal, protocol, t.Port)
	})
}

// hasPort reports whether a container of the pod has the named port.
func hasPort(pod *corev1.Pod, name string, protocol corev1.Protocol, number int32) bool {
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			of := p.Protocol
			if of == "" {
				of = corev1.ProtocolTCP
			}
			if p.Name == name && of == protocol && p.ContainerPort == number {
				return true
			}
		}
	}
	return false
}
