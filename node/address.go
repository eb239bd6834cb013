package node

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
)

// Addresses returns the node's addresses, at most one per family, IPv4 first:
// those of the interface with the default route, else the first global ones.
// A host with none but loopback gets that: pods on it still have a host address.
func Addresses() ([]netip.Addr, error) {
	routes, _ := os.ReadFile("/proc/net/route") // absent without IPv4
	if name := defaultInterface(routes); name != "" {
		if ifc, err := net.InterfaceByName(name); err == nil {
			if found := firstOfEach(addressesOf(ifc)); len(found) > 0 {
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
		if ifcs[i].Flags&net.FlagUp != 0 {
			all = append(all, addressesOf(&ifcs[i])...)
		}
	}
	if found := firstOfEach(all); len(found) > 0 {
		return found, nil
	}
	return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
}

// defaultInterface finds the interface of the IPv4 default route in the text of
// /proc/net/route; empty: there is none.
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
	addrs, err := ifc.Addrs()
	if err != nil {
		return nil
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().IsGlobalUnicast() {
			out = append(out, p.Addr())
		}
	}
	return out
}

func firstOfEach(all []netip.Addr) (out []netip.Addr) {
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
