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
	netutils "k8s.io/utils/net"
	"k8s.io/utils/ptr"

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
	if knownType(s) && s.Spec.Type != corev1.ServiceTypeExternalName {
		rules.SetIfNil(&s.Spec.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster)
	}
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer {
		rules.SetIfNil(&s.Spec.AllocateLoadBalancerNodePorts, true)
		for i := range s.Status.LoadBalancer.Ingress {
			if in := &s.Status.LoadBalancer.Ingress[i]; in.IP != "" {
				rules.SetIfNil(&in.IPMode, corev1.LoadBalancerIPModeVIP)
			}
		}
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
		s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil
	}
	if hasClusterIP(old) && !hasClusterIP(s) {
		if slices.Equal(s.Spec.IPFamilies, old.Spec.IPFamilies) {
			s.Spec.IPFamilies = nil
		}
		if ptr.Equal(s.Spec.IPFamilyPolicy, old.Spec.IPFamilyPolicy) {
			s.Spec.IPFamilyPolicy = nil
		}
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
	if needsHealthCheckNodePort(old) && !needsHealthCheckNodePort(s) &&
		s.Spec.HealthCheckNodePort == old.Spec.HealthCheckNodePort {
		s.Spec.HealthCheckNodePort = 0
	}
	if isLoadBalancer(old) && !isLoadBalancer(s) {
		if ptr.Equal(s.Spec.AllocateLoadBalancerNodePorts, old.Spec.AllocateLoadBalancerNodePorts) {
			s.Spec.AllocateLoadBalancerNodePorts = nil
		}
		if ptr.Equal(s.Spec.LoadBalancerClass, old.Spec.LoadBalancerClass) {
			s.Spec.LoadBalancerClass = nil
		}
	}
	if !isLoadBalancer(s) {
		s.Status.LoadBalancer = corev1.LoadBalancerStatus{}
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

// needsHealthCheckNodePort reports whether nodes answer health checks of a load balancer.
func needsHealthCheckNodePort(s *corev1.Service) bool {
	return isLoadBalancer(s) && s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

func knownType(s *corev1.Service) bool {
	return slices.Contains(serviceTypes(), s.Spec.Type)
}

func serviceTypes() []corev1.ServiceType {
	return []corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer,
		corev1.ServiceTypeExternalName}
}

func headless(s *corev1.Service) bool {
	return len(s.Spec.ClusterIPs) == 1 && s.Spec.ClusterIPs[0] == corev1.ClusterIPNone
}

// service validates a Service. old is nil for a new one. Addresses of an old one are accepted again.
func (k *validator) service(s, old *corev1.Service) {
	if old == nil {
		old = &corev1.Service{}
	}
	rules.OneOf(k, spec.Child("type"), s.Spec.Type, serviceTypes()...)
	k.sessionAffinity(s)
	if s.Spec.Selector != nil {
		k.AddAll(metavalidation.ValidateLabels(s.Spec.Selector, spec.Child("selector")))
	}
	k.serviceType(s)
	k.clusterIPs(s, old)
	k.externalAddresses(s, old)
	if len(s.Spec.Ports) == 0 && !headless(s) && s.Spec.Type != corev1.ServiceTypeExternalName {
		k.Required(spec.Child("ports"), "")
	}
	k.servicePorts(s)
	k.serviceTrafficPolicies(s)
	if s.Spec.AllocateLoadBalancerNodePorts != nil && !isLoadBalancer(s) {
		k.Forbidden(spec.Child("allocateLoadBalancerNodePorts"), "may only be used when `type` is 'LoadBalancer'")
	}
	if c, at := s.Spec.LoadBalancerClass, spec.Child("loadBalancerClass"); c != nil && !isLoadBalancer(s) {
		k.Forbidden(at, "may only be used when `type` is 'LoadBalancer'")
	} else if c != nil {
		k.InvalidEach(at, *c, validation.IsQualifiedName(*c))
	}
}

func (k *validator) sessionAffinity(s *corev1.Service) {
	rules.OneOf(k, spec.Child("sessionAffinity"), s.Spec.SessionAffinity, corev1.ServiceAffinityClientIP,
		corev1.ServiceAffinityNone)
	c := s.Spec.SessionAffinityConfig
	if s.Spec.SessionAffinity != corev1.ServiceAffinityClientIP || c == nil || c.ClientIP == nil {
		return // without a timeout, it gets the default
	}
	if n := ptr.Deref(c.ClientIP.TimeoutSeconds, affinitySeconds); n <= 0 || n > maxAffinitySeconds {
		k.Invalid(spec.Child("sessionAffinityConfig", "clientIP", "timeoutSeconds"), n,
			"must be greater than 0 and less than %d", maxAffinitySeconds)
	}
}

// serviceTrafficPolicies validates the traffic policies of a Service. The health check node port is allocated later.
func (k *validator) serviceTrafficPolicies(s *corev1.Service) {
	rules.OneOfIfSet(k, spec.Child("internalTrafficPolicy"), s.Spec.InternalTrafficPolicy,
		corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal)
	at, p := spec.Child("externalTrafficPolicy"), s.Spec.ExternalTrafficPolicy
	if externallyReachable(s) {
		rules.OneOf(k, at, p, corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal)
	} else if p != "" {
		k.Invalid(at, p, "may only be set for externally-accessible services")
	}
	if at, n := spec.Child("healthCheckNodePort"), s.Spec.HealthCheckNodePort; n != 0 && !needsHealthCheckNodePort(s) {
		k.Invalid(at, n, "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'")
	} else if n != 0 {
		k.port(at, n)
	}
	rules.OneOfIfSet(k, spec.Child("trafficDistribution"), s.Spec.TrafficDistribution,
		corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone,
		corev1.ServiceTrafficDistributionPreferSameNode)
}

// serviceType validates what depends on the type of a Service.
func (k *validator) serviceType(s *corev1.Service) {
	if s.Spec.Type != corev1.ServiceTypeExternalName {
		if hasNodePorts(s) && headless(s) {
			k.Invalid(spec.Child("clusterIPs").Index(0), corev1.ClusterIPNone,
				"may not be set to 'None' for %s services", s.Spec.Type)
		}
		return
	}
	const problem = "may not be set for ExternalName services"
	if len(s.Spec.ClusterIPs) > 0 {
		k.Forbidden(spec.Child("clusterIPs"), problem)
	}
	if len(s.Spec.IPFamilies) > 0 {
		k.Forbidden(spec.Child("ipFamilies"), problem)
	}
	if s.Spec.IPFamilyPolicy != nil {
		k.Forbidden(spec.Child("ipFamilyPolicy"), problem)
	}
	k.Name(spec.Child("externalName"), strings.TrimSuffix(s.Spec.ExternalName, "."), validation.IsDNS1123Subdomain)
}

// ServiceAddresses returns the errors of the cluster IPs, IP families and IP family policy of a Service. old is nil for
// a new Service.
func ServiceAddresses(s, old *corev1.Service) field.ErrorList {
	k := newValidator()
	if old == nil {
		old = &corev1.Service{}
	}
	k.clusterIPs(s, old)
	return k.Errors()
}

// clusterIPs validates the cluster IPs of a Service and their families.
func (k *validator) clusterIPs(s, old *corev1.Service) {
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return
	}
	at, list := spec.Child("clusterIPs"), s.Spec.ClusterIPs
	switch {
	case s.Spec.ClusterIP != "" && len(list) == 0:
		k.Required(at, "")
	case s.Spec.ClusterIP != "" && list[0] != s.Spec.ClusterIP:
		k.Invalid(at, list, "first value must match `clusterIP`")
	case s.Spec.ClusterIP == "" && len(list) > 0:
		k.Invalid(at, list, "must be empty when `clusterIP` is not specified")
	}
	for i, f := range s.Spec.IPFamilies {
		path := spec.Child("ipFamilies").Index(i)
		if f != corev1.IPv4Protocol && f != corev1.IPv6Protocol {
			k.Add(field.NotSupported(path, f, []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}))
		}
		if slices.Contains(s.Spec.IPFamilies[:i], f) {
			k.Add(field.Duplicate(path, f))
		}
	}
	rules.OneOfIfSet(k, spec.Child("ipFamilyPolicy"), s.Spec.IPFamilyPolicy, corev1.IPFamilyPolicySingleStack,
		corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack)
	before := len(k.Errors())
	if len(list) > 1 && list[0] == corev1.ClusterIPNone {
		k.Invalid(at, list, "'None' must be the first and only value")
	}
	for i, ip := range list {
		if i > 0 || ip != corev1.ClusterIPNone {
			k.address(at.Index(i), ip, old.Spec.ClusterIPs...)
		}
	}
	valid := len(k.Errors()) == before
	if len(list) > 2 {
		k.Invalid(at, list, "may only hold up to 2 values")
	}
	if valid && !headless(s) {
		k.clusterIPFamilies(at, s)
	}
}

