package validation

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/internal/rules"
)

const (
	affinitySeconds    = 10800 // default session affinity timeout, in seconds
	maxAffinitySeconds = 86400
)

func defaultService(s *corev1.Service) {
	rules.SetIfZero(&s.Spec.SessionAffinity, corev1.ServiceAffinityNone)
	rules.SetIfZero(&s.Spec.Type, corev1.ServiceTypeClusterIP)
	switch s.Spec.SessionAffinity {
	case corev1.ServiceAffinityNone:
		s.Spec.SessionAffinityConfig = nil
	case corev1.ServiceAffinityClientIP:
		rules.SetIfNil(&s.Spec.SessionAffinityConfig, corev1.SessionAffinityConfig{})
		rules.SetIfNil(&s.Spec.SessionAffinityConfig.ClientIP, corev1.ClientIPConfig{})
		rules.SetIfNil(&s.Spec.SessionAffinityConfig.ClientIP.TimeoutSeconds, affinitySeconds)
	}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		rules.SetIfZero(&p.Protocol, corev1.ProtocolTCP)
		if p.TargetPort == intstr.FromInt32(0) || p.TargetPort == intstr.FromString("") {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
	}
	if externallyReachable(s) {
		rules.SetIfZero(&s.Spec.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyCluster)
	}
	if s.Spec.Type != corev1.ServiceTypeExternalName {
		rules.SetIfNil(&s.Spec.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster)
	}
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer {
		rules.SetIfNil(&s.Spec.AllocateLoadBalancerNodePorts, true)
	}
	// The single address and the first of the list are always the same.
	if s.Spec.ClusterIP == "" && len(s.Spec.ClusterIPs) > 0 {
		s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	} else if s.Spec.ClusterIP != "" && len(s.Spec.ClusterIPs) == 0 {
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	}
}

// externallyReachable reports whether a Service accepts external traffic.
func externallyReachable(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeNodePort || s.Spec.Type == corev1.ServiceTypeLoadBalancer ||
		s.Spec.Type == corev1.ServiceTypeClusterIP && len(s.Spec.ExternalIPs) > 0
}

// patchAllocatedValues keeps allocated addresses and ports that the update omits, and removes fields that
// do not apply to the new type.
func patchAllocatedValues(s, old *corev1.Service) {
	if hasClusterIP(s) && hasClusterIP(old) && s.Spec.ClusterIP == "" && len(s.Spec.ClusterIPs) == 0 {
		s.Spec.ClusterIP, s.Spec.ClusterIPs = old.Spec.ClusterIP, slices.Clone(old.Spec.ClusterIPs)
	}
	if hasClusterIP(s) && hasClusterIP(old) && s.Spec.IPFamilyPolicy == nil && len(s.Spec.IPFamilies) == 0 {
		s.Spec.IPFamilyPolicy, s.Spec.IPFamilies = old.Spec.IPFamilyPolicy, slices.Clone(old.Spec.IPFamilies)
	}
	if single := s.Spec.IPFamilyPolicy; single != nil && *single == corev1.IPFamilyPolicySingleStack &&
		old.Spec.IPFamilyPolicy != nil &&
		*old.Spec.IPFamilyPolicy != *single {
		s.Spec.ClusterIPs = s.Spec.ClusterIPs[:min(1, len(s.Spec.ClusterIPs))]
		s.Spec.IPFamilies = s.Spec.IPFamilies[:min(1, len(s.Spec.IPFamilies))]
	}
	if isLoadBalancer(s) && isLoadBalancer(old) && s.Spec.HealthCheckNodePort == 0 &&
		s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		s.Spec.HealthCheckNodePort = old.Spec.HealthCheckNodePort
	}
	if hasNodePorts(s) && hasNodePorts(old) {
		patchNodePorts(s, old)
	}
	dropTypeDependentFields(s, old)
}

func patchNodePorts(s, old *corev1.Service) {
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		for _, oldPort := range old.Spec.Ports {
			if p.NodePort == 0 && oldPort.Port == p.Port && oldPort.Protocol == p.Protocol {
				p.NodePort = oldPort.NodePort
			}
		}
	}
}

