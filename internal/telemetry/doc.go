// Package telemetry sets up logs, metrics and traces.
//
// It owns the slog handler, one Prometheus registry with berth's collectors and, if the standard
// environment variables request it, an OpenTelemetry exporter. It knows nothing about pods: names
// and labels come from its callers. It has no global state.
//
// # Invariants
//
// Each invariant is covered by a test.
//
//	T1 Without an OTEL_… variable that names an endpoint, no connection is made and
//	   no goroutine is started.
//	T2 If upstream has a metric of the same meaning, name, labels and unit are
//	   those of upstream.
//	T3 Recording a metric neither blocks, nor allocates once its labels are known.
package telemetry
