package dns

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/miekg/dns"

	"berth/services"
)

// name of the namespace and of the domain in tests.
const (
	testNamespace = "ns"
	testDomain    = "cluster.local."
)

func named(service string) services.Name {
	return services.Name{Namespace: testNamespace, Name: service}
}

func addrs(texts ...string) (out []netip.Addr) {
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

// testStore is a synced store with one Service of each kind.
func testStore() *services.Store {
	store := services.NewStore()
	http := services.Port{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}
	query := services.Port{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53}
	alias := func(name, target string) *services.Service {
		return &services.Service{Name: named(name), Type: corev1.ServiceTypeExternalName, ExternalName: target}
	}
	store.ReplaceServices([]*services.Service{
		{Name: named("web"), Type: corev1.ServiceTypeClusterIP, ClusterIPs: addrs("10.96.0.10", "fd00::10"),
			Ports: []services.Port{http, query}},
		{Name: named("bare"), Type: corev1.ServiceTypeClusterIP, ClusterIPs: addrs("10.96.0.11")},
		{Name: named("db"), Type: corev1.ServiceTypeClusterIP, Headless: true, Ports: []services.Port{http}},
		{Name: named("early"), Type: corev1.ServiceTypeClusterIP, Headless: true, PublishNotReady: true},
		{Name: named("empty"), Type: corev1.ServiceTypeClusterIP, Headless: true},
		alias("outside", "www.example.org"), alias("inside", "WEB.ns.svc.cluster.local."),
		alias("twice", "inside.ns.svc.cluster.local"), alias("loop", "pool.ns.svc.cluster.local"),
		alias("pool", "loop.ns.svc.cluster.local"), alias("self", "self.ns.svc.cluster.local"),
		alias("gone", "missing.ns.svc.cluster.local"), alias("address", "192.0.2.1"),
		alias("bad", strings.Repeat("x", 64)+".org"), alias("pod", "10-1-2-3.ns.pod.cluster.local"),
	})
	endpoints := []services.EndpointPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 8080}}
	store.ReplaceSlices([]*services.Slice{
		{Service: named("web"), Name: "web-1", Ports: endpoints, Endpoints: []services.Endpoint{
			{Address: netip.MustParseAddr("10.1.0.1"), Ready: true}}},
		{Service: named("db"), Name: "db-1", Ports: endpoints, Endpoints: []services.Endpoint{
			{Address: netip.MustParseAddr("10.1.0.1"), Ready: true, Hostname: "db-0"},
			{Address: netip.MustParseAddr("10.1.0.2"), Ready: true},
			{Address: netip.MustParseAddr("10.1.0.3"), Hostname: "db-2"},
			{Address: netip.MustParseAddr("10.1.0.4"), Ready: true, Hostname: "No.Label"}}},
		{Service: named("db"), Name: "db-2", IPv6: true, Ports: endpoints, Endpoints: []services.Endpoint{
			{Address: netip.MustParseAddr("fd01::"), Ready: true}}},
		{Service: named("early"), Name: "early-1", Endpoints: []services.Endpoint{
			{Address: netip.MustParseAddr("10.1.0.5"), Hostname: "e"}}},
	})
	return store
}

func testZone(store *services.Store) *Zone {
	return &Zone{Domain: testDomain, Store: store, Addresses: addrs("10.96.0.2")}
}

// render writes an answer in one line: the rcode, the records without their owner if it is the name
// of the question, and the additional records in brackets.
func render(q dns.Question, a Answer) string {
	out := []string{dns.RcodeToString[a.Rcode]}
	record := func(rr dns.RR) string {
		fields := strings.Fields(rr.String())
		fields = slices.Delete(fields, 1, 3) // TTL and class
		if fields[0] == q.Name {
			fields = fields[1:]
		}
		return strings.Join(fields, " ")
	}
	sorted := func(rrs []dns.RR) (out []string) {
		for _, rr := range rrs {
			out = append(out, record(rr))
		}
		slices.Sort(out)
		return out
	}
	out = append(out, sorted(a.Answer)...)
	if len(a.Extra) > 0 {
		out = append(out, fmt.Sprint(sorted(a.Extra)))
	}
	for _, rr := range a.Ns {
		out = append(out, dns.TypeToString[rr.Header().Rrtype])
	}
	if a.Target != "" {
		out = append(out, "-> "+a.Target)
	}
	return strings.Join(out, "; ")
}

