package serviceips

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"berth/control/validation"
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

// setFamilies sets the IP families and the policy of a Service from those of the cluster. old is nil for a new Service.
// The families are set before the validation of the whole object, so that addresses can be allocated.
func setFamilies(s, old *corev1.Service, cluster []corev1.IPFamily) field.ErrorList {
	sp := &s.Spec
	if !needsAddress(s) {
		sp.IPFamilies, sp.IPFamilyPolicy = nil, nil
		return nil
	}
	if old != nil && keepsPreferredFamilies(s, old) {
		return nil
	}
	anyFamily := headless(s) && len(sp.Selector) == 0 // its endpoints may have any family
	if sp.IPFamilyPolicy == nil {
		policy := corev1.IPFamilyPolicySingleStack
		switch {
		case old != nil && old.Spec.IPFamilyPolicy != nil:
			policy = *old.Spec.IPFamilyPolicy
		case anyFamily:
			policy = corev1.IPFamilyPolicyRequireDualStack
		}
		sp.IPFamilyPolicy = &policy
	}
	if errs := validation.ServiceAddresses(s, old); len(errs) > 0 {
		return errs
	}
	errs := changeOfPolicy(sp, old)
	errs = append(errs, familiesOfAddresses(sp, cluster)...)
	if len(errs) > 0 {
		return errs
	}
	if !anyFamily {
		if errs := configured(sp, cluster); len(errs) > 0 {
			return errs
		}
	}
	if len(sp.IPFamilies) == 0 {
		sp.IPFamilies = []corev1.IPFamily{cluster[0]}
	}
	if *sp.IPFamilyPolicy != corev1.IPFamilyPolicySingleStack && len(sp.IPFamilies) == 1 {
		for _, f := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
			if f != sp.IPFamilies[0] && (anyFamily || slices.Contains(cluster, f)) {
				sp.IPFamilies = append(sp.IPFamilies, f)
				break
			}
		}
	}
	return nil
}

// keepsPreferredFamilies reports whether an update leaves a Service with PreferDualStack as it is. It does not get or
// lose an address because the cluster has changed.
func keepsPreferredFamilies(s, old *corev1.Service) bool {
	prefers := func(s *corev1.Service) bool {
		return ptr.Deref(s.Spec.IPFamilyPolicy, corev1.IPFamilyPolicyPreferDualStack) ==
			corev1.IPFamilyPolicyPreferDualStack
	}
	return s.Spec.IPFamilyPolicy != nil && s.Spec.Type == old.Spec.Type && prefers(s) && prefers(old) &&
		slices.Equal(s.Spec.ClusterIPs, old.Spec.ClusterIPs) && slices.Equal(s.Spec.IPFamilies, old.Spec.IPFamilies)
}

// changeOfPolicy releases the second address and family of a Service that becomes SingleStack, and validates that a
// policy permits as many of them.
func changeOfPolicy(sp *corev1.ServiceSpec, old *corev1.Service) (errs field.ErrorList) {
	policy, at := *sp.IPFamilyPolicy, field.NewPath("spec", "ipFamilyPolicy")
	single := policy == corev1.IPFamilyPolicySingleStack
	if old != nil && single {
		if slices.Equal(sp.ClusterIPs, old.Spec.ClusterIPs) && len(sp.ClusterIPs) > 1 {
			sp.ClusterIPs = sp.ClusterIPs[:1]
		}
		if slices.Equal(sp.IPFamilies, old.Spec.IPFamilies) && len(sp.IPFamilies) > 1 {
			sp.IPFamilies = sp.IPFamilies[:1]
		}
	}
	if old != nil && !single {
		if n := len(sp.ClusterIPs); n > 0 && n < len(old.Spec.ClusterIPs) {
			errs = append(errs, field.Invalid(at, policy, "must be 'SingleStack' to release the secondary cluster IP"))
		}
		if n := len(sp.IPFamilies); n > 0 && n < len(old.Spec.IPFamilies) {
			errs = append(errs, field.Invalid(at, policy, "must be 'SingleStack' to release the secondary IP family"))
		}
	}
	const several = "must be 'RequireDualStack' or 'PreferDualStack' when multiple %s are specified"
	if single && len(sp.ClusterIPs) == 2 {
		errs = append(errs, field.Invalid(at, policy, fmt.Sprintf(several, "cluster IPs")))
	}
	if single && len(sp.IPFamilies) == 2 {
		errs = append(errs, field.Invalid(at, policy, fmt.Sprintf(several, "IP families")))
	}
	return errs
}

// familiesOfAddresses sets the missing IP families of the addresses that a Service requests.
func familiesOfAddresses(sp *corev1.ServiceSpec, cluster []corev1.IPFamily) (errs field.ErrorList) {
	for i, text := range sp.ClusterIPs {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return errs // headless, or an old form that validation accepts
		}
		if i < len(sp.IPFamilies) {
			continue
		}
		if f := family(a); slices.Contains(cluster, f) {
			sp.IPFamilies = append(sp.IPFamilies, f)
		} else {
			errs = append(errs, field.Invalid(field.NewPath("spec", "clusterIPs").Index(i), sp.ClusterIPs,
				string(f)+" is not configured on this cluster"))
		}
	}
	return errs
}

// configured validates that the cluster has the requested families.
func configured(sp *corev1.ServiceSpec, cluster []corev1.IPFamily) (errs field.ErrorList) {
	at := field.NewPath("spec")
	if *sp.IPFamilyPolicy == corev1.IPFamilyPolicyRequireDualStack && len(cluster) < 2 {
		errs = append(errs, field.Invalid(at.Child("ipFamilyPolicy"), *sp.IPFamilyPolicy,
			"this cluster is not configured for dual-stack services"))
	}
	for i, f := range sp.IPFamilies {
		if !slices.Contains(cluster, f) {
			errs = append(errs, field.Invalid(at.Child("ipFamilies").Index(i), f, "not configured on this cluster"))
		}
	}
	return errs
}
