package metrics

import (
	"context"
	"path"
	"strings"
	"time"
	"unicode"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"google.golang.org/grpc"

	"berth/agent/pod"
	"berth/internal/telemetry"
)

// RuntimeCalls returns an interceptor for runtime calls. It records metrics, the pod's timeline, and
// a trace span if tracing is enabled.
func RuntimeCalls(m *telemetry.Metrics, traces *telemetry.Traces) grpc.UnaryClientInterceptor {
	return func(
		ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
		invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		verb := path.Base(method)
		end := pod.RuntimeCallSpan(ctx, verb)
		start := time.Now()
		err := traced(ctx, traces, verb, func(ctx context.Context) error {
			return invoke(ctx, method, req, reply, conn, opts...)
		})
		if strings.HasPrefix(method, "/runtime.v1.") { // not a CRI call of containerd
			m.ObserveRuntimeOperation(operation(verb), time.Since(start), err)
		}
		end(err)
		return err
	}
}

// traced runs a call in a trace span, if tracing is enabled.
func traced(ctx context.Context, traces *telemetry.Traces, verb string, call func(context.Context) error) error {
	if !traces.On() {
		return call(ctx)
	}
	ctx, span := traces.Tracer("berth/cri").Start(ctx, verb)
	defer span.End()
	span.SetAttributes(attribute.String("berth.stage", pod.StageFromContext(ctx)))
	err := call(ctx)
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	return err
}

// operation converts RunPodSandbox to run_podsandbox, upstream's format of the operation label.
func operation(verb string) string {
	verb = strings.Replace(verb, "PodSandbox", "Podsandbox", 1)
	var s strings.Builder
	for i, r := range verb {
		if unicode.IsUpper(r) && i > 0 {
			s.WriteByte('_')
		}
		s.WriteRune(unicode.ToLower(r))
	}
	return s.String()
}
