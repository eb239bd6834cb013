// Package subsystem defines metrics of a component of the server, under the names that the component has in
// Kubernetes. It registers nothing.
package subsystem

import "k8s.io/component-base/metrics"

// Name is the prefix of the metrics of a component, such as scheduler.
type Name string

// Counter returns a counter without labels.
func (n Name) Counter(name, help string, level metrics.StabilityLevel) *metrics.Counter {
	return metrics.NewCounter(n.counter(name, help, level))
}

// CounterVec returns a counter with labels.
func (n Name) CounterVec(name, help string, level metrics.StabilityLevel, labels ...string) *metrics.CounterVec {
	return metrics.NewCounterVec(n.counter(name, help, level), labels)
}

func (n Name) counter(name, help string, level metrics.StabilityLevel) *metrics.CounterOpts {
	return &metrics.CounterOpts{Subsystem: string(n), Name: name, Help: help, StabilityLevel: level}
}

// Gauge returns a gauge without labels.
func (n Name) Gauge(name, help string, level metrics.StabilityLevel) *metrics.Gauge {
	return metrics.NewGauge(n.gauge(name, help, level))
}

// GaugeVec returns a gauge with labels.
func (n Name) GaugeVec(name, help string, level metrics.StabilityLevel, labels ...string) *metrics.GaugeVec {
	return metrics.NewGaugeVec(n.gauge(name, help, level), labels)
}

func (n Name) gauge(name, help string, level metrics.StabilityLevel) *metrics.GaugeOpts {
	return &metrics.GaugeOpts{Subsystem: string(n), Name: name, Help: help, StabilityLevel: level}
}

// Histogram returns a histogram without labels.
func (n Name) Histogram(name, help string, level metrics.StabilityLevel, buckets []float64) *metrics.Histogram {
	return metrics.NewHistogram(n.histogram(name, help, level, buckets))
}

// HistogramVec returns a histogram with labels.
func (n Name) HistogramVec(name, help string, level metrics.StabilityLevel, buckets []float64, labels ...string,
) *metrics.HistogramVec {
	return metrics.NewHistogramVec(n.histogram(name, help, level, buckets), labels)
}

func (n Name) histogram(name, help string, level metrics.StabilityLevel, buckets []float64) *metrics.HistogramOpts {
	return &metrics.HistogramOpts{
		Subsystem: string(n), Name: name, Help: help, StabilityLevel: level, Buckets: buckets,
	}
}