// dropTypeDependentFields removes fields of the former type that the update leaves unchanged, because
// a user who changes only the type expects that.
func dropTypeDependentFields(s, old *corev1.Service) {
	if hasClusterIP(old) && !hasClusterIP(s) && s.Spec.ClusterIP == old.Spec.ClusterIP &&
		slices.Equal(s.Spec.ClusterIPs, old.Spec.ClusterIPs) {
		s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.IPFamilies, s.Spec.IPFamilyPolicy = "", nil, nil, nil
		s.Spec.InternalTrafficPolicy = nil
	}
	if hasNodePorts(old) && !hasNodePorts(s) &&
		slices.EqualFunc(
			s.Spec.Ports,
			old.Spec.Ports,
			func(a, b corev1.ServicePort) bool { return a.NodePort == b.NodePort },
		) {
		for i := range s.Spec.Ports {
			s.Spec.Ports[i].NodePort = 0
		}
	}
	needsHealthCheckNodePort := func(s *corev1.Service) bool {
		return isLoadBalancer(s) && s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	}
	if needsHealthCheckNodePort(old) && !needsHealthCheckNodePort(s) &&
		s.Spec.HealthCheckNodePort == old.Spec.HealthCheckNodePort {
		s.Spec.HealthCheckNodePort = 0
	}
	if isLoadBalancer(old) && !isLoadBalancer(s) {
		s.Spec.AllocateLoadBalancerNodePorts, s.Spec.LoadBalancerClass = nil, nil
	}
	if externallyReachable(old) && !externallyReachable(s) &&
		s.Spec.ExternalTrafficPolicy == old.Spec.ExternalTrafficPolicy {
		s.Spec.ExternalTrafficPolicy = ""
	}
}

// hasClusterIP, hasNodePorts and isLoadBalancer report what a Service of its type has.
func hasClusterIP(s *corev1.Service) bool   { return s.Spec.Type != corev1.ServiceTypeExternalName }
func isLoadBalancer(s *corev1.Service) bool { return s.Spec.Type == corev1.ServiceTypeLoadBalancer }
func hasNodePorts(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeNodePort || isLoadBalancer(s)
}

func (k *validator) service(s *corev1.Service) {
	rules.OneOf(
		k,
		spec.Child("type"),
		s.Spec.Type,
		corev1.ServiceTypeClusterIP,
		corev1.ServiceTypeNodePort,
		corev1.ServiceTypeLoadBalancer,
		corev1.ServiceTypeExternalName,
	)
	rules.OneOf(
		k,
		spec.Child("sessionAffinity"),
		s.Spec.SessionAffinity,
		corev1.ServiceAffinityClientIP,
		corev1.ServiceAffinityNone,
	)
	if c := s.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		if n := *c.ClientIP.TimeoutSeconds; n <= 0 || n > maxAffinitySeconds {
			k.Invalid(
				spec.Child("sessionAffinityConfig", "clientIP", "timeoutSeconds"),
				n,
				"must be greater than 0 and less than %d",
				maxAffinitySeconds,
			)
		}
	}
	if len(s.Spec.Selector) > 0 {
		k.AddAll(metavalidation.ValidateLabels(s.Spec.Selector, spec.Child("selector")))
	}
	k.serviceAddresses(s)
	headless := s.Spec.ClusterIP == corev1.ClusterIPNone
	if len(s.Spec.Ports) == 0 && !headless && s.Spec.Type != corev1.ServiceTypeExternalName {
		k.Required(spec.Child("ports"), "")
	}
	k.servicePorts(s)
	k.serviceTrafficPolicies(s)
	rules.OneOfIfSet(
		k,
		spec.Child("ipFamilyPolicy"),
		s.Spec.IPFamilyPolicy,
		corev1.IPFamilyPolicySingleStack,
		corev1.IPFamilyPolicyPreferDualStack,
		corev1.IPFamilyPolicyRequireDualStack,
	)
	for i, f := range s.Spec.IPFamilies {
		rules.OneOf(k, spec.Child("ipFamilies").Index(i), f, corev1.IPv4Protocol, corev1.IPv6Protocol)
		if slices.Contains(s.Spec.IPFamilies[:i], f) {
			k.Add(field.Duplicate(spec.Child("ipFamilies").Index(i), f))
		}
	}
	if s.Spec.LoadBalancerClass != nil && s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		k.Forbidden(spec.Child("loadBalancerClass"), "may only be used when `type` is 'LoadBalancer'")
	}
	if s.Spec.AllocateLoadBalancerNodePorts != nil && s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		k.Forbidden(spec.Child("allocateLoadBalancerNodePorts"), "may only be used when `type` is 'LoadBalancer'")
	}
}

// serviceTrafficPolicies validates the traffic policies of a Service.
func (k *validator) serviceTrafficPolicies(s *corev1.Service) {
	rules.OneOfIfSet(
		k,
		spec.Child("internalTrafficPolicy"),
		s.Spec.InternalTrafficPolicy,
		corev1.ServiceInternalTrafficPolicyCluster,
		corev1.ServiceInternalTrafficPolicyLocal,
	)
	if p := s.Spec.ExternalTrafficPolicy; p != "" {
		rules.OneOf(
			k,
			spec.Child("externalTrafficPolicy"),
			p,
			corev1.ServiceExternalTrafficPolicyCluster,
			corev1.ServiceExternalTrafficPolicyLocal,
		)
		if !externallyReachable(s) {
			k.Invalid(spec.Child("externalTrafficPolicy"), p, "may only be set for externally-accessible services")
		}
	}
}

