package serviceips

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// needsAddress reports whether a Service has cluster IPs.
func needsAddress(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeClusterIP || mayHaveNodePorts(s)
}

func headless(s *corev1.Service) bool { return s.Spec.ClusterIP == corev1.ClusterIPNone }

// mayHaveNodePorts reports whether a Service may have node ports.
func mayHaveNodePorts(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeNodePort || s.Spec.Type == corev1.ServiceTypeLoadBalancer
}

// allocatesNodePorts reports whether node ports are allocated.
func allocatesNodePorts(s *corev1.Service) bool {
	a := s.Spec.AllocateLoadBalancerNodePorts
	return s.Spec.Type == corev1.ServiceTypeNodePort || s.Spec.Type == corev1.ServiceTypeLoadBalancer &&
		(a == nil || *a)
}

// needsHealthCheckNodePort reports whether a load balancer checks the health of each node.
func needsHealthCheckNodePort(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer &&
		s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// heldKeys returns the keys that a Service holds according to its spec.
func heldKeys(s *corev1.Service) []claimKey {
	var out []claimKey
	add := func(n claimKey) {
		if !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	if needsAddress(s) && !headless(s) {
		for _, text := range s.Spec.ClusterIPs {
			if a, err := netip.ParseAddr(text); err == nil {
				add(addressKey(a))
			}
		}
	}
	if mayHaveNodePorts(s) {
		for _, p := range s.Spec.Ports {
			if p.NodePort != 0 {
				add(portKey(p.NodePort))
			}
		}
		if s.Spec.HealthCheckNodePort != 0 {
			add(portKey(s.Spec.HealthCheckNodePort))
		}
	}
	return out
}

func family(a netip.Addr) corev1.IPFamily {
	if a.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

// familiesOfAddresses sets the IP families of the addresses that a Service requests.
func familiesOfAddresses(sp *corev1.ServiceSpec, at *field.Path) *field.Error {
	for i, text := range sp.ClusterIPs {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return nil //nolint:nilerr // headless, or rejected by validation
		}
		switch {
		case i >= len(sp.IPFamilies):
			sp.IPFamilies = append(sp.IPFamilies, family(a))
		case sp.IPFamilies[i] != family(a):
			return field.Invalid(
				at.Index(i),
				text,
				"expected an "+string(sp.IPFamilies[i])+" value as indicated by `ipFamilies["+string(rune('0'+i))+"]`",
			)
		}
	}
	return nil
}

// setFamilies sets the IP families and the policy of a Service from those of the cluster.
func setFamilies(s *corev1.Service, cluster []corev1.IPFamily) *field.Error {
	sp := &s.Spec
	if !needsAddress(s) {
		sp.IPFamilies, sp.IPFamilyPolicy = nil, nil
		return nil
	}
	anyFamily := headless(s) && len(sp.Selector) == 0 // its endpoints may have any family
	if sp.IPFamilyPolicy == nil {
		policy := corev1.IPFamilyPolicySingleStack
		if len(sp.ClusterIPs) > 1 || len(sp.IPFamilies) > 1 || anyFamily && len(sp.IPFamilies) == 0 {
			policy = corev1.IPFamilyPolicyRequireDualStack
		}
		sp.IPFamilyPolicy = &policy
	}
	policy := *sp.IPFamilyPolicy
	at := field.NewPath("spec")
	if err := familiesOfAddresses(sp, at.Child("clusterIPs")); err != nil {
		return err
	}
	if len(sp.IPFamilies) == 0 {
		sp.IPFamilies = []corev1.IPFamily{cluster[0]}
	}
	if policy == corev1.IPFamilyPolicySingleStack {
		if len(sp.IPFamilies) > 1 {
			return field.Invalid(
				at.Child("ipFamilyPolicy"),
				policy,
				"must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified",
			)
		}
	} else if len(sp.IPFamilies) == 1 {
		for _, f := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
			if f != sp.IPFamilies[0] && (anyFamily || slices.Contains(cluster, f)) {
				sp.IPFamilies = append(sp.IPFamilies, f)
			}
		}
	}
	if anyFamily {
		return nil
	}
	if policy == corev1.IPFamilyPolicyRequireDualStack && len(cluster) < 2 {
		return field.Invalid(at.Child("ipFamilyPolicy"), policy,
			"this cluster is not configured for dual-stack services")
	}
	for i, f := range sp.IPFamilies {
		if !slices.Contains(cluster, f) {
			return field.Invalid(at.Child("ipFamilies").Index(i), f, "not configured on this cluster")
		}
	}
	return nil
}
