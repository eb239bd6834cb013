package announce

import (
	"net"
	"net/netip"
	"reflect"
	"testing"

	"berth/services/announce/election"
)

func TestBeatRoundTrip(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, claimsPerPart, claimsPerPart + 1, 4 * claimsPerPart} {
		b := election.Beat{Node: "node-1", Start: 1 << 60, Sequence: 7, Leaving: n == 1}
		for i := range n {
			a := netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
			if i%2 == 1 {
				a = netip.MustParseAddr("2001:db8::1")
			}
			b.Claims = append(b.Claims, election.Claim{Address: a, Level: election.Ready,
				Phase: election.Announcing, Term: uint32(i)})
		}
		var a assembly
		parts := encodeBeat(b)
		for i, p := range parts {
			decoded, err := decodeBeat(append(p, make([]byte, 30)...)) // with the padding of short frames
			if err != nil || len(p) > 1400 {
				t.Fatalf("%d claims, part %d of %d bytes: %v", n, i, len(p), err)
			}
			got, complete := a.add(decoded)
			if complete != (i == len(parts)-1) {
				t.Fatalf("%d claims: complete after part %d", n, i)
			}
			if complete && !reflect.DeepEqual(got, b) {
				t.Errorf("got %+v, want %+v", got, b)
			}
		}
	}
}

func FuzzDecode(f *testing.F) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	f.Add(encodeBeat(election.Beat{Node: "n", Claims: []election.Claim{{Level: election.Ready}}})[0])
	address := netip.MustParseAddr("192.0.2.1")
	f.Add(encodeARP(broadcast, arpPacket{
		operation: arpRequest, senderMAC: mac, senderIP: address, targetMAC: mac, targetIP: address,
	}))
	f.Add(encodeNA(mac, allNodes(), netip.MustParseAddr("2001:db8::1"), mac, true))
	f.Fuzz(func(_ *testing.T, b []byte) {
		_, _ = decodeBeat(b)
		_, _ = decodeARP(b)
		_, _ = decodeNDP(b)
	})
}

func TestSolicitedNode(t *testing.T) {
	t.Parallel()
	if got := solicitedNode(netip.MustParseAddr("2001:db8::1:800:200e:8c6c")).String(); got != "ff02::1:ff0e:8c6c" {
		t.Errorf("got %s", got)
	}
}

func TestLinkFor(t *testing.T) {
	t.Parallel()
	links := []link{
		{index: 1, networks: []netip.Prefix{
			netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8::1/64"),
		}},
		{index: 2, networks: []netip.Prefix{netip.MustParsePrefix("192.0.2.130/25")}},
	}
	for text, want := range map[string]int{
		"192.0.2.9": 1, "192.0.2.200": 2, "198.51.100.1": 0, "192.0.2.0": 0, "192.0.2.255": 0, "2001:db8::9": 1,
	} {
		got := 0
		if l := linkFor(links, netip.MustParseAddr(text)); l != nil {
			got = l.index
		}
		if got != want {
			t.Errorf("%s: got interface %d, want %d", text, got, want)
		}
	}
}
