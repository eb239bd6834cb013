package dns

import (
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"testing"

	"github.com/miekg/dns"

	"berth/services"
)

// BenchmarkAnswer answers queries without a network.
func BenchmarkAnswer(b *testing.B) {
	s := NewServer(testOptions(testStore()))
	defer s.Close()
	for _, c := range []struct {
		name  string
		qtype uint16
	}{{"web.ns.svc.cluster.local", dns.TypeA}, {"web.ns.svc.cluster.local.ns.svc.cluster.local", dns.TypeAAAA},
		{"_http._tcp.db.ns.svc.cluster.local", dns.TypeSRV}, {"10.0.96.10.in-addr.arpa", dns.TypePTR}} {
		b.Run(dns.TypeToString[c.qtype], func(b *testing.B) {
			packed, err := queryFor(c.name, c.qtype).Pack()
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			var all sync.WaitGroup
			for b.Loop() {
				in := &incoming{client: netip.MustParseAddr("10.0.0.1"), proto: "udp", size: len(packed)}
				s.answer(b.Context(), &all, in, packed, func([]byte) {})
			}
		})
	}
}

// BenchmarkReverse fills an index of 10,000 Services with 5 endpoints each, and reports its memory.
func BenchmarkReverse(b *testing.B) {
	store := services.NewStore()
	var all []*services.Service
	var endpoints []*services.Slice
	for i := range 10_000 {
		name := named(fmt.Sprint("svc-", i))
		all = append(all, &services.Service{Name: name,
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})}})
		slice := &services.Slice{Service: name, Name: name.Name}
		for j := range 5 {
			slice.Endpoints = append(slice.Endpoints, services.Endpoint{Ready: true,
				Address: netip.AddrFrom4([4]byte{10, byte(100 + j), byte(i >> 8), byte(i)})})
		}
		endpoints = append(endpoints, slice)
	}
	store.ReplaceServices(all)
	store.ReplaceSlices(endpoints)
	var before, after runtime.MemStats
	for b.Loop() {
		runtime.GC()
		runtime.ReadMemStats(&before)
		r := NewReverse(store)
		r.Refresh()
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(r)
		r.Close()
	}
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/60_000, "B/address")
}
