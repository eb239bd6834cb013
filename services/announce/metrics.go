package announce

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the collectors of an Announcer. A nil *Metrics records nothing.
type Metrics struct {
	announced, peers     prometheus.Gauge
	takeovers, conflicts prometheus.Counter
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
			Help: "Cumulative number of hosts without an agent that used an address which this node announces."}),
	}
	r.MustRegister(m.announced, m.peers, m.takeovers, m.conflicts)
	return m
}

func (m *Metrics) state(announced, peers int) {
	if m != nil {
		m.announced.Set(float64(announced))
		m.peers.Set(float64(peers))
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