// serviceAddresses validates the addresses of a Service.
func (k *validator) serviceAddresses(s *corev1.Service) {
	at := spec.Child("clusterIPs")
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		if s.Spec.ClusterIP != "" || len(s.Spec.ClusterIPs) > 0 {
			k.Forbidden(at, "may not be set for ExternalName services")
		}
		if s.Spec.ExternalName == "" {
			k.Required(spec.Child("externalName"), "")
		} else {
			k.InvalidEach(spec.Child("externalName"), s.Spec.ExternalName,
				validation.IsDNS1123Subdomain(strings.TrimSuffix(s.Spec.ExternalName, ".")))
		}
	}
	if len(s.Spec.ClusterIPs) > 0 && s.Spec.ClusterIP != s.Spec.ClusterIPs[0] {
		k.Invalid(at, s.Spec.ClusterIPs, "first value must match `clusterIP`")
	}
	for i, ip := range s.Spec.ClusterIPs {
		switch {
		case ip == corev1.ClusterIPNone && i > 0:
			k.Invalid(at.Index(i), ip, "'None' must be the first and only value")
		case ip == corev1.ClusterIPNone:
			if s.Spec.Type == corev1.ServiceTypeLoadBalancer || s.Spec.Type == corev1.ServiceTypeNodePort {
				k.Invalid(at.Index(i), ip, "may not be set to 'None' for %s services", s.Spec.Type)
			}
		case ip != "" || i > 0:
			k.address(at.Index(i), ip)
		}
	}
	for i, ip := range s.Spec.ExternalIPs {
		k.endpointAddress(spec.Child("externalIPs").Index(i), ip)
	}
	if len(s.Spec.LoadBalancerSourceRanges) > 0 && s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		k.Forbidden(spec.Child("loadBalancerSourceRanges"), "may only be used when `type` is 'LoadBalancer'")
	}
	for i, r := range s.Spec.LoadBalancerSourceRanges {
		k.network(spec.Child("loadBalancerSourceRanges").Index(i), strings.TrimSpace(r))
	}
}

func (k *validator) servicePorts(s *corev1.Service) {
	type key struct {
		protocol corev1.Protocol
		port     int32
	}
	names, ports, onNodes := map[string]bool{}, map[key]bool{}, map[key]bool{}
	for i, p := range s.Spec.Ports {
		at := spec.Child("ports").Index(i)
		if p.Name == "" {
			if len(s.Spec.Ports) > 1 {
				k.Required(at.Child("name"), "")
			}
		} else {
			k.InvalidEach(at.Child("name"), p.Name, validation.IsDNS1123Label(p.Name))
			if names[p.Name] {
				k.Add(field.Duplicate(at.Child("name"), p.Name))
			}
			names[p.Name] = true
		}
		k.port(at.Child("port"), p.Port)
		rules.OneOf(k, at.Child("protocol"), p.Protocol, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
		k.portNameOrNumber(at.Child("targetPort"), p.TargetPort)
		if p.AppProtocol != nil {
			k.InvalidEach(at.Child("appProtocol"), *p.AppProtocol, validation.IsQualifiedName(*p.AppProtocol))
		}
		if ports[key{p.Protocol, p.Port}] {
			k.Add(field.Duplicate(at, fmt.Sprintf("%s/%d", p.Protocol, p.Port)))
		}
		ports[key{p.Protocol, p.Port}] = true
		if p.NodePort == 0 {
			continue
		}
		if s.Spec.Type == corev1.ServiceTypeClusterIP || s.Spec.Type == corev1.ServiceTypeExternalName {
			k.Forbidden(at.Child("nodePort"), "may not be used when `type` is '"+string(s.Spec.Type)+"'")
		}
		k.port(at.Child("nodePort"), p.NodePort)
		if onNodes[key{p.Protocol, p.NodePort}] {
			k.Add(field.Duplicate(at.Child("nodePort"), p.NodePort))
		}
		onNodes[key{p.Protocol, p.NodePort}] = true
	}
}

func (k *validator) serviceChange(s, old *corev1.Service) {
	if s.Spec.Type == corev1.ServiceTypeExternalName || old.Spec.Type == corev1.ServiceTypeExternalName {
		return
	}
	if oldValue := old.Spec.ClusterIP; oldValue != "" && oldValue != s.Spec.ClusterIP {
		k.Invalid(spec.Child("clusterIPs").Index(0), s.Spec.ClusterIPs, "may not change once set")
	}
	if oldValue := old.Spec.LoadBalancerClass; s.Spec.Type == old.Spec.Type && oldValue != nil {
		k.Immutable(spec.Child("loadBalancerClass"), s.Spec.LoadBalancerClass, oldValue)
	}
}