// clusterIPFamilies validates that valid addresses have the families of the Service.
func (k *validator) clusterIPFamilies(at *field.Path, s *corev1.Service) {
	dual, err := netutils.IsDualStackIPStrings(s.Spec.ClusterIPs)
	if len(s.Spec.ClusterIPs) > 1 && err == nil && !dual {
		k.Invalid(at, s.Spec.ClusterIPs, "may specify no more than one IP for each IP family")
	}
	for i, ip := range s.Spec.ClusterIPs[:min(len(s.Spec.ClusterIPs), len(s.Spec.IPFamilies))] {
		f, v6 := s.Spec.IPFamilies[i], netutils.IsIPv6String(ip)
		if f == corev1.IPv4Protocol && v6 || f == corev1.IPv6Protocol && !v6 {
			k.Invalid(at.Index(i), ip, "expected an %s value as indicated by `ipFamilies[%d]`", f, i)
		}
	}
}

// externalAddresses validates addresses outside of the cluster.
func (k *validator) externalAddresses(s, old *corev1.Service) {
	for i, ip := range s.Spec.ExternalIPs {
		if at := spec.Child("externalIPs").Index(i); !slices.Contains(old.Spec.ExternalIPs, ip) {
			k.endpointAddress(at, ip)
		}
	}
	at, list := spec.Child("LoadBalancerSourceRanges"), s.Spec.LoadBalancerSourceRanges // Kubernetes' path
	text, annotated := s.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey]
	var accepted []string
	switch {
	case len(list) > 0:
		for _, r := range old.Spec.LoadBalancerSourceRanges {
			accepted = append(accepted, strings.TrimSpace(r))
		}
	case !annotated:
		return
	default:
		at = metadata.Child("annotations").Key(corev1.AnnotationLoadBalancerSourceRangesKey)
	}
	if !isLoadBalancer(s) {
		k.Forbidden(at, "may only be used when `type` is 'LoadBalancer'")
	}
	for i, r := range list {
		k.network(at.Index(i), strings.TrimSpace(r), accepted...)
	}
	if len(list) > 0 || strings.TrimSpace(text) == "" ||
		old.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey] == text {
		return
	}
	for r := range strings.SplitSeq(text, ",") {
		k.network(at, strings.TrimSpace(r))
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
		if s.Spec.Type == corev1.ServiceTypeClusterIP {
			k.Forbidden(at.Child("nodePort"), "may not be used when `type` is '"+string(s.Spec.Type)+"'")
		}
		if onNodes[key{p.Protocol, p.NodePort}] {
			k.Add(field.Duplicate(at.Child("nodePort"), p.NodePort))
		}
		onNodes[key{p.Protocol, p.NodePort}] = true
	}
}

