package proxy

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth/services/proxy/ruleset"
)

// Metrics are the collectors of the proxy, with the names, labels and buckets of kube-proxy. Its
// methods are safe for concurrent use. A nil *Metrics records nothing.
//
// One transaction writes the rules of both address families. Its duration counts for both.
type Metrics struct {
	sync, fullSync, partialSync, programmed, conntrack *prometheus.HistogramVec
	lastSync, lastQueued, noLocalEndpoints             *prometheus.GaugeVec
	failures, conntrackDeleted                         *prometheus.CounterVec
	serviceChanges, endpointChanges                    prometheus.Counter
	serviceChangesPending, endpointChangesPending      prometheus.Gauge
}

// families of the label ip_family.
const (
	labelIPv4 = "IPv4"
	labelIPv6 = "IPv6"
)

func bothFamilies() [2]string { return [2]string{labelIPv4, labelIPv6} }

// NewMetrics registers the collectors. It panics if they are registered already.
func NewMetrics(r prometheus.Registerer) *Metrics {
	const prefix = "kubeproxy_"
	gauges := func(name, help string, labels ...string) *prometheus.GaugeVec {
		c := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + name, Help: help}, labels)
		r.MustRegister(c)
		return c
	}
	counters := func(name, help string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, []string{"ip_family"})
		r.MustRegister(c)
		return c
	}
	histograms := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		c := prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: prefix + name, Help: help, Buckets: buckets}, []string{"ip_family"})
		r.MustRegister(c)
		return c
	}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + name, Help: help})
		r.MustRegister(c)
		return c
	}
	gauge := func(name, help string) prometheus.Gauge {
		c := prometheus.NewGauge(prometheus.GaugeOpts{Name: prefix + name, Help: help})
		r.MustRegister(c)
		return c
	}
	syncBuckets := prometheus.ExponentialBuckets(.001, 2, 15)
	return &Metrics{
		sync: histograms("sync_proxy_rules_duration_seconds", "Duration in seconds of syncs.", syncBuckets),
		fullSync: histograms("sync_full_proxy_rules_duration_seconds",
			"Duration in seconds of syncs that compare all rules.", syncBuckets),
		partialSync: histograms("sync_partial_proxy_rules_duration_seconds",
			"Duration in seconds of syncs that write changes only.", syncBuckets),
		programmed: histograms("network_programming_duration_seconds",
			"Duration in seconds from the change of endpoints that the control plane observed to their rules.",
			programmingBuckets()),
		conntrack: histograms("conntrack_reconciler_sync_duration_seconds",
			"Duration in seconds of passes over the conntrack table.", syncBuckets),
		lastSync: gauges("sync_proxy_rules_last_timestamp_seconds",
			"Time of the last successful sync, in seconds since 1970.", "ip_family"),
		lastQueued: gauges("sync_proxy_rules_last_queued_timestamp_seconds",
			"Time of the last change that arrived, in seconds since 1970.", "ip_family"),
		noLocalEndpoints: gauges("sync_proxy_rules_no_local_endpoints_total",
			"Number of addresses of Services with traffic policy Local and no endpoint on this node.",
			"ip_family", "traffic_policy"),
		failures: counters("sync_proxy_rules_nftables_sync_failures_total", "Cumulative number of failed syncs."),
		conntrackDeleted: counters("conntrack_reconciler_deleted_entries_total",
			"Cumulative number of stale conntrack entries deleted."),
		serviceChanges: counter("sync_proxy_rules_service_changes_total",
			"Cumulative number of changes of Services."),
		endpointChanges: counter("sync_proxy_rules_endpoint_changes_total",
			"Cumulative number of changes of the endpoints of Services."),
		serviceChangesPending: gauge("sync_proxy_rules_service_changes_pending",
			"Number of changed Services whose rules are not written yet."),
		endpointChangesPending: gauge("sync_proxy_rules_endpoint_changes_pending",
			"Number of Services with changed endpoints whose rules are not written yet."),
	}
}

// programmingBuckets are those of the service level objective for network programming.
func programmingBuckets() []float64 {
	return append(append(append(prometheus.LinearBuckets(.25, .25, 2), prometheus.LinearBuckets(1, 1, 59)...),
		prometheus.LinearBuckets(60, 5, 12)...), prometheus.LinearBuckets(120, 30, 7)...)
}

// queued records that changes have arrived.
func (m *Metrics) queued() {
	if m == nil {
		return
	}
	for _, f := range bothFamilies() {
		m.lastQueued.WithLabelValues(f).SetToCurrentTime()
	}
}

// pending records the number of changed Services that wait. The store does not tell apart changes of
// a Service and of its endpoints before they are applied: each counts as both.
func (m *Metrics) pending(n int) {
	if m != nil {
		m.serviceChangesPending.Set(float64(n))
		m.endpointChangesPending.Set(float64(n))
	}
}

// applied records a change of a Service or of its endpoints.
func (m *Metrics) applied(service, endpoints bool) {
	if m == nil {
		return
	}
	if service {
		m.serviceChanges.Inc()
	}
	if endpoints {
		m.endpointChanges.Inc()
	}
}

// synced records an attempt. A full sync compared all rules.
func (m *Metrics) synced(d time.Duration, full bool, err error) {
	if m == nil {
		return
	}
	for _, f := range bothFamilies() {
		m.sync.WithLabelValues(f).Observe(d.Seconds())
		if full {
			m.fullSync.WithLabelValues(f).Observe(d.Seconds())
		} else {
			m.partialSync.WithLabelValues(f).Observe(d.Seconds())
		}
		if err != nil {
			m.failures.WithLabelValues(f).Inc()
			continue
		}
		m.failures.WithLabelValues(f).Add(0)
		m.lastSync.WithLabelValues(f).SetToCurrentTime()
	}
}

// programmedAfter records the time from a change of endpoints to their rules.
func (m *Metrics) programmedAfter(d time.Duration) {
	if m == nil {
		return
	}
	for _, f := range bothFamilies() {
		m.programmed.WithLabelValues(f).Observe(d.Seconds())
	}
}

// withoutLocal counts the frontends with policy Local that have no endpoint on this node.
func (m *Metrics) withoutLocal(s *ruleset.State) {
	if m == nil {
		return
	}
	for i, f := range bothFamilies() {
		internal, external := 0, 0
		for chain, n := range s.Chains(i == 1) {
			switch t, _ := ruleset.ParseChain(chain); {
			case t.Class == ruleset.Drop:
				internal += n
			case t.Class == ruleset.ExternalLocal && t.Local == 0:
				external += n
			}
		}
		m.noLocalEndpoints.WithLabelValues(f, "internal").Set(float64(internal))
		m.noLocalEndpoints.WithLabelValues(f, "external").Set(float64(external))
	}
}

// cleaned records a pass over the conntrack table.
func (m *Metrics) cleaned(d time.Duration, deleted [2]int) {
	if m == nil {
		return
	}
	for i, f := range bothFamilies() {
		m.conntrack.WithLabelValues(f).Observe(d.Seconds())
		m.conntrackDeleted.WithLabelValues(f).Add(float64(deleted[i]))
	}
}