func TestZoneAnswers(t *testing.T) {
	t.Parallel()
	const noData, noName = "NOERROR; SOA", "NXDOMAIN; SOA"
	const webSRV = "SRV 0 25 53 web.ns.svc.cluster.local.; SRV 0 25 80 web.ns.svc.cluster.local.; " +
		"[A 10.96.0.10 AAAA fd00::10]"
	zone := testZone(testStore())
	for _, c := range []struct{ name, qtype, want string }{
		{"web.ns.svc", "A", "NOERROR; A 10.96.0.10"},
		{"web.ns.svc", "AAAA", "NOERROR; AAAA fd00::10"},
		{"WEB.Ns.sVc", "A", "NOERROR; A 10.96.0.10"},
		{"web.ns.svc", "SRV", "NOERROR; " + webSRV},
		{"web.ns.svc", "MX", noData},
		{"web.ns.svc", "ANY", noData},
		{"web.ns.svc", "HTTPS", noData},
		{"web.ns.svc", "TXT", noData},
		{"web.ns.svc", "CNAME", noData},
		{"web.ns.svc", "SOA", noData},
		{"web.ns.svc", "AXFR", "REFUSED"},
		{"_http._tcp.web.ns.svc", "SRV", "NOERROR; SRV 0 50 80 web.ns.svc.cluster.local.; " +
			"[web.ns.svc.cluster.local. A 10.96.0.10 web.ns.svc.cluster.local. AAAA fd00::10]"},
		{"_http._tcp.web.ns.svc", "A", "NOERROR; A 10.96.0.10"},
		{"_http._udp.web.ns.svc", "SRV", noName},
		{"_no._tcp.web.ns.svc", "A", noName},
		{"x._http._tcp.web.ns.svc", "SRV", noName},
		{"*.ns.svc", "A", noName},
		{"web.*.svc", "A", noName},
		{"10-1-0-1.web.ns.svc", "A", "NOERROR; A 10.1.0.1"},
		{"10-1-0-9.web.ns.svc", "A", noName},
		{"missing.ns.svc", "A", noName},
		{"missing.ns.svc", "TXT", noName},
		{"missing.ns.svc", "SOA", noName},
		{"web.other.svc", "A", noName},
		{"bare.ns.svc", "A", "NOERROR; A 10.96.0.11"},
		{"bare.ns.svc", "SRV", noData},
		{"db.ns.svc", "A", "NOERROR; A 10.1.0.1; A 10.1.0.2; A 10.1.0.4"},
		{"db.ns.svc", "AAAA", "NOERROR; AAAA fd01::"},
		{"db-0.db.ns.svc", "A", "NOERROR; A 10.1.0.1"},
		{"DB-0.db.ns.svc", "A", "NOERROR; A 10.1.0.1"},
		{"db-0.db.ns.svc", "AAAA", noData},
		{"10-1-0-1.db.ns.svc", "A", noName},
		{"10-1-0-2.db.ns.svc", "A", "NOERROR; A 10.1.0.2"},
		{"fd01--0.db.ns.svc", "AAAA", "NOERROR; AAAA fd01::"},
		{"fd01-0-0-0-0-0-0-0.db.ns.svc", "AAAA", noName},
		{"db-2.db.ns.svc", "A", noName},
		{"10-1-0-4.db.ns.svc", "A", "NOERROR; A 10.1.0.4"},
		{"_http._tcp.db.ns.svc", "SRV", "NOERROR; SRV 0 25 8080 10-1-0-2.db.ns.svc.cluster.local.; " +
			"SRV 0 25 8080 10-1-0-4.db.ns.svc.cluster.local.; SRV 0 25 8080 db-0.db.ns.svc.cluster.local.; " +
			"SRV 0 25 8080 fd01--0.db.ns.svc.cluster.local.; [10-1-0-2.db.ns.svc.cluster.local. A 10.1.0.2 " +
			"10-1-0-4.db.ns.svc.cluster.local. A 10.1.0.4 db-0.db.ns.svc.cluster.local. A 10.1.0.1 " +
			"fd01--0.db.ns.svc.cluster.local. AAAA fd01::]"},
		{"early.ns.svc", "A", "NOERROR; A 10.1.0.5"},
		{"e.early.ns.svc", "A", "NOERROR; A 10.1.0.5"},
		{"early.ns.svc", "SRV", noData},
		{"empty.ns.svc", "A", noName},
		{"outside.ns.svc", "A", "NOERROR; CNAME www.example.org.; -> www.example.org."},
		{"outside.ns.svc", "CNAME", "NOERROR; CNAME www.example.org."},
		{"outside.ns.svc", "SRV", noData},
		{"outside.ns.svc", "TXT", noData},
		{"x.outside.ns.svc", "A", noName},
		{"inside.ns.svc", "A", "NOERROR; CNAME WEB.ns.svc.cluster.local.; WEB.ns.svc.cluster.local. A 10.96.0.10"},
		{"twice.ns.svc", "AAAA", "NOERROR; CNAME inside.ns.svc.cluster.local.; " +
			"WEB.ns.svc.cluster.local. AAAA fd00::10; inside.ns.svc.cluster.local. CNAME WEB.ns.svc.cluster.local."},
		{"pod.ns.svc", "A", "NOERROR; 10-1-2-3.ns.pod.cluster.local. A 10.1.2.3; CNAME 10-1-2-3.ns.pod.cluster.local."},
		{"loop.ns.svc", "A", noData},
		{"self.ns.svc", "A", noData},
		{"gone.ns.svc", "A", noData},
		{"address.ns.svc", "A", noName},
		{"bad.ns.svc", "A", noName},
		{"10-1-2-3.ns.pod", "A", "NOERROR; A 10.1.2.3"},
		{"10-1-2-3.ns.pod", "AAAA", noData},
		{"10-1-2-3.ns.pod", "ANY", noData},
		{"10-1-2-3.ns.pod", "SRV", noData},
		{"10-1-2-3.any.pod", "A", "NOERROR; A 10.1.2.3"},
		{"fd00--1.ns.pod", "AAAA", "NOERROR; AAAA fd00::1"},
		{"10-1-2.ns.pod", "A", noName},
		{"web.ns.pod", "A", noName},
		{"fe80--1%eth0.ns.pod", "AAAA", noName},
		{"ns.svc", "A", noData},
		{"other.svc", "A", noName},
		{"ns.pod", "A", noData},
		{"svc", "A", noData},
		{"pod", "SRV", noData},
		{"other", "A", noName},
		{"web.ns", "A", noName},
		{"dns-version", "TXT", `NOERROR; TXT "1.1.0"`},
		{"dns-version", "A", noData},
		{"a.dns-version", "TXT", noName},
		{"ns.dns", "A", "NOERROR; A 10.96.0.2"},
		{"ns.dns", "AAAA", noData},
		{"dns", "A", noName},
		{`web\.ns.svc`, "A", noName},
		{`web\000.ns.svc`, "A", noName},
	} {
		q := dns.Question{Name: c.name + "." + testDomain, Qtype: dns.StringToType[c.qtype], Qclass: dns.ClassINET}
		if got := render(q, zone.Answer(q, 7, 1)); got != c.want {
			t.Errorf("%s %s\ngot  %s\nwant %s", c.name, c.qtype, got, c.want)
		}
		unlocked, locked := render(q, zone.answer(zone.Store, q, 1)), ""
		zone.Store.View(func(v services.View) { locked = render(q, zone.answer(v, q, 1)) })
		if locked != unlocked {
			t.Errorf("%s %s\nin a view   %s\nin a store  %s", c.name, c.qtype, locked, unlocked)
		}
	}
}

