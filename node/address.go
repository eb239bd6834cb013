package node

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// Addresses returns the node's addresses, at most one per address family, IPv4 first: those of the
// interface with the default route, or else the first global addresses of any interface that is not
// a bridge for pods. A host that has only loopback returns 127.0.0.1, so that pods still have a
// host address.
func Addresses() ([]netip.Addr, error) {
	routes, _ := os.ReadFile("/proc/net/route") // absent without IPv4
	if name := defaultInterface(routes); name != "" {
		if ifc, err := net.InterfaceByName(name); err == nil {
			if found := firstPerFamily(addressesOf(ifc)); len(found) > 0 {
				return found, nil
			}
		}
	}
	ifcs, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	var all []netip.Addr
	for i := range ifcs {
		if ifcs[i].Flags&net.FlagUp != 0 && !isPodBridge(sysNet, ifcs[i].Name) {
			all = append(all, addressesOf(&ifcs[i])...)
		}
	}
	if found := firstPerFamily(all); len(found) > 0 {
		return found, nil
	}
	return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
}

const sysNet = "/sys/class/net"

// isPodBridge reports whether an interface is a bridge that only connects pods and virtual
// machines. Its address is only for their access to the host, and the network of the first pod
// creates such a bridge. sys is the directory of the interfaces in sysfs.
func isPodBridge(sys, name string) bool {
	if _, err := os.Stat(filepath.Join(sys, name, "bridge")); err != nil {
		return false
	}
	ports, err := os.ReadDir(filepath.Join(sys, name, "brif"))
	if err != nil {
		return false
	}
	for _, p := range ports {
		// NICs have a device and links such as VLANs and bonds a type. The ends of pod links have
		// neither.
		if _, err := os.Stat(filepath.Join(sys, p.Name(), "device")); err == nil {
			return false
		}
		if about, err := os.ReadFile(filepath.Join(sys, p.Name(), "uevent")); err == nil &&
			bytes.Contains(about, []byte("DEVTYPE=")) {
			return false
		}
	}
	return true
}

// ChangedAddresses returns the node's addresses if they have changed: an address that it had is no
// longer on the host, or it had only loopback. It returns nil if the addresses are still valid or
// if the host has no others.
func ChangedAddresses(had []netip.Addr) []netip.Addr {
	now, err := Addresses()
	if err != nil {
		return nil
	}
	ifcs, err := net.Interfaces()
	if err != nil {
		return nil
	}
	var here []netip.Addr
	for i := range ifcs {
		here = append(here, addressesOf(&ifcs[i])...)
	}
	return changedAddresses(had, here, now)
}

// changedAddresses implements ChangedAddresses with the addresses of all interfaces and those that
// Addresses returns.
func changedAddresses(had, here, now []netip.Addr) []netip.Addr {
	hasAddress := func(a netip.Addr) bool { return slices.Contains(here, a) }
	missing := slices.ContainsFunc(had, func(a netip.Addr) bool { return !hasAddress(a) })
	if !missing || len(now) == 0 || now[0].IsLoopback() || slices.Equal(had, now) {
		return nil
	}
	return now
}

// defaultInterface returns the interface of the IPv4 default route in the content of
// /proc/net/route. Empty: there is none.
func defaultInterface(routes []byte) string {
	lines := bufio.NewScanner(bytes.NewReader(routes))
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) > 7 && f[1] == "00000000" && f[7] == "00000000" {
			return f[0]
		}
	}
	return ""
}

func addressesOf(ifc *net.Interface) (out []netip.Addr) {
	addrs, err := netlink.AddrList(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: ifc.Index}},
		netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil
	}
	for _, a := range addrs {
		// Addresses with scope host, such as that of the DNS server, are valid on this host only.
		if ip, ok := netip.AddrFromSlice(a.IP); ok && a.Scope != unix.RT_SCOPE_HOST && ip.IsGlobalUnicast() {
			out = append(out, ip.Unmap())
		}
	}
	return out
}

func firstPerFamily(all []netip.Addr) (out []netip.Addr) {
	var v4, v6 netip.Addr
	for _, a := range all {
		switch {
		case a.Is4() && !v4.IsValid():
			v4 = a
		case a.Is6() && !v6.IsValid():
			v6 = a
		}
	}
	for _, a := range []netip.Addr{v4, v6} {
		if a.IsValid() {
			out = append(out, a)
		}
	}
	return out
}

// addressCheckInterval is the interval of the checks for changed addresses. A change must be seen
// twice, because an address can be missing for a moment during a DHCP renewal.
const addressCheckInterval = 10 * time.Second

// WatchAddresses returns the new addresses of the node when they have changed, or nil when ctx ends.
func WatchAddresses(ctx context.Context, current []netip.Addr) []netip.Addr {
	tick := time.NewTicker(addressCheckInterval)
	defer tick.Stop()
	var last []netip.Addr
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		changed := ChangedAddresses(current)
		if changed != nil && slices.Equal(changed, last) {
			return changed
		}
		last = changed
	}
}

// ConfiguredAddresses returns the configured addresses of the node or, if there are none, those of
// the host.
func ConfiguredAddresses(configured []netip.Addr) ([]netip.Addr, error) {
	if len(configured) > 0 {
		return configured, nil
	}
	return Addresses()
}

// AddressStrings returns the text form of addresses.
func AddressStrings(addresses []netip.Addr) (out []string) {
	for _, a := range addresses {
		out = append(out, a.String())
	}
	return out
}

// PodCIDRs returns the pod CIDRs that the control plane has assigned to a Node, or fallback if there are
// none. Invalid ones are left out.
func PodCIDRs(n *corev1.Node, fallback []netip.Prefix) (out []netip.Prefix) {
	for _, text := range n.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			out = append(out, p)
		}
	}
	if len(out) == 0 {
		return fallback
	}
	return out
}
