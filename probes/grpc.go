package probes

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
)

func (o *Manager) grpcRunner(x *probe, a *corev1.GRPCAction) func(context.Context) outcome {
	service := ""
	if a.Service != nil {
		service = *a.Service
	}
	at, err := x.address("", strconv.Itoa(int(a.Port)))
	if err != nil {
		return errorRunner(err)
	}
	c := &grpcCheck{at: at, service: service, timeout: x.timeout, agent: o.opt.UserAgent,
		creds: insecure.NewCredentials()}
	c.dial = func(ctx context.Context, at string) (net.Conn, error) {
		return o.dial.plain.DialContext(ctx, "tcp", at)
	}
	if a.Mode != nil && *a.Mode == corev1.GRPCProbeModeTLS {
		c.creds = credentials.NewTLS(o.dial.insecureTLS)
	}
	return c.run
}

// grpcCheck is a probe with the gRPC health checking protocol.
type grpcCheck struct {
	at, service, agent string
	timeout            time.Duration
	creds              credentials.TransportCredentials
	dial               func(context.Context, string) (net.Conn, error)
}

func (c *grpcCheck) run(ctx context.Context) outcome {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	conn, err := grpc.NewClient(
		"passthrough:///"+c.at,
		grpc.WithTransportCredentials(c.creds),
		grpc.WithUserAgent(c.agent),
		grpc.WithContextDialer(c.dial),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0),
	)
	if err != nil {
		return outcome{result: Unknown, output: err.Error()}
	}
	defer func() { _ = conn.Close() }() // it fails only if called twice
	resp, err := health.NewHealthClient(conn).Check(ctx, &health.HealthCheckRequest{Service: c.service})
	if err != nil {
		return c.failed(err)
	}
	if s := resp.GetStatus(); s != health.HealthCheckResponse_SERVING {
		return outcome{result: Failure, output: fmt.Sprintf("service unhealthy (responded with %q)", s.String())}
	}
	return outcome{result: Success, output: "service healthy"}
}

// failed converts an error. A call fails as soon as its connection does, so that the probe can be
// repeated early.
func (c *grpcCheck) failed(err error) outcome {
	a := outcome{result: Failure}
	switch s := status.Convert(err); s.Code() {
	case codes.Unimplemented:
		a.output = "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): " +
			s.Message()
	case codes.DeadlineExceeded:
		a.output, a.timedOut = fmt.Sprintf("timeout: health rpc did not complete within %v", c.timeout), true
	case codes.Unavailable:
		a.output = fmt.Sprintf("error: failed to connect service %q: %s", c.at, s.Message())
	default:
		a.output = fmt.Sprintf("error: health rpc probe failed: %+v", err)
	}
	return a
}
