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
// The traces are never nil; an error says why they are off though asked for.
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
	), resource.WithFromEnv()) // what the user says wins
	if err != nil {
		return nil, err
	}
	exporter, err := otlptracegrpc.New(ctx) // last: nobody would end it
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
	if p := cmp.Or(getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), getenv("OTEL_EXPORTER_OTLP_PROTOCOL"), "grpc"); p != "grpc" {
		return false, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL=%s: only grpc is built in", p)
	}
	return true, nil
}

// On reports whether spans go anywhere: what is dear to make need not be made.
func (t *Traces) On() bool { return t.sdk != nil }

// Tracer returns the tracer of one package.
func (t *Traces) Tracer(name string) trace.Tracer { return t.provider.Tracer(name) }

// Shutdown sends what is left and ends the exporter; it waits as long as ctx.
func (t *Traces) Shutdown(ctx context.Context) error {
	if t.sdk == nil {
		return nil
	}
	return t.sdk.Shutdown(ctx)
}
