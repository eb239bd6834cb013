package dns

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the collectors of the DNS server, with the names, labels and buckets of CoreDNS. Its
// methods are safe for concurrent use. A nil *Metrics records nothing.
type Metrics struct {
	entries atomic.Pointer[func() (success, denial int)]

	requests, responses, doRequests         *prometheus.CounterVec
	duration, requestSize, responseSize     *prometheus.HistogramVec
	panics                                  prometheus.Counter
	cacheRequests, cacheHits, cacheMisses   *prometheus.CounterVec
	servedStale, evictions                  *prometheus.CounterVec
	maxConcurrentRejects, healthCheckBroken prometheus.Counter
	proxyDuration                           *prometheus.HistogramVec
	proxyFailures                           *prometheus.CounterVec
	forwardRequests, forwardResponses       *prometheus.CounterVec
	forwardDuration                         *prometheus.HistogramVec
}

// serverLabel is the value of the label server, which is that of a CoreDNS that listens on port 53.
const serverLabel = "dns://:53"

var (
	durationBuckets = prometheus.ExponentialBuckets(.00025, 2, 16)
	sizeBuckets     = []float64{0, 100, 200, 300, 400, 511, 1023, 2047, 4095, 8291, 16e3, 32e3, 48e3, 64e3}
)

// NewMetrics registers the collectors. It panics if they are registered already.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{}
	r.MustRegister(cacheEntries{m})
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "coredns_" + name, Help: help}, labels)
		r.MustRegister(c)
		return c
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "coredns_" + name, Help: help, Buckets: buckets}, labels)
		r.MustRegister(h)
		return h
	}
	m.requests = counter("dns_requests_total", "Cumulative number of DNS requests by zone, protocol, address family "+
		"(1: IPv4, 2: IPv6) and query type.", "server", "zone", "view", "proto", "family", "type")
	m.responses = counter("dns_responses_total", "Cumulative number of DNS responses by zone, rcode and plugin: "+
		"kubernetes, cache or forward.", "server", "zone", "view", "rcode", "plugin")
	m.doRequests = counter("dns_do_requests_total", "Cumulative number of DNS requests with the DO bit.",
		"server", "view", "zone")
	m.duration = histogram("dns_request_duration_seconds", "Duration in seconds of DNS requests by zone.",
		durationBuckets, "server", "zone", "view")
	m.requestSize = histogram("dns_request_size_bytes", "Size of DNS requests in bytes.", sizeBuckets,
		"server", "zone", "view", "proto")
	m.responseSize = histogram("dns_response_size_bytes", "Size of DNS responses in bytes.", sizeBuckets,
		"server", "zone", "view", "proto")
	m.panics = counter("panics_total", "Cumulative number of panics. Expected to be 0.").WithLabelValues()
	m.cacheRequests = counter("cache_requests_total", "Cumulative number of lookups in the cache.",
		"server", "zones", "view")
	m.cacheHits = counter("cache_hits_total", "Cumulative number of cache hits by type: success or denial.",
		"server", "type", "zones", "view")
	m.cacheMisses = counter("cache_misses_total", "Cumulative number of cache misses.", "server", "zones", "view")
	m.servedStale = counter("cache_served_stale_total", "Cumulative number of requests answered with an expired "+
		"answer because upstream servers failed.", "server", "zones", "view")
	m.evictions = counter("cache_evictions_total", "Cumulative number of cache evictions by type.",
		"server", "type", "zones", "view")
	m.maxConcurrentRejects = counter("forward_max_concurrent_rejects_total", "Cumulative number of queries rejected "+
		"because the number of concurrent queries was at its maximum.").WithLabelValues()
	m.healthCheckBroken = counter("forward_healthcheck_broken_total", "Cumulative number of queries while no "+
		"upstream server was healthy.").WithLabelValues()
	m.proxyDuration = histogram("proxy_request_duration_seconds", "Duration in seconds of requests to an upstream "+
		"server by rcode.", durationBuckets, "proxy_name", "to", "rcode")
	m.proxyFailures = counter("proxy_healthcheck_failures_total", "Cumulative number of requests that an upstream "+
		"server did not answer.", "proxy_name", "to")
	m.forwardRequests = counter("forward_requests_total", "(Deprecated by CoreDNS) Cumulative number of requests to "+
		"an upstream server.", "to")
	m.forwardResponses = counter("forward_responses_total", "(Deprecated by CoreDNS) Cumulative number of responses "+
		"of an upstream server by rcode.", "to", "rcode")
	m.forwardDuration = histogram("forward_request_duration_seconds", "(Deprecated by CoreDNS) Duration in seconds "+
		"of requests to an upstream server by rcode.", durationBuckets, "to", "rcode")
	return m
}

// observeCache sets the function that counts cache entries.
func (m *Metrics) observeCache(count func() (success, denial int)) {
	if m != nil {
		m.entries.Store(&count)
	}
}

// cacheEntries collects the number of cache entries by type.
type cacheEntries struct{ of *Metrics }

