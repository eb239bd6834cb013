package probes

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"berth/podspec"
)

// runner returns what makes a probe once.
func (o *Manager) runner(x *probe, c *corev1.Container) func(context.Context) answer {
	switch spec := x.spec; {
	case spec.Exec != nil:
		e := &exec{runtime: o.opt.Runtime, id: x.in.watch.ID, command: spec.Exec.Command, timeout: x.timeout}
		return e.run
	case spec.HTTPGet != nil:
		return o.httpRunner(x, c, spec.HTTPGet)
	case spec.TCPSocket != nil:
		return o.tcpRunner(x, c, spec.TCPSocket)
	case spec.GRPC != nil:
		return o.grpcRunner(x, spec.GRPC)
	}
	return never(errors.New("the probe does nothing"))
}

// never is a probe that cannot be made.
func never(err error) func(context.Context) answer {
	return func(context.Context) answer { return answer{result: Unknown, output: err.Error()} }
}

// address is where a probe connects to; host is its own wish, empty mostly.
func (p *probe) address(host, port string) (string, error) {
	if host == "" {
		host = p.host
	}
	if host == "" {
		return "", errors.New("the pod has no address yet")
	}
	return net.JoinHostPort(host, port), nil
}

// portOf resolves a port by number or by the name that the container gives it.
func portOf(c *corev1.Container, p intstr.IntOrString) (string, error) {
	n, ok := podspec.ResolvePort(c, p)
	if !ok {
		return "", fmt.Errorf("container %s has no port %s", c.Name, p.String())
	}
	return strconv.Itoa(n), nil
}

// dialers make the connections of probes.
type dialers struct {
	plain      net.Dialer
	insecurely *tls.Config
}

func newDialers() dialers {
	return dialers{plain: net.Dialer{KeepAlive: -1, Control: linger}, insecurely: insecurely()}
}

// transport makes the connections of one HTTP probe, each used once: a kept one says
// nothing about whether another can be made. Probes that shared a transport would
// share a connection of HTTP/2 too, which by TLS is spoken with whoever likes to.
func (d *dialers) transport(h2c bool) *http.Transport {
	t := &http.Transport{
		DialContext: d.plain.DialContext, TLSClientConfig: d.insecurely.Clone(), ForceAttemptHTTP2: true,
		DisableKeepAlives: true, DisableCompression: true, Proxy: nil,
		MaxResponseHeaderBytes: 64 << 10,
	}
	if h2c {
		t.Protocols = new(http.Protocols)
		t.Protocols.SetUnencryptedHTTP2(true)
	}
	return t
}

// insecurely is TLS as probes want it: a certificate that nobody vouches for is
// no sign of bad health.
func insecurely() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true} //nolint:gosec // as the fields' documentation has it
}

// linger has a closed connection give its port back within a second, where many
// probes would use them up.
func linger(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		// One that cannot be set is no reason not to connect.
		_ = syscall.SetsockoptLinger(int(fd), syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1, Linger: 1})
	})
}

// tooLate reports whether an error means that nothing came in time.
func tooLate(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

func (o *Manager) tcpRunner(x *probe, c *corev1.Container, a *corev1.TCPSocketAction) func(context.Context) answer {
	port, err := portOf(c, a.Port)
	if err != nil {
		return never(err)
	}
	at, err := x.address(a.Host, port)
	if err != nil {
		return never(err)
	}
	timeout := x.timeout
	return func(ctx context.Context) answer { return o.dial.tcp(ctx, at, timeout) }
}

// tcp asks whether a connection can be made.
func (d *dialers) tcp(ctx context.Context, at string, timeout time.Duration) answer {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := d.plain.DialContext(ctx, "tcp", at)
	if err != nil {
		return answer{result: Failure, output: err.Error(), late: tooLate(err)}
	}
	_ = conn.Close() // it could be made: that was the question
	return answer{result: Success}
}
