package services

import (
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Slice is the part of an EndpointSlice that the proxy and the DNS server use. It is never modified.
type Slice struct {
	// Service owns the endpoints.
	Service Name
	// Name is the name of the EndpointSlice in the namespace of the Service.
	Name string
	IPv6 bool
	// Ports are the ports of all endpoints of the slice.
	Ports     []EndpointPort
	Endpoints []Endpoint
	// ChangedAt is when the control plane observed the change of endpoints that led to this version
	// of the slice; zero if it is unknown.
	ChangedAt time.Time
}

// EndpointPort is a port of endpoints. It serves the port of the Service that has the same name.
type EndpointPort struct {
	Name     string
	Protocol corev1.Protocol
	Port     uint16
}

// Endpoint is an endpoint of a Service.
type Endpoint struct {
	Address netip.Addr
	// Node runs the endpoint; empty if it is unknown.
	Node string
	// Hostname is the name of the endpoint within its Service for DNS; it may be empty.
	Hostname string
	// Pod is the name of the endpoint's pod; empty if the endpoint is not a pod.
	Pod string
	// Ready and Serving are as in the API, where a missing Ready means true and a missing Serving is
	// the value of Ready.
	Ready, Serving, Terminating bool
	// ForZones and ForNodes are the hints of the control plane.
	ForZones, ForNodes []string
}

// FromEndpointSlice returns the compact form of an EndpointSlice. It returns nil if the slice has no
// Service or holds names (addressType FQDN). Endpoints with an address that is not Routable and ports
// without a number are left out.
func FromEndpointSlice(es *discoveryv1.EndpointSlice) *Slice {
	service := es.Labels[discoveryv1.LabelServiceName]
	if service == "" || es.AddressType == discoveryv1.AddressTypeFQDN {
		return nil
	}
	s := &Slice{
		Service: Name{es.Namespace, service}, Name: es.Name,
		IPv6: es.AddressType == discoveryv1.AddressTypeIPv6,
	}
	if text := es.Annotations[corev1.EndpointsLastChangeTriggerTime]; text != "" {
		if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
			s.ChangedAt = at
		}
	}
	for _, p := range es.Ports {
		if p.Port == nil || *p.Port < 1 || *p.Port > 65535 {
			continue
		}
		port := EndpointPort{Protocol: corev1.ProtocolTCP, Port: uint16(*p.Port)}
		if p.Name != nil {
			port.Name = *p.Name
		}
		if p.Protocol != nil {
			port.Protocol = *p.Protocol
		}
		s.Ports = append(s.Ports, port)
	}
	s.Endpoints = make([]Endpoint, 0, len(es.Endpoints))
	for i := range es.Endpoints {
		if e, ok := fromEndpoint(&es.Endpoints[i], s.IPv6); ok {
			s.Endpoints = append(s.Endpoints, e)
		}
	}
	return s
}

// fromEndpoint returns the compact form of an endpoint. Only its first address counts, as the API
// says.
func fromEndpoint(from *discoveryv1.Endpoint, ipv6 bool) (e Endpoint, ok bool) {
	if len(from.Addresses) == 0 {
		return e, false
	}
	address, err := netip.ParseAddr(from.Addresses[0])
	if err != nil || !Routable(address) || address.Is6() != ipv6 {
		return e, false
	}
	e.Address = address
	if from.NodeName != nil {
		e.Node = *from.NodeName
	}
	if from.Hostname != nil {
		e.Hostname = *from.Hostname
	}
	if r := from.TargetRef; r != nil && r.Kind == "Pod" {
		e.Pod = r.Name
	}
	c := from.Conditions
	e.Ready = c.Ready == nil || *c.Ready
	e.Serving = e.Ready
	if c.Serving != nil {
		e.Serving = *c.Serving
	}
	e.Terminating = c.Terminating != nil && *c.Terminating
	if h := from.Hints; h != nil {
		for _, z := range h.ForZones {
			e.ForZones = append(e.ForZones, z.Name)
		}
		for _, n := range h.ForNodes {
			e.ForNodes = append(e.ForNodes, n.Name)
		}
	}
	return e, true
}

// SliceKey identifies an EndpointSlice.
type SliceKey = types.NamespacedName

// Key returns the key of the slice.
func (s *Slice) Key() SliceKey { return SliceKey{Namespace: s.Service.Namespace, Name: s.Name} }
