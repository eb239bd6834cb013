package validation

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"berth/internal/rules"
)

func defaultPolicy(p *networkingv1.NetworkPolicy) {
	if len(p.Spec.PolicyTypes) == 0 {
		p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(p.Spec.Egress) > 0 {
			p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
		}
	}
	ports := func(list []networkingv1.NetworkPolicyPort) {
		for i := range list {
			rules.SetIfNil(&list[i].Protocol, corev1.ProtocolTCP)
		}
	}
	for i := range p.Spec.Ingress {
		ports(p.Spec.Ingress[i].Ports)
	}
	for i := range p.Spec.Egress {
		ports(p.Spec.Egress[i].Ports)
	}
}

// networkPolicy validates a policy. old is nil for a new one. Networks of an old one are accepted again.
func (k *validator) networkPolicy(p, old *networkingv1.NetworkPolicy) {
	k.Selector(spec.Child("podSelector"), &p.Spec.PodSelector)
	accepted := networksOf(old)
	for i := range p.Spec.Ingress {
		at := spec.Child("ingress").Index(i)
		k.policyPorts(at.Child("ports"), p.Spec.Ingress[i].Ports)
		k.peers(at.Child("from"), p.Spec.Ingress[i].From, accepted)
	}
	for i := range p.Spec.Egress {
		at := spec.Child("egress").Index(i)
		k.policyPorts(at.Child("ports"), p.Spec.Egress[i].Ports)
		k.peers(at.Child("to"), p.Spec.Egress[i].To, accepted)
	}
	if at := spec.Child("policyTypes"); len(p.Spec.PolicyTypes) > 2 {
		k.Invalid(at, p.Spec.PolicyTypes, "may not specify more than two policyTypes")
		return
	}
	for i, t := range p.Spec.PolicyTypes {
		if t != networkingv1.PolicyTypeIngress && t != networkingv1.PolicyTypeEgress {
			k.Add(field.NotSupported(spec.Child("policyTypes").Index(i), t,
				[]networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}))
		}
	}
}

// networksOf returns all networks of a policy, which may be nil.
func networksOf(p *networkingv1.NetworkPolicy) (out []string) {
	if p == nil {
		return nil
	}
	add := func(peers []networkingv1.NetworkPolicyPeer) {
		for _, peer := range peers {
			if b := peer.IPBlock; b != nil {
				out = append(append(out, b.CIDR), b.Except...)
			}
		}
	}
	for i := range p.Spec.Ingress {
		add(p.Spec.Ingress[i].From)
	}
	for i := range p.Spec.Egress {
		add(p.Spec.Egress[i].To)
	}
	return out
}

func (k *validator) policyPorts(at *field.Path, ports []networkingv1.NetworkPolicyPort) {
	for i, p := range ports {
		path := at.Index(i)
		rules.OneOfIfSet(k, path.Child("protocol"), p.Protocol, corev1.ProtocolTCP, corev1.ProtocolUDP,
			corev1.ProtocolSCTP)
		if p.Port != nil {
			k.portNameOrNumber(path.Child("port"), *p.Port)
		}
		if p.EndPort == nil {
			continue
		}
		path = path.Child("endPort")
		switch {
		case p.Port == nil:
			k.Invalid(path, *p.EndPort, "may not be specified when `port` is not specified")
		case p.Port.Type == intstr.String:
			k.Invalid(path, *p.EndPort, "may not be specified when `port` is non-numeric")
		default:
			if *p.EndPort < p.Port.IntVal {
				k.Invalid(path, *p.EndPort, "must be greater than or equal to `port`")
			}
			k.port(path, *p.EndPort)
		}
	}
}

func (k *validator) peers(at *field.Path, peers []networkingv1.NetworkPolicyPeer, accepted []string) {
	for i, p := range peers {
		path := at.Index(i)
		switch {
		case p.PodSelector == nil && p.NamespaceSelector == nil && p.IPBlock == nil:
			k.Required(path, "must specify a peer")
		case p.IPBlock != nil && (p.PodSelector != nil || p.NamespaceSelector != nil):
			k.Forbidden(path, "may not specify both ipBlock and another peer")
		}
		if p.IPBlock != nil {
			k.ipBlock(path.Child("ipBlock"), p.IPBlock, accepted)
		}
		k.Selector(path.Child("podSelector"), p.PodSelector)
		k.Selector(path.Child("namespaceSelector"), p.NamespaceSelector)
	}
}

// ipBlock validates a network and the parts that are excepted.
func (k *validator) ipBlock(at *field.Path, b *networkingv1.IPBlock, accepted []string) {
	if b.CIDR == "" {
		k.Required(at.Child("cidr"), "")
		return
	}
	k.network(at.Child("cidr"), b.CIDR, accepted...)
	_, whole, err := netutils.ParseCIDRSloppy(b.CIDR)
	if err != nil {
		return
	}
	for i, text := range b.Except {
		path := at.Child("except").Index(i)
		k.network(path, text, accepted...)
		_, part, err := netutils.ParseCIDRSloppy(text)
		if err != nil {
			continue
		}
		size, _ := whole.Mask.Size()
		if partSize, _ := part.Mask.Size(); !whole.Contains(part.IP) || size >= partSize {
			k.Invalid(path, text, "must be a strict subset of `cidr`")
		}
	}
}
