package telemetry

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// Traces creates spans. They are no-ops unless the environment enables tracing.
type Traces struct {
	provider trace.TracerProvider
	sdk      *sdktrace.TracerProvider // nil: off
}

// TraceOptions configures NewTraces.
type TraceOptions struct {
	Node, Version string
	Getenv        func(string) string // default os.Getenv
}

// NewTraces sets up tracing from the standard variables: OTEL_EXPORTER_OTLP_ENDPOINT or
// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT enable it, OTEL_SDK_DISABLED=true and
// OTEL_TRACES_EXPORTER=none disable it. The exporter and the sampler read their own variables. Only
// OTLP over gRPC is built in. The collector need not be reachable. The result is never nil. An
// error is the reason why tracing is disabled although it was requested.
func NewTraces(ctx context.Context, o TraceOptions) (*Traces, error) {
	if o.Getenv == nil {
		o.Getenv = os.Getenv
	}
	if on, err := wanted(o.Getenv); err != nil || !on {
		return &Traces{provider: noop.NewTracerProvider()}, err
	}
	sdk, err := newProvider(ctx, o)
	if err != nil {
		return &Traces{provider: noop.NewTracerProvider()}, fmt.Errorf("set up traces: %w", err)
	}
	return &Traces{provider: sdk, sdk: sdk}, nil
}

func newProvider(ctx context.Context, o TraceOptions) (*sdktrace.TracerProvider, error) {
	res, err := resource.New(ctx, resource.WithAttributes(
		attribute.String("service.name", "berth"),
		attribute.String("service.version", o.Version),
		attribute.String("k8s.node.name", o.Node),
	), resource.WithFromEnv()) // the user's attributes take precedence
	if err != nil {
		return nil, err
	}
	exporter, err := otlptracegrpc.New(ctx) // last, because it would have to be shut down
	if err != nil {
		return nil, err
	}
	return sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(res)), nil
}

func wanted(getenv func(string) string) (bool, error) {
	endpoint := cmp.Or(getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), getenv("OTEL_EXPORTER_OTLP_ENDPOINT"))
	if endpoint == "" || strings.EqualFold(getenv("OTEL_SDK_DISABLED"), "true") {
		return false, nil
	}
	switch exporter := getenv("OTEL_TRACES_EXPORTER"); exporter {
	case "", "otlp":
	case "none":
		return false, nil
	default:
		return false, fmt.Errorf("OTEL_TRACES_EXPORTER=%s: must be otlp or none", exporter)
	}
	p := cmp.Or(getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), getenv("OTEL_EXPORTER_OTLP_PROTOCOL"), "grpc")
	if p != "grpc" {
		return false, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL=%s: only grpc is built in", p)
	}
	return true, nil
}

// On reports whether spans are exported. Expensive attributes can be skipped otherwise.
func (t *Traces) On() bool { return t.sdk != nil }

// Tracer returns the tracer of a package.
func (t *Traces) Tracer(name string) trace.Tracer { return t.provider.Tracer(name) }

// Shutdown sends pending spans and stops the exporter, until ctx ends.
func (t *Traces) Shutdown(ctx context.Context) error {
	if t.sdk == nil {
		return nil
	}
	return t.sdk.Shutdown(ctx)
}
