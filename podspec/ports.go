package podspec

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// ResolvePort resolves a port given by number, or by its name in the container.
func ResolvePort(c *corev1.Container, p intstr.IntOrString) (number int, ok bool) {
	if p.Type == intstr.Int {
		return p.IntValue(), p.IntValue() > 0
	}
	for _, x := range c.Ports {
		if x.Name == p.StrVal {
			return int(x.ContainerPort), true
		}
	}
	return 0, false
}

// HostPort is a host port of a pod.
type HostPort struct {
	IP       string // empty: all addresses of the host
	Protocol corev1.Protocol
	Port     int32
}

// HostPorts returns the host ports of the main containers and sidecars of the pod. Addresses are in
// canonical form. 0.0.0.0 is the same as no address. The protocol defaults to TCP.
func HostPorts(pod *corev1.Pod) []HostPort {
	var out []HostPort
	for c, at := range containersOf(&pod.Spec) {
		if at.kind != main && at.kind != sidecar {
			continue
		}
		for _, p := range c.Ports {
			if p.HostPort > 0 {
				out = append(out, hostPort(p))
			}
		}
	}
	return out
}

func hostPort(p corev1.ContainerPort) HostPort {
	out := HostPort{IP: p.HostIP, Protocol: p.Protocol, Port: p.HostPort}
	setIfZero(&out.Protocol, corev1.ProtocolTCP)
	if a, err := netip.ParseAddr(out.IP); err == nil {
		a = a.Unmap()
		out.IP = a.String()
		if a == netip.IPv4Unspecified() {
			out.IP = ""
		}
	}
	return out
}

// Conflicts reports whether two pods cannot have both ports: protocol and number are the same, and
// one address covers the other. "::" covers every IPv6 address.
func (p HostPort) Conflicts(other HostPort) bool {
	if p.Protocol != other.Protocol || p.Port != other.Port {
		return false
	}
	return p.IP == other.IP || p.covers(other) || other.covers(p)
}

func (p HostPort) covers(other HostPort) bool {
	if p.IP == "" {
		return true
	}
	if p.IP != "::" {
		return false
	}
	a, err := netip.ParseAddr(other.IP)
	return err == nil && a.Is6()
}

// Covers reports whether traffic to an address of the host reaches the port.
func (p HostPort) Covers(a netip.Addr) bool {
	return p.covers(HostPort{IP: a.String()}) || p.IP == a.String()
}