// serviceChange validates an update of a Service against the old one.
func (k *validator) serviceChange(s, old *corev1.Service) {
	k.service(s, old)
	if isLoadBalancer(s) && isLoadBalancer(old) && !ptr.Equal(s.Spec.LoadBalancerClass, old.Spec.LoadBalancerClass) {
		k.Invalid(spec.Child("loadBalancerClass"), s.Spec.LoadBalancerClass, "may not change once set")
	}
	if needsHealthCheckNodePort(s) && needsHealthCheckNodePort(old) &&
		s.Spec.HealthCheckNodePort != old.Spec.HealthCheckNodePort {
		k.Forbidden(spec.Child("healthCheckNodePort"), "field is immutable")
	}
	if s.Spec.Type == corev1.ServiceTypeExternalName || old.Spec.Type == corev1.ServiceTypeExternalName {
		return
	}
	if !headless(s) || !headless(old) {
		kept(k, "clusterIPs", "clusterIP", s.Spec.ClusterIPs, old.Spec.ClusterIPs, s.Spec.IPFamilyPolicy)
	}
	if !headless(s) && !headless(old) {
		kept(k, "ipFamilies", "ipFamily", s.Spec.IPFamilies, old.Spec.IPFamilies, s.Spec.IPFamilyPolicy)
	}
}

// kept validates that the addresses or families of a Service stay, except the secondary one.
func kept[T ~string](k *validator, name, one string, now, before []T, policy *corev1.IPFamilyPolicy) {
	at := spec.Child(name)
	for i := range min(len(now), len(before)) {
		if now[i] != before[i] {
			k.Invalid(at.Index(i), now, "may not change once set")
		}
	}
	if len(now) >= len(before) {
		return
	}
	if len(now) == 0 {
		k.Invalid(at.Index(0), now, "primary %s can not be unset", one)
	} else if len(now) == 1 && ptr.Deref(policy, "") != corev1.IPFamilyPolicySingleStack {
		k.Invalid(spec.Child("ipFamilyPolicy"), policy,
			"must be set to 'SingleStack' when releasing the secondary %s", one)
	}
}

// serviceStatus validates the addresses of the load balancer.
func (k *validator) serviceStatus(s, old *corev1.Service) {
	at := status.Child("loadBalancer", "ingress")
	if !isLoadBalancer(s) && len(s.Status.LoadBalancer.Ingress) > 0 {
		k.Forbidden(at, "may only be used when `spec.type` is 'LoadBalancer'")
		return
	}
	var accepted []string
	for _, in := range old.Status.LoadBalancer.Ingress {
		accepted = append(accepted, in.IP)
	}
	for i, in := range s.Status.LoadBalancer.Ingress {
		path := at.Index(i)
		if in.IP != "" {
			k.address(path.Child("ip"), in.IP, accepted...)
		}
		switch {
		case in.IPMode == nil && in.IP != "":
			k.Required(path.Child("ipMode"), "must be specified when `ip` is set")
		case in.IPMode != nil && in.IP == "":
			k.Forbidden(path.Child("ipMode"), "may not be specified when `ip` is not set")
		default:
			rules.OneOfIfSet(k, path.Child("ipMode"), in.IPMode, corev1.LoadBalancerIPModeVIP,
				corev1.LoadBalancerIPModeProxy)
		}
		if in.Hostname != "" {
			k.InvalidEach(path.Child("hostname"), in.Hostname, validation.IsDNS1123Subdomain(in.Hostname))
			if netutils.ParseIPSloppy(in.Hostname) != nil {
				k.Invalid(path.Child("hostname"), in.Hostname, "must be a DNS name, not an IP address")
			}
		}
	}
}
