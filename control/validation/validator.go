package validation

import (
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// address validates an IP address. Old ones are accepted again.
func (k *validator) address(at *field.Path, value string, old ...string) {
	k.AddAll(validation.IsValidIPForLegacyField(at, value, true, old))
}

// endpointAddress validates the IP address of an endpoint.
func (k *validator) endpointAddress(at *field.Path, value string) {
	k.address(at, value)
	a, err := netip.ParseAddr(value)
	switch {
	case err != nil:
	case a.IsUnspecified():
		k.Invalid(at, value, "may not be unspecified (0.0.0.0 or ::)")
	case a.IsLoopback():
		k.Invalid(at, value, "may not be in the loopback range (127.0.0.0/8, ::1/128)")
	case a.IsLinkLocalUnicast():
		k.Invalid(at, value, "may not be in the link-local range (169.254.0.0/16, fe80::/10)")
	case a.IsLinkLocalMulticast():
		k.Invalid(at, value, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)")
	}
}

// network validates a CIDR. Old ones are accepted again.
func (k *validator) network(at *field.Path, value string, old ...string) {
	k.AddAll(validation.IsValidCIDRForLegacyField(at, value, true, old))
}

// port validates a port number.
func (k *validator) port(at *field.Path, n int32) {
	k.InvalidEach(at, n, validation.IsValidPortNum(int(n)))
}

// portNameOrNumber validates a port name or number.
func (k *validator) portNameOrNumber(at *field.Path, p intstr.IntOrString) {
	if p.Type == intstr.String {
		k.InvalidEach(at, p.StrVal, validation.IsValidPortName(p.StrVal))
		return
	}
	k.port(at, p.IntVal)
}

// quantities validates a resource list without negative quantities.
func (k *validator) quantities(at *field.Path, list corev1.ResourceList) {
	for _, name := range slices.Sorted(maps.Keys(list)) {
		path, q := at.Key(string(name)), list[name]
		k.InvalidEach(path, name, validation.IsQualifiedName(string(name)))
		if q.Sign() < 0 {
			k.Invalid(path, q.String(), "must be greater than or equal to 0")
		}
	}
}

// roundUpToMilli rounds quantities up to milli, the smallest stored unit.
func roundUpToMilli(list corev1.ResourceList) {
	for name, q := range list {
		q.RoundUp(resource.Milli)
		list[name] = q
	}
}
