// Package metrics records what happens in package agent as Prometheus metrics, with upstream's names
// where upstream has the metric.
package metrics
