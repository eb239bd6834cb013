package dns

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"berth/internal/telemetry/metricstest"
)

// TestMetrics checks the metrics that queries leave, with the labels of CoreDNS.
func TestMetrics(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	metrics := NewMetrics(registry)
	o := testOptions(testStore())
	o.Metrics = metrics
	o.Forward = NewForwarder(ForwardOptions{ResolvConf: "/dev/null", Log: o.Log, Metrics: metrics})
	t.Cleanup(o.Forward.Close)
	s := start(t, o, loopback(t), nil)
	s.exchange(t, "udp", queryFor("web.ns.svc.cluster.local", dns.TypeA).SetEdns0(1232, true))
	s.exchange(t, "tcp", queryFor("missing.ns.svc.cluster.local", dns.TypeNAPTR))
	s.exchange(t, "udp", queryFor("example.org", dns.TypeA))
	s.exchange(t, "udp", queryFor("example.org", dns.TypeA))
	s.stop() // a query is counted after its answer
	checkMetrics(t, registry, map[string]float64{
		"coredns_dns_requests_total family=1 proto=udp type=A zone=cluster.local.":         1,
		"coredns_dns_requests_total family=1 proto=tcp type=other zone=cluster.local.":     1,
		"coredns_dns_requests_total family=1 proto=udp type=A zone=.":                      2,
		"coredns_dns_do_requests_total zone=cluster.local.":                                1,
		"coredns_dns_responses_total plugin=kubernetes rcode=NOERROR zone=cluster.local.":  1,
		"coredns_dns_responses_total plugin=kubernetes rcode=NXDOMAIN zone=cluster.local.": 1,
		"coredns_dns_responses_total plugin=forward rcode=SERVFAIL zone=.":                 1,
		"coredns_dns_responses_total plugin=cache rcode=SERVFAIL zone=.":                   1,
		"coredns_dns_request_duration_seconds zone=cluster.local.":                         2,
		"coredns_dns_request_size_bytes proto=udp zone=cluster.local.":                     1,
		"coredns_dns_response_size_bytes proto=tcp zone=cluster.local.":                    1,
		"coredns_cache_requests_total zones=.":                                             2,
		"coredns_cache_misses_total zones=.":                                               1,
		"coredns_cache_hits_total type=denial zones=.":                                     1,
		"coredns_cache_entries type=denial zones=.":                                        1,
		"coredns_cache_entries type=success zones=.":                                       0,
		"coredns_panics_total": 0,
	})
}

// TestForwardMetrics checks the metrics of upstream servers and of the cache.
func TestForwardMetrics(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "resolv.conf")
		writeResolvConf(t, path, "192.0.2.1", "192.0.2.2")
		var up atomic.Bool
		servers := fakeServers{"192.0.2.1": answering("198.51.100.1", 20), "192.0.2.2": silent}
		dial := func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
			if !up.Load() {
				return nil, errors.New("connection refused")
			}
			return servers.dial(ctx, network, to)
		}
		o := testOptions(testStore())
		o.Metrics = NewMetrics(registry)
		o.Forward = NewForwarder(ForwardOptions{ResolvConf: path, Own: func(netip.Addr) bool { return false },
			Log: o.Log, Metrics: o.Metrics, CacheBytes: 2 * entryOverhead, dial: dial})
		defer o.Forward.Close()
		s := NewServer(o)
		defer s.Close()
		ask := func(name string) {
			var all sync.WaitGroup
			packed, err := queryFor(name, dns.TypeA).Pack()
			if err != nil {
				t.Fatal(err)
			}
			in := &incoming{client: netip.MustParseAddr("10.0.0.1"), proto: "udp"}
			s.answer(t.Context(), &all, in, packed, func([]byte) {})
			all.Wait()
		}
		up.Store(true)
		ask("example.org")
		ask("example.org")
		up.Store(false)
		time.Sleep(20 * time.Second)
		ask("example.org") // both servers fail: an expired answer
		ask("example.org") // without asking again
		time.Sleep(staleRetry)
		up.Store(true)
		ask("a.example.org") // evicts the other
	})
	checkMetrics(t, registry, map[string]float64{
		"coredns_cache_requests_total zones=.":                                                    5,
		"coredns_cache_hits_total type=success zones=.":                                           2,
		"coredns_cache_misses_total zones=.":                                                      3,
		"coredns_cache_served_stale_total zones=.":                                                2,
		"coredns_cache_evictions_total type=success zones=.":                                      1,
		"coredns_cache_entries type=success zones=.":                                              1,
		"coredns_forward_healthcheck_broken_total":                                                0,
		"coredns_forward_requests_total to=192.0.2.1:53":                                          4,
		"coredns_forward_responses_total rcode=NOERROR to=192.0.2.1:53":                           2,
		"coredns_forward_request_duration_seconds rcode=NOERROR to=192.0.2.1:53":                  2,
		"coredns_proxy_request_duration_seconds proxy_name=forward rcode=NOERROR to=192.0.2.1:53": 2,
		"coredns_proxy_healthcheck_failures_total proxy_name=forward to=192.0.2.1:53":             2,
		"coredns_proxy_healthcheck_failures_total proxy_name=forward to=192.0.2.2:53":             1,
	})
}

// checkMetrics checks values of metrics by their names and labels, without empty labels and the server.
func checkMetrics(t *testing.T, registry *prometheus.Registry, want map[string]float64) {
	t.Helper()
	got := map[string]float64{}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				if l.GetValue() != "" && l.GetName() != "server" {
					name += " " + l.GetName() + "=" + l.GetValue()
				}
			}
			got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	for name, want := range want {
		if value, ok := got[name]; !ok || value != want {
			t.Errorf("%s: got %v (exists: %t), want %v", name, value, ok, want)
		}
	}
}

func TestReferenceListsEveryMetric(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	NewMetrics(registry)
	metricstest.CheckReference(t, registry, "DNS server")
}
