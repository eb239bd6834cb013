// Package telemetry sets up logs, metrics and traces, and nothing else.
//
// It owns the slog handler, one Prometheus registry with berth's collectors and,
// if the standard environment variables ask for it, an OpenTelemetry exporter.
// It knows nothing of pods: names and labels come from its callers. It has no
// global state and starts nothing that was not asked for.
//
// Invariants, each held by a test:
//
//	T1 Without an OTEL_… variable that names an endpoint no connection is made
//	   and no goroutine is started.
//	T2 Where upstream has a metric of the same meaning, name, labels and unit are
//	   upstream's.
//	T3 Telling a metric neither blocks nor allocates once its labels are known.
package telemetry