func TestZoneApex(t *testing.T) {
	t.Parallel()
	store := testStore()
	zone := testZone(store)
	ask := func(qtype uint16) string {
		q := dns.Question{Name: "Cluster.local.", Qtype: qtype, Qclass: dns.ClassINET}
		return render(q, zone.Answer(q, 7, 0))
	}
	if got := ask(dns.TypeA); got != "NOERROR; SOA" {
		t.Error("A:", got)
	}
	if got, want := ask(dns.TypeSOA),
		"NOERROR; SOA ns.dns.cluster.local. hostmaster.cluster.local. 7 7200 1800 86400 30"; got != want {
		t.Error("SOA:", got)
	}
	want := "NOERROR; NS ns.dns.cluster.local.; [ns.dns.cluster.local. A 10.96.0.2]"
	if got := ask(dns.TypeNS); got != want {
		t.Error("NS:", got)
	}
	name := services.Name{Namespace: "kube-system", Name: "kube-dns"}
	store.SetService(&services.Service{Name: name, ClusterIPs: addrs("10.96.0.2", "fd00::2")})
	want = "NOERROR; NS kube-dns.kube-system.svc.cluster.local.; " +
		"[kube-dns.kube-system.svc.cluster.local. A 10.96.0.2 kube-dns.kube-system.svc.cluster.local. AAAA fd00::2]"
	if got := ask(dns.TypeNS); got != want {
		t.Error("NS with a Service:", got)
	}
}

