package serviceips

import (
	"net"
	"net/netip"
	"strings"
	"testing"
)

func prefixes(all ...string) (out []netip.Prefix) {
	for _, text := range all {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

func TestRangesAreValidated(t *testing.T) {
	t.Parallel()
	ports := PortRange{30000, 32767}
	for _, row := range []struct {
		ranges Ranges
		err    string // empty: valid
	}{
		{Ranges{prefixes("10.96.0.0/16", "fd00::/112"), ports}, ""},
		{Ranges{nil, ports}, "service-cluster-ip-range: required"},
		{Ranges{prefixes("10.96.0.0/31"), ports}, "10.96.0.0/31 is too small"},
		{Ranges{prefixes("10.96.0.0/16", "10.97.0.0/16"), ports}, "only one CIDR per IP family"},
		{Ranges{prefixes("10.85.0.0/24"), ports}, "overlaps cluster-cidr 10.85.0.0/16"},
		{Ranges{prefixes("10.96.0.0/16"), PortRange{9, 8}}, "service-node-port-range: 9-8 is not a port range"},
	} {
		err := row.ranges.Validate(prefixes("10.85.0.0/16"))
		if row.err == "" && err != nil || row.err != "" && (err == nil || !strings.Contains(err.Error(), row.err)) {
			t.Errorf("%+v: got error %v, want %q", row.ranges, err, row.err)
		}
	}
}

func TestAdvertiseAddressMustBeReachable(t *testing.T) {
	t.Parallel()
	for text, valid := range map[string]bool{
		"192.0.2.1": true, "127.0.0.1": false, "0.0.0.0": false, "fe80::1%eth0": false,
	} {
		if err := ValidateAdvertiseAddress(netip.MustParseAddr(text)); (err == nil) != valid {
			t.Errorf("%s: got error %v", text, err)
		}
	}
	if err := ValidateAdvertiseAddress(netip.Addr{}); err != nil {
		t.Errorf("not configured: got error %v", err)
	}
}

func TestAdvertisedEndpoint(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ configured, listens, want string }{
		{"192.0.2.1", "127.0.0.1", "192.0.2.1:6443"},
		{"", "127.0.0.1", "invalid AddrPort"},
		{"", "192.0.2.7", "192.0.2.7:6443"},
	} {
		var configured netip.Addr
		if row.configured != "" {
			configured = netip.MustParseAddr(row.configured)
		}
		got := AdvertisedEndpoint(configured, &net.TCPAddr{IP: net.ParseIP(row.listens), Port: 6443})
		if got.String() != row.want {
			t.Errorf("%+v: got %s", row, got)
		}
	}
	all := AdvertisedEndpoint(netip.Addr{}, &net.TCPAddr{IP: net.IPv6unspecified, Port: 6443})
	if all.IsValid() && (all.Addr().IsLoopback() || all.Port() != 6443) {
		t.Errorf("all addresses: got %s", all)
	}
}

func TestDNSServiceIP(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"10.43.0.0/16": "10.43.0.10", "10.43.0.0/28": "10.43.0.10", "10.43.0.0/29": "10.43.0.2",
		"10.43.0.0/30":  "10.43.0.2",
		"fd00:43::/112": "fd00:43::a",
	} {
		r := Ranges{Addresses: []netip.Prefix{netip.MustParsePrefix(in)}}
		if got := r.DNSServiceIP().String(); got != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}
