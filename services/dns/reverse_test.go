package dns

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/miekg/dns"

	"berth/services"
)

func TestReverseAddress(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"10.0.96.10.in-addr.arpa.": "10.96.0.10", "0.96.10.in-addr.arpa.": "", "256.0.96.10.in-addr.arpa.": "",
		"1.10.0.96.10.in-addr.arpa.": "", "in-addr.arpa.": "",
		"0.1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.":   "fd00::10",
		"g.1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.":   "",
		"00.1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.":  "",
		"000.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.": "", "ip6.arpa.": "",
	} {
		got := reverseAddress(name)
		if want == "" && got.IsValid() || want != "" && got.String() != want {
			t.Errorf("%s: got %v, want %s", name, got, want)
		}
	}
}

func TestPTR(t *testing.T) {
	t.Parallel()
	store := testStore()
	reverse := NewReverse(store)
	defer reverse.Close()
	zone := testZone(store)
	for address, want := range map[string]string{
		"10.96.0.10": "NOERROR; PTR web.ns.svc.cluster.local.",
		"fd00::10":   "NOERROR; PTR web.ns.svc.cluster.local.",
		"10.1.0.1":   "NOERROR; PTR 10-1-0-1.web.ns.svc.cluster.local.; PTR db-0.db.ns.svc.cluster.local.",
		"fd01::":     "NOERROR; PTR fd01--0.db.ns.svc.cluster.local.",
		"10.1.0.3":   "NOERROR", "10.1.0.5": "NOERROR; PTR e.early.ns.svc.cluster.local.", "192.0.2.1": "NOERROR",
	} {
		a := netip.MustParseAddr(address)
		text, err := dns.ReverseAddr(address)
		if err != nil {
			t.Fatal(err)
		}
		if got := reverseAddress(text); got != a {
			t.Errorf("%s: got address %v", text, got)
		}
		q := dns.Question{Name: text, Qtype: dns.TypePTR, Qclass: dns.ClassINET}
		if got := render(q, zone.AnswerPTR(q, a, reverse)); got != want {
			t.Errorf("%s\ngot  %s\nwant %s", address, got, want)
		}
	}
}

// TestReverseModel compares the index with a search of the whole store after each of many changes.
func TestReverseModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 0))
		store := services.NewStore()
		reverse := NewReverse(store)
		address := func() netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(12))}) }
		for range 400 {
			name := named(string(rune('a' + r.IntN(6))))
			switch r.IntN(4) {
			case 0:
				store.SetService(&services.Service{Name: name, ClusterIPs: []netip.Addr{address()}})
			case 1:
				store.DeleteService(name)
			case 2:
				slice := &services.Slice{Service: name, Name: name.Name + string(rune('0'+r.IntN(2)))}
				for range r.IntN(4) {
					e := services.Endpoint{Address: address(), Ready: r.IntN(4) > 0}
					slice.Endpoints = append(slice.Endpoints, e)
				}
				store.SetSlice(slice)
			case 3:
				store.DeleteSlice(services.SliceKey{Namespace: name.Namespace, Name: name.Name + "0"})
			}
			if r.IntN(3) > 0 {
				continue // several changes between two questions
			}
			a := address()
			var want []services.Name
			for _, name := range store.Names() {
				if svc, endpoints := store.Service(name); slices.Contains(addressesOf(svc, endpoints), a.As16()) {
					want = append(want, name)
				}
			}
			if got := reverse.Services(a); !slices.Equal(got, want) {
				t.Fatalf("seed %d: %v: got %v, want %v", seed, a, got, want)
			}
		}
		store.ReplaceServices(nil)
		if reverse.Refresh(); len(reverse.byAddress)+len(reverse.more)+len(reverse.indexed) > 0 {
			t.Fatalf("seed %d: an empty store leaves %v", seed, reverse.byAddress)
		}
		reverse.Close()
	}
}
