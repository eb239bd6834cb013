package announce

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the collectors of an Announcer. A nil *Metrics records nothing.
type Metrics struct {
	announced, peers, blocked prometheus.Gauge
	takeovers, conflicts      prometheus.Counter
}

// NewMetrics registers the collectors. It panics if they are registered already.
func NewMetrics(r prometheus.Registerer) *Metrics {
	const prefix = "berth_load_balancer_"
	m := &Metrics{
		announced: prometheus.NewGauge(prometheus.GaugeOpts{Name: prefix + "announced_addresses",
			Help: "Number of addresses of load balancers that this node announces."}),
		peers: prometheus.NewGauge(prometheus.GaugeOpts{Name: prefix + "peers",
			Help: "Number of other nodes whose heartbeats arrive, summed over interfaces."}),
		takeovers: prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "takeovers_total",
			Help: "Cumulative number of times that this node began to announce an address."}),
		conflicts: prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "conflicts_total",
			Help: "Cumulative number of times that a host that is no node had an address of a load balancer."}),
		blocked: prometheus.NewGauge(prometheus.GaugeOpts{Name: prefix + "conflicting_addresses",
			Help: "Number of load balancer addresses that this node does not announce because another host has them."}),
	}
	r.MustRegister(m.announced, m.peers, m.takeovers, m.conflicts, m.blocked)
	return m
}

func (m *Metrics) state(announced, peers, blocked int) {
	if m != nil {
		m.announced.Set(float64(announced))
		m.peers.Set(float64(peers))
		m.blocked.Set(float64(blocked))
	}
}

func (m *Metrics) takeover() {
	if m != nil {
		m.takeovers.Inc()
	}
}

func (m *Metrics) conflict() {
	if m != nil {
		m.conflicts.Inc()
	}
}
