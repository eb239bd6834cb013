package server

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// statsCollector is a prometheus.Collector for the stats of one request. It is unchecked: it
// describes no metrics in advance, because they depend on what is running.
type statsCollector struct {
	stats   Stats
	collect func(Stats, samples)
}

func (c statsCollector) Describe(chan<- *prometheus.Desc) {}

func (c statsCollector) Collect(ch chan<- prometheus.Metric) { c.collect(c.stats, ch) }

// serveMetrics collects stats and writes their metrics in the format that the client accepts.
func (s *server) serveMetrics(w http.ResponseWriter, r *http.Request, collect func(Stats, samples)) {
	stats, err := s.h.Stats(r.Context(), false)
	if err != nil {
		writeError(w, err)
		return
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(statsCollector{stats, collect}) // fails only if it is registered twice
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelWarn),
	}).ServeHTTP(w, r)
}

// samples receives the metrics of one collection.
type samples chan<- prometheus.Metric

// metricDesc is a metric with its type.
type metricDesc struct {
	*prometheus.Desc
	kind prometheus.ValueType
}

func counter(name, help string, labels ...string) metricDesc {
	return metricDesc{prometheus.NewDesc(name, help, labels, nil), prometheus.CounterValue}
}

func gauge(name, help string, labels ...string) metricDesc {
	return metricDesc{prometheus.NewDesc(name, help, labels, nil), prometheus.GaugeValue}
}

// add adds a sample with the time of its measurement. A zero time means that the value was not
// measured: nothing is added.
func (s samples) add(d metricDesc, value float64, at time.Time, labels ...string) {
	if !at.IsZero() {
		s <- prometheus.NewMetricWithTimestamp(at, d.metric(value, labels))
	}
}

// addNow adds a sample without a timestamp.
func (s samples) addNow(d metricDesc, value float64) { s <- d.metric(value, nil) }

func (d metricDesc) metric(value float64, labels []string) prometheus.Metric {
	m, err := prometheus.NewConstMetric(d.Desc, d.kind, value, labels...)
	if err != nil {
		return prometheus.NewInvalidMetric(d.Desc, err)
	}
	return m
}

// seconds is a time in seconds since the Unix epoch. The zero time is 0.
func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixNano()) / 1e9
}
