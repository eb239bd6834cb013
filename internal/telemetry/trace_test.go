package telemetry

import (
	"context"
	"net"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
)

// sink is a collector that records the names of services and spans.
type sink struct {
	collector.UnimplementedTraceServiceServer
	spans chan string
}

func (s *sink) Export(
	_ context.Context,
	r *collector.ExportTraceServiceRequest,
) (*collector.ExportTraceServiceResponse, error) {
	for _, rs := range r.ResourceSpans {
		service := ""
		for _, a := range rs.Resource.Attributes {
			if a.Key == "service.name" {
				service = a.Value.GetStringValue()
			}
		}
		for _, ss := range rs.ScopeSpans {
			for _, span := range ss.Spans {
				s.spans <- service + "/" + span.Name
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func TestTracesReachACollector(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &sink{spans: make(chan string, 8)}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, s)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	defer func() { server.Stop(); <-served }()

	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+l.Addr().String())
	tr, err := NewTraces(t.Context(), TraceOptions{Node: "n1", Version: "v0"})
	if err != nil || !tr.On() {
		t.Fatalf("on %v, error %v", tr != nil && tr.On(), err)
	}
	_, span := tr.Tracer("agent").Start(t.Context(), "pass")
	span.End()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := tr.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	if got := <-s.spans; got != "berth/pass" {
		t.Errorf("got %s", got)
	}
}