var cacheEntriesDesc = prometheus.NewDesc("coredns_cache_entries", "Number of cache entries by type.",
	[]string{"server", "type", "zones", "view"}, nil)

// Describe implements prometheus.Collector.
func (c cacheEntries) Describe(ch chan<- *prometheus.Desc) { ch <- cacheEntriesDesc }

// Collect implements prometheus.Collector.
func (c cacheEntries) Collect(ch chan<- prometheus.Metric) {
	count := c.of.entries.Load()
	if count == nil {
		return
	}
	success, denial := (*count)()
	for kind, n := range map[string]int{typeOf(false): success, typeOf(true): denial} {
		ch <- prometheus.MustNewConstMetric(cacheEntriesDesc, prometheus.GaugeValue, float64(n), serverLabel, kind,
			".", "")
	}
}

// typeOf returns the label of a kind of cache entries.
func typeOf(denial bool) string {
	if denial {
		return "denial"
	}
	return "success"
}

func (m *Metrics) cacheEvicted(denial bool) {
	if m != nil {
		m.evictions.WithLabelValues(serverLabel, typeOf(denial), ".", "").Inc()
	}
}

// cacheLookup records a lookup in the cache. hit is nil if it has found nothing.
func (m *Metrics) cacheLookup(hit *reply) {
	if m == nil {
		return
	}
	m.cacheRequests.WithLabelValues(serverLabel, ".", "").Inc()
	if hit == nil {
		m.cacheMisses.WithLabelValues(serverLabel, ".", "").Inc()
		return
	}
	denial := hit.message.Rcode != dns.RcodeSuccess || len(hit.message.Answer) == 0
	m.cacheHits.WithLabelValues(serverLabel, typeOf(denial), ".", "").Inc()
}

// staleServed records that a client got an expired answer.
func (m *Metrics) staleServed() {
	if m != nil {
		m.servedStale.WithLabelValues(serverLabel, ".", "").Inc()
	}
}

func (m *Metrics) forwardBroken() {
	if m != nil {
		m.healthCheckBroken.Inc()
	}
}

func (m *Metrics) tooManyQueries() {
	if m != nil {
		m.maxConcurrentRejects.Inc()
	}
}

func (m *Metrics) panicked() {
	if m != nil {
		m.panics.Inc()
	}
}

// forwarded records a request to an upstream server.
func (m *Metrics) forwarded(to netip.AddrPort, answer *dns.Msg, err error, took time.Duration) {
	if m == nil {
		return
	}
	server := to.String()
	m.forwardRequests.WithLabelValues(server).Inc()
	if err != nil {
		m.proxyFailures.WithLabelValues("forward", server).Inc()
		return
	}
	rcode := rcodeName(answer.Rcode)
	m.forwardResponses.WithLabelValues(server, rcode).Inc()
	m.forwardDuration.WithLabelValues(server, rcode).Observe(took.Seconds())
	m.proxyDuration.WithLabelValues("forward", server, rcode).Observe(took.Seconds())
}

// served describes an answered query.
type served struct {
	zone, proto, plugin string
	ipv6, do            bool
	qtype               uint16
	rcode               int
	request, response   int // bytes
	took                time.Duration
}

// served records an answered query.
func (m *Metrics) served(s served) {
	if m == nil {
		return
	}
	family := "1"
	if s.ipv6 {
		family = "2"
	}
	m.requests.WithLabelValues(serverLabel, s.zone, "", s.proto, family, typeName(s.qtype)).Inc()
	m.responses.WithLabelValues(serverLabel, s.zone, "", rcodeName(s.rcode), s.plugin).Inc()
	if s.do {
		m.doRequests.WithLabelValues(serverLabel, "", s.zone).Inc()
	}
	m.duration.WithLabelValues(serverLabel, s.zone, "").Observe(s.took.Seconds())
	m.requestSize.WithLabelValues(serverLabel, s.zone, "", s.proto).Observe(float64(s.request))
	m.responseSize.WithLabelValues(serverLabel, s.zone, "", s.proto).Observe(float64(s.response))
}

// typeName returns the label of a query type: CoreDNS names the common ones, so that clients cannot
// make any number of labels.
func typeName(qtype uint16) string {
	switch qtype {
	case dns.TypeA, dns.TypeAAAA, dns.TypeMX, dns.TypeSOA, dns.TypeCNAME, dns.TypePTR, dns.TypeTXT, dns.TypeNS,
		dns.TypeSRV, dns.TypeDS, dns.TypeDNSKEY, dns.TypeRRSIG, dns.TypeNSEC, dns.TypeNSEC3, dns.TypeHTTPS,
		dns.TypeIXFR, dns.TypeAXFR, dns.TypeANY:
		return dns.TypeToString[qtype]
	}
	return "other"
}

func rcodeName(rcode int) string {
	if name, ok := dns.RcodeToString[rcode]; ok {
		return name
	}
	return "other"
}
