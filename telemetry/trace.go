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

// Traces makes spans. Without the environment asking for it they are nothing.
type Traces struct {
	provider trace.TracerProvider
	sdk      *sdktrace.TracerProvider // nil: off
}

// TraceOptions is what NewTraces needs.
type TraceOptions struct {
	Node, Version string
	Getenv        func(string) string // default os.Getenv
}

// NewTraces sets up what the standard variables ask for: OTEL_EXPORTER_OTLP_ENDPOINT
// or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT switch it on, OTEL_SDK_DISABLED=true and
// OTEL_TRACES_EXPORTER=none switch it off; the exporter and the sampler read
// theirs themselves. Only OTLP over gRPC is built in. No collector need be there.
func NewTraces(ctx context.Context, o TraceOptions) (*Traces, error) {
	if o.Getenv == nil {
		o.Getenv = os.Getenv
	}
	if on, err := wanted(o.Getenv); err != nil || !on {
		return &Traces{provider: noop.NewTracerProvider()}, err
	}
	exporter, err := otlptracegrpc.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("set up traces: %w", err)
	}
	res, err := resource.New(ctx, resource.WithAttributes(
		attribute.String("service.name", "berth"),
		attribute.String("service.version", o.Version),
		attribute.String("k8s.node.name", o.Node),
	), resource.WithFromEnv()) // what the user says wins
	if err != nil {
		return nil, fmt.Errorf("set up traces: %w", err)
	}
	sdk := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(res))
	return &Traces{provider: sdk, sdk: sdk}, nil
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
	if p := cmp.Or(getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), getenv("OTEL_EXPORTER_OTLP_PROTOCOL"), "grpc"); p != "grpc" {
		return false, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL=%s: must be grpc", p)
	}
	return true, nil
}

// On reports whether spans go anywhere: what is dear to make need not be made.
func (t *Traces) On() bool { return t.sdk != nil }

// Tracer returns the tracer of one package.
func (t *Traces) Tracer(name string) trace.Tracer { return t.provider.Tracer(name) }

// Provider is for libraries that take one, such as gRPC's.
func (t *Traces) Provider() trace.TracerProvider { return t.provider }

// Shutdown sends what is left and ends the exporter; it waits as long as ctx.
func (t *Traces) Shutdown(ctx context.Context) error {
	if t.sdk == nil {
		return nil
	}
	return t.sdk.Shutdown(ctx)
}
