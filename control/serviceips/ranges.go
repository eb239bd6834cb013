package serviceips

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// minHostBits is the minimum number of host bits of a Service CIDR: the address of
// default/kubernetes and two more.
const minHostBits = 2

// Validate checks the ranges. The error names the flag. clusterCIDRs are the ranges of pods, which
// must not overlap.
func (r Ranges) Validate(clusterCIDRs []netip.Prefix) error {
	if len(r.Addresses) == 0 {
		return errors.New("service-cluster-ip-range: required")
	}
	for i, a := range r.Addresses {
		if !a.IsValid() || a.Addr().BitLen()-a.Bits() < minHostBits {
			return fmt.Errorf("service-cluster-ip-range: %s is too small", a)
		}
		if i > 0 && a.Addr().Is4() == r.Addresses[0].Addr().Is4() {
			return errors.New("service-cluster-ip-range: only one CIDR per IP family is allowed")
		}
		for _, p := range clusterCIDRs {
			if p.Overlaps(a) {
				return fmt.Errorf("service-cluster-ip-range: %s overlaps cluster-cidr %s", a, p)
			}
		}
	}
	if r.Ports.First < 1 || r.Ports.Last < r.Ports.First {
		return fmt.Errorf("service-node-port-range: %s is not a port range", r.Ports)
	}
	return nil
}

// ValidateAdvertiseAddress checks a configured address of the server. The error names the flag.
func ValidateAdvertiseAddress(a netip.Addr) error {
	if a.IsValid() && (a.IsUnspecified() || a.IsLoopback() || a.Zone() != "") {
		return fmt.Errorf("advertise-address: %s is not reachable for others", a)
	}
	return nil
}

// AdvertisedEndpoint returns where pods and other servers reach a listener at that address: at the
// configured address, if there is one. The result is not valid if it listens on loopback only, or
// if this host has no usable address.
func AdvertisedEndpoint(configured netip.Addr, listens net.Addr) netip.AddrPort {
	at, err := netip.ParseAddrPort(listens.String())
	if err != nil {
		return netip.AddrPort{}
	}
	listening := at.Addr().Unmap().WithZone("")
	switch {
	case configured.IsValid():
		return netip.AddrPortFrom(configured.Unmap(), at.Port())
	case listening.IsLoopback():
		return netip.AddrPort{}
	case !listening.IsUnspecified():
		return netip.AddrPortFrom(listening, at.Port())
	}
	return netip.AddrPortFrom(hostAddress(), at.Port())
}

// hostAddress returns an address of this host that others can reach, or an invalid one.
func hostAddress() netip.Addr {
	// the address of the default route, as in kube-apiserver
	if ip, err := utilnet.ResolveBindAddress(nil); err == nil {
		if a, ok := netip.AddrFromSlice(ip); ok && !a.IsLoopback() {
			return a.Unmap()
		}
	}
	if all := HostAddresses(); len(all) > 0 {
		return all[0]
	}
	return netip.Addr{}
}

// HostAddresses returns the global unicast addresses of this host. It leaves out those of the loopback
// interface, where a node agent may have the address of its DNS server.
func HostAddresses() (out []netip.Addr) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil
	}
	for i := range interfaces {
		if interfaces[i].Flags&net.FlagLoopback != 0 {
			continue
		}
		all, err := interfaces[i].Addrs()
		if err != nil {
			continue
		}
		for _, one := range all {
			if p, err := netip.ParsePrefix(one.String()); err == nil && p.Addr().IsGlobalUnicast() {
				out = append(out, p.Addr().Unmap())
			}
		}
	}
	return out
}
