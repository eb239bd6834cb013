package policy

import (
	"github.com/prometheus/client_golang/prometheus"

	"berth/services/policy/rules"
)

// metrics counts what an Enforcer does.
type metrics struct {
	duration                        prometheus.Histogram
	transactions, failures, repairs prometheus.Counter
}

func newMetrics() *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "berth_network_policy_" + name, Help: help})
	}
	return &metrics{
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "berth_network_policy_sync_duration_seconds",
			Help:    "Duration in seconds of updates of network policy rules.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5},
		}),
		transactions: counter("transactions_total",
			"Cumulative number of nftables transactions of network policy rules."),
		failures: counter("sync_failures_total", "Cumulative number of failed updates of network policy rules."),
		repairs: counter("repairs_total",
			"Cumulative number of network policy rules replaced because another program had changed them."),
	}
}

var (
	policiesDesc = prometheus.NewDesc("berth_network_policies", "Number of network policies in the cluster.", nil, nil)
	isolatedDesc = prometheus.NewDesc("berth_network_policy_isolated_pods",
		"Number of pods on this node that network policies isolate.", nil, nil)
	droppedDesc = prometheus.NewDesc("berth_network_policy_dropped_packets",
		"Number of packets to or from present pods that were dropped, by direction and reason: policy, or unknown "+
			"for addresses of the pod CIDRs that no pod has.", []string{"direction", "reason"}, nil)
)

// Describe implements prometheus.Collector.
func (e *Enforcer) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{policiesDesc, isolatedDesc, droppedDesc} {
		ch <- d
	}
	for _, c := range e.metrics.all() {
		c.Describe(ch)
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.duration, m.transactions, m.failures, m.repairs}
}

// Collect implements prometheus.Collector. It reads the counters of the table.
func (e *Enforcer) Collect(ch chan<- prometheus.Metric) {
	for _, c := range e.metrics.all() {
		c.Collect(ch)
	}
	status := e.Status()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	gauge(policiesDesc, float64(status.Policies))
	gauge(isolatedDesc, float64(status.IsolatedPods))
	if !status.Enabled {
		return
	}
	counters, err := e.kernel.counters()
	if err != nil {
		return // reported by the next sync
	}
	dropped := map[[2]string]uint64{}
	for _, d := range rules.Directions {
		dropped[[2]string{d.String(), "policy"}], dropped[[2]string{d.String(), "unknown"}] = 0, 0
		for name, c := range counters {
			switch {
			case name == rules.UnknownCounter(d):
				dropped[[2]string{d.String(), "unknown"}] += c.Packets
			case rules.IsDropCounter(name, d):
				dropped[[2]string{d.String(), "policy"}] += c.Packets
			}
		}
	}
	for labels, n := range dropped {
		gauge(droppedDesc, float64(n), labels[:]...)
	}
}
