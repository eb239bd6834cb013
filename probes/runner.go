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

// runner returns the function that runs a probe once.
func (o *Manager) runner(x *probe, c *corev1.Container) func(context.Context) outcome {
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
	return errorRunner(errors.New("the probe does nothing"))
}

// errorRunner is the runner of an invalid probe.
func errorRunner(err error) func(context.Context) outcome {
	return func(context.Context) outcome { return outcome{result: Unknown, output: err.Error()} }
}

// address returns the address that a probe connects to. host is the host field of the handler,
// usually empty.
func (p *probe) address(host, port string) (string, error) {
	if host == "" {
		host = p.host
	}
	if host == "" {
		return "", errors.New("the pod has no address yet")
	}
	return net.JoinHostPort(host, port), nil
}

// portOf resolves a port number or name.
func portOf(c *corev1.Container, p intstr.IntOrString) (string, error) {
	n, ok := podspec.ResolvePort(c, p)
	if !ok {
		return "", fmt.Errorf("container %s has no port %s", c.Name, p.String())
	}
	return strconv.Itoa(n), nil
}

// dialers create the connections of probes.
type dialers struct {
	plain       net.Dialer
	insecureTLS *tls.Config
}

func newDialers() dialers {
	return dialers{plain: net.Dialer{KeepAlive: -1, Control: linger}, insecureTLS: insecureTLS()}
}

// transport returns the transport of one HTTP probe. Connections are not reused, because an open
// connection does not show whether new ones can be made. A shared transport would also share HTTP/2
// connections, which are negotiated over TLS.
func (d *dialers) transport(h2c bool) *http.Transport {
	t := &http.Transport{
		DialContext: d.plain.DialContext, TLSClientConfig: d.insecureTLS.Clone(), ForceAttemptHTTP2: true,
		DisableKeepAlives: true, DisableCompression: true, Proxy: nil,
		MaxResponseHeaderBytes: 64 << 10,
	}
	if h2c {
		t.Protocols = new(http.Protocols)
		t.Protocols.SetUnencryptedHTTP2(true)
	}
	return t
}

// insecureTLS accepts any certificate: an invalid one does not mean that the container is
// unhealthy.
func insecureTLS() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true} //nolint:gosec // as documented in the API
}

// linger releases the port of a closed connection within a second. Otherwise many probes could
// exhaust the ports.
func linger(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		// The connection works without the option, too.
		_ = syscall.SetsockoptLinger(int(fd), syscall.SOL_SOCKET, syscall.SO_LINGER,
			&syscall.Linger{Onoff: 1, Linger: 1})
	})
}

// isTimeout reports whether an error is a timeout.
func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.As(err, &timeout) && timeout.Timeout()
}

func (o *Manager) tcpRunner(x *probe, c *corev1.Container, a *corev1.TCPSocketAction) func(context.Context) outcome {
	port, err := portOf(c, a.Port)
	if err != nil {
		return errorRunner(err)
	}
	at, err := x.address(a.Host, port)
	if err != nil {
		return errorRunner(err)
	}
	timeout := x.timeout
	return func(ctx context.Context) outcome { return o.dial.tcp(ctx, at, timeout) }
}

// tcp checks whether a connection can be opened.
func (d *dialers) tcp(ctx context.Context, at string, timeout time.Duration) outcome {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := d.plain.DialContext(ctx, "tcp", at)
	if err != nil {
		return outcome{result: Failure, output: err.Error(), timedOut: isTimeout(err)}
	}
	_ = conn.Close() // the probe has succeeded
	return outcome{result: Success}
}
