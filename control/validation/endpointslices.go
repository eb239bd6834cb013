package validation

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/internal/rules"
)

const (
	maxEndpoints  = 1000
	maxAddresses  = 100
	maxSlicePorts = 20_000
)

func defaultSlice(s *discoveryv1.EndpointSlice) {
	for i := range s.Endpoints {
		s.Endpoints[i].DeprecatedTopology = nil // v1 does not store it
	}
	for i := range s.Ports {
		rules.SetIfNil(&s.Ports[i].Name, "")
		rules.SetIfNil(&s.Ports[i].Protocol, corev1.ProtocolTCP)
	}
}

func (k *validator) slice(s *discoveryv1.EndpointSlice) {
	rules.OneOf(
		k,
		field.NewPath("addressType"),
		s.AddressType,
		discoveryv1.AddressTypeIPv4,
		discoveryv1.AddressTypeIPv6,
		discoveryv1.AddressTypeFQDN,
	)
	all := field.NewPath("endpoints")
	if n := len(s.Endpoints); n > maxEndpoints {
		k.Add(field.TooMany(all, n, maxEndpoints))
	}
	for i := range s.Endpoints {
		e, at := &s.Endpoints[i], all.Index(i)
		addresses := at.Child("addresses")
		if n := len(e.Addresses); n == 0 {
			k.Required(addresses, "must contain at least 1 address")
		} else if n > maxAddresses {
			k.Add(field.TooMany(addresses, n, maxAddresses))
		}
		for j, a := range e.Addresses {
			if s.AddressType == discoveryv1.AddressTypeFQDN {
				k.AddAll(validation.IsFullyQualifiedDomainName(addresses.Index(j), a))
				continue
			}
			k.endpointAddress(addresses.Index(j), a)
			if strings.Contains(a, ":") != (s.AddressType == discoveryv1.AddressTypeIPv6) {
				k.Invalid(addresses, a, "must be an %s address", s.AddressType)
			}
		}
		if e.NodeName != nil {
			k.InvalidEach(at.Child("nodeName"), *e.NodeName, validation.IsDNS1123Subdomain(*e.NodeName))
		}
		if e.Hostname != nil {
			k.InvalidEach(at.Child("hostname"), *e.Hostname, validation.IsDNS1123Label(*e.Hostname))
		}
	}
	k.slicePorts(field.NewPath("ports"), s.Ports)
}

func (k *validator) slicePorts(all *field.Path, ports []discoveryv1.EndpointPort) {
	if n := len(ports); n > maxSlicePorts {
		k.Add(field.TooMany(all, n, maxSlicePorts))
	}
	names := map[string]bool{}
	for i, p := range ports {
		at, name := all.Index(i), ""
		if p.Name != nil {
			name = *p.Name
		}
		if name != "" {
			k.InvalidEach(at.Child("name"), name, validation.IsDNS1123Label(name))
		}
		if names[name] {
			k.Add(field.Duplicate(at.Child("name"), name))
		}
		names[name] = true
		if p.Port != nil {
			k.port(at.Child("port"), *p.Port)
		}
		if p.Protocol == nil {
			k.Required(at.Child("protocol"), "")
		}
		rules.OneOfIfSet(k, at.Child("protocol"), p.Protocol, corev1.ProtocolTCP, corev1.ProtocolUDP,
			corev1.ProtocolSCTP)
	}
}
