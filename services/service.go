package services

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The control server sets this condition with this reason on Services whose addresses are of its pool.
// The nodes announce them. It is part of the status, so that users who may only change Services cannot
// make nodes announce addresses of other hosts.
const (
	ConditionLoadBalancerAddress = "berth.dev/LoadBalancerAddress"
	ReasonFromPool               = "FromPool"
)

// Name identifies a Service.
type Name struct{ Namespace, Name string }

// String returns namespace/name.
func (n Name) String() string { return n.Namespace + "/" + n.Name }

// Compare orders names by namespace, then by name.
func (n Name) Compare(m Name) int {
	if c := strings.Compare(n.Namespace, m.Namespace); c != 0 {
		return c
	}
	return strings.Compare(n.Name, m.Name)
}

// Service is the part of a Service that the proxy and the DNS server use. It is never modified.
type Service struct {
	Name
	Type corev1.ServiceType
	// UID is set for type LoadBalancer only, whose Services have events of the node.
	UID types.UID `json:",omitempty"`
	// Headless is true for a Service with clusterIP None.
	Headless bool
	// ClusterIPs has at most one address of each family, the primary one first.
	ClusterIPs []netip.Addr
	// ExternalName is the canonical name of a Service of type ExternalName.
	ExternalName string
	Ports        []Port
	// ExternalIPs and LoadBalancerIPs have no loopback, link-local or unspecified addresses.
	// LoadBalancerIPs are the addresses of the status whose ipMode is not Proxy.
	ExternalIPs, LoadBalancerIPs []netip.Addr
	// Announce is true if the nodes announce LoadBalancerIPs on their networks: the addresses are those
	// of a pool, and no host has them.
	Announce bool `json:",omitempty"`
	// LoadBalancerSourceRanges restricts the clients of LoadBalancerIPs, if not empty.
	LoadBalancerSourceRanges []netip.Prefix
	// AffinitySeconds is the timeout of session affinity by client address; 0 without affinity.
	AffinitySeconds int32
	// InternalLocal and ExternalLocal are true if the traffic policy is Local.
	InternalLocal, ExternalLocal bool
	// HealthCheckNodePort answers health checks of external load balancers; 0 if there is none.
	HealthCheckNodePort uint16
	// TrafficDistribution is empty, PreferSameZone (also for PreferClose) or PreferSameNode.
	TrafficDistribution string
	// PublishNotReady is true if endpoints count as ready regardless of their readiness.
	PublishNotReady bool
	// TopologyMode is the value of the annotation service.kubernetes.io/topology-mode.
	TopologyMode string
	// ProxiedBy is the value of the label service.kubernetes.io/service-proxy-name: another proxy
	// serves the Service if it is not empty.
	ProxiedBy string
}

// Port is a port of a Service. Its endpoints have the port of the same name in their EndpointSlices.
type Port struct {
	Name     string
	Protocol corev1.Protocol
	Port     uint16
	NodePort uint16 // 0 if there is none
}

// HasClusterIP reports whether the Service has a virtual address.
func (s *Service) HasClusterIP() bool { return len(s.ClusterIPs) > 0 }

// FromService returns the compact form of a Service. Invalid addresses, which the API does not
// permit, are left out.
//
//nolint:gocyclo // one case after another, each on its own
func FromService(svc *corev1.Service) *Service {
	spec := &svc.Spec
	s := &Service{
		Name: Name{svc.Namespace, svc.Name}, Type: spec.Type,
		Headless: spec.ClusterIP == corev1.ClusterIPNone,
		InternalLocal: spec.InternalTrafficPolicy != nil &&
			*spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal,
		ExternalLocal:   spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
		PublishNotReady: spec.PublishNotReadyAddresses,
		TopologyMode:    svc.Annotations[corev1.AnnotationTopologyMode],
		ProxiedBy:       svc.Labels["service.kubernetes.io/service-proxy-name"],
	}
	if s.Type == "" {
		s.Type = corev1.ServiceTypeClusterIP
	}
	for _, p := range spec.Ports {
		port := Port{Name: p.Name, Protocol: p.Protocol}
		port.Port, port.NodePort = uint16(p.Port), uint16(p.NodePort)
		if port.Protocol == "" {
			port.Protocol = corev1.ProtocolTCP
		}
		s.Ports = append(s.Ports, port)
	}
	if s.Type == corev1.ServiceTypeExternalName {
		s.ExternalName = spec.ExternalName
		return s
	}
	ips := spec.ClusterIPs
	if len(ips) == 0 && spec.ClusterIP != "" {
		ips = []string{spec.ClusterIP}
	}
	s.ClusterIPs = addresses(ips)
	s.ExternalIPs = addresses(spec.ExternalIPs)
	if s.Type == corev1.ServiceTypeLoadBalancer {
		s.UID = svc.UID
		for _, in := range svc.Status.LoadBalancer.Ingress {
			if in.IPMode == nil || *in.IPMode == corev1.LoadBalancerIPModeVIP {
				s.LoadBalancerIPs = append(s.LoadBalancerIPs, addresses([]string{in.IP})...)
			}
		}
		for i := range svc.Status.Conditions {
			c := &svc.Status.Conditions[i]
			s.Announce = s.Announce || c.Type == ConditionLoadBalancerAddress && c.Reason == ReasonFromPool
		}
		for _, r := range spec.LoadBalancerSourceRanges {
			if p, err := netip.ParsePrefix(strings.TrimSpace(r)); err == nil {
				s.LoadBalancerSourceRanges = append(s.LoadBalancerSourceRanges, p.Masked())
			}
		}
		s.HealthCheckNodePort = uint16(spec.HealthCheckNodePort)
	}
	if spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		s.AffinitySeconds = corev1.DefaultClientIPServiceAffinitySeconds
		if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
			s.AffinitySeconds = *c.ClientIP.TimeoutSeconds
		}
	}
	if d := spec.TrafficDistribution; d != nil {
		switch *d {
		case corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone:
			s.TrafficDistribution = corev1.ServiceTrafficDistributionPreferSameZone
		case corev1.ServiceTrafficDistributionPreferSameNode:
			s.TrafficDistribution = *d
		}
	}
	return s
}

// addresses parses addresses and leaves out those that traffic must not be sent to.
func addresses(texts []string) (out []netip.Addr) {
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil && Routable(a) && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// Routable reports whether an address may be that of a Service or of an endpoint: a unicast address
// that is neither loopback, link-local nor unspecified, as the API server requires of endpoints.
func Routable(a netip.Addr) bool {
	a = a.Unmap()
	return a.IsValid() && a.Zone() == "" && !a.IsUnspecified() && !a.IsLoopback() && !a.IsLinkLocalUnicast() &&
		!a.IsMulticast()
}

// TrimService removes the fields of a Service that FromService and the environment of pods do not
// use, to save memory while a list is decoded.
func TrimService(svc *corev1.Service) {
	meta := metav1.ObjectMeta{
		Name: svc.Name, Namespace: svc.Namespace, UID: svc.UID, ResourceVersion: svc.ResourceVersion,
	}
	svc.ObjectMeta, meta = meta, svc.ObjectMeta
	for _, key := range []string{corev1.AnnotationTopologyMode} {
		if v, ok := meta.Annotations[key]; ok {
			svc.Annotations = map[string]string{key: v}
		}
	}
	if v, ok := meta.Labels["service.kubernetes.io/service-proxy-name"]; ok {
		svc.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": v}
	}
	svc.Spec.Selector = nil
}
