package validation

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

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

func (k *validator) networkPolicy(p *networkingv1.NetworkPolicy) {
	k.Selector(spec.Child("podSelector"), &p.Spec.PodSelector)
	for i := range p.Spec.Ingress {
		at := spec.Child("ingress").Index(i)
		k.policyPorts(at.Child("ports"), p.Spec.Ingress[i].Ports)
		k.peers(at.Child("from"), p.Spec.Ingress[i].From)
	}
	for i := range p.Spec.Egress {
		at := spec.Child("egress").Index(i)
		k.policyPorts(at.Child("ports"), p.Spec.Egress[i].Ports)
		k.peers(at.Child("to"), p.Spec.Egress[i].To)
	}
	for i, t := range p.Spec.PolicyTypes {
		rules.OneOf(k, spec.Child("policyTypes").Index(i), t, networkingv1.PolicyTypeIngress,
			networkingv1.PolicyTypeEgress)
	}
}

func (k *validator) policyPorts(at *field.Path, ports []networkingv1.NetworkPolicyPort) {
	for i, p := range ports {
		path := at.Index(i)
		rules.OneOfIfSet(k, path.Child("protocol"), p.Protocol, corev1.ProtocolTCP, corev1.ProtocolUDP,
			corev1.ProtocolSCTP)
		if p.Port != nil {
			k.portNameOrNumber(path.Child("port"), *p.Port)
		}
		if p.EndPort != nil && (p.Port == nil || *p.EndPort < p.Port.IntVal) {
			k.Invalid(path.Child("endPort"), *p.EndPort, "must be greater than or equal to `port`")
		}
	}
}

func (k *validator) peers(at *field.Path, peers []networkingv1.NetworkPolicyPeer) {
	for i, p := range peers {
		path := at.Index(i)
		switch {
		case p.PodSelector == nil && p.NamespaceSelector == nil && p.IPBlock == nil:
			k.Required(path, "must specify a peer")
		case p.IPBlock != nil && (p.PodSelector != nil || p.NamespaceSelector != nil):
			k.Forbidden(path, "may not specify both ipBlock and another peer")
		case p.IPBlock != nil:
			k.network(path.Child("ipBlock", "cidr"), p.IPBlock.CIDR)
			for j, e := range p.IPBlock.Except {
				k.network(path.Child("ipBlock", "except").Index(j), e)
			}
		}
		k.Selector(path.Child("podSelector"), p.PodSelector)
		k.Selector(path.Child("namespaceSelector"), p.NamespaceSelector)
	}
}