// TestUnsyncedZone: before the store is synced, what it does not have may exist.
func TestUnsyncedZone(t *testing.T) {
	t.Parallel()
	store := services.NewStore()
	store.SetService(&services.Service{Name: named("web"), ClusterIPs: addrs("10.96.0.10")})
	for alias, target := range map[string]string{"alias": "missing.ns.svc", "other": "none.svc"} {
		store.SetService(&services.Service{Name: named(alias), Type: corev1.ServiceTypeExternalName,
			ExternalName: target + ".cluster.local"})
	}
	zone := testZone(store)
	for service, want := range map[string]string{
		"web": "NOERROR; A 10.96.0.10", "missing": "SERVFAIL; SOA", "alias": "SERVFAIL; SOA",
		"other": "SERVFAIL; SOA"} {
		q := dns.Question{Name: service + ".ns.svc." + testDomain, Qtype: dns.TypeA, Qclass: dns.ClassINET}
		if got := render(q, zone.Answer(q, 7, 0)); got != want {
			t.Errorf("%s: got %s, want %s", service, got, want)
		}
	}
}

func TestZoneContains(t *testing.T) {
	t.Parallel()
	zone := testZone(nil)
	for name, want := range map[string]bool{"cluster.local.": true, "a.cluster.local.": true, "xcluster.local.": false,
		"local.": false, ".": false, "cluster.local.org.": false} {
		if got := zone.Contains(name); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestRotation(t *testing.T) {
	t.Parallel()
	zone := testZone(testStore())
	q := dns.Question{Name: "db.ns.svc." + testDomain, Qtype: dns.TypeA, Qclass: dns.ClassINET}
	first := map[string]bool{}
	for rotate := range uint32(3) {
		first[zone.Answer(q, 0, rotate).Answer[0].(*dns.A).A.String()] = true
	}
	if len(first) != 3 {
		t.Error("first addresses:", first)
	}
}

// TestAnswerIsBounded: a Service with 100,000 endpoints has an answer of limited size.
func TestAnswerIsBounded(t *testing.T) {
	t.Parallel()
	store := testStore()
	slice := &services.Slice{Service: named("db"), Name: "huge", Ports: []services.EndpointPort{{Port: 1}}}
	for i := range 100_000 {
		slice.Endpoints = append(slice.Endpoints, services.Endpoint{
			Address: netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)}), Ready: true})
	}
	store.SetSlice(slice)
	for _, qtype := range []uint16{dns.TypeA, dns.TypeSRV} {
		q := dns.Question{Name: "db.ns.svc." + testDomain, Qtype: qtype, Qclass: dns.ClassINET}
		if got := len(testZone(store).Answer(q, 0, 0).Answer); got != maxRecords {
			t.Errorf("type %d: %d records", qtype, got)
		}
	}
}
