package tokens

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
)

// FuzzParseBootstrapToken checks that only canonical tokens are accepted: the ID is part of the name of a Secret.
func FuzzParseBootstrapToken(f *testing.F) {
	for _, seed := range []string{"abcdef.0123456789abcdef", "abcdef.0123456789abcde", "ABCDEF.0123456789abcdef",
		"abcdef.0123456789abcdef\n", " abcdef.0123456789abcdef", "abc/ef.0123456789abcdef", ".", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		id, secret, ok := ParseBootstrapToken(text)
		if !ok {
			if id != "" || secret != "" {
				t.Errorf("%q: got %q and %q for an invalid token", text, id, secret)
			}
			return
		}
		outside := func(s string) bool { return strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789") != "" }
		if len(id) != 6 || len(secret) != 16 || outside(id) || outside(secret) ||
			(BootstrapToken{ID: id, Secret: secret}).Token() != text {
			t.Errorf("%q: got ID %q and secret %q", text, id, secret)
		}
	})
}

// FuzzClientAddress checks that attempts are counted for a network that contains the client, and that each network is
// counted once.
func FuzzClientAddress(f *testing.F) {
	for _, seed := range []string{"192.0.2.1:6443", "[2001:db8::1]:6443", "[fe80::1%eth0]:1", "[::ffff:192.0.2.1]:1",
		"192.0.2.1", "host:1", ":1", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		network, ok := clientAddress(text)
		if !ok {
			return
		}
		at := netip.MustParseAddrPort(text)
		if address := at.Addr().Unmap().WithZone(""); !network.Contains(address) || network.Masked() != network ||
			network.Addr().Is4In6() {
			t.Errorf("%q: got network %s", text, network)
		}
	})
}

// FuzzBearerToken checks that a token has no space around it, whatever the header is.
func FuzzBearerToken(f *testing.F) {
	for _, seed := range []string{"Bearer a", "bearer  a", "Basic a", "Bearer", " Bearer a b ", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, header string) {
		token := bearerToken(&http.Request{Header: http.Header{"Authorization": {header}}})
		if strings.TrimSpace(token) != token || !strings.Contains(header, token) {
			t.Errorf("%q: got %q", header, token)
		}
	})
}
