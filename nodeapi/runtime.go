package nodeapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"
	spdystream "k8s.io/streaming/pkg/httpstream/spdy"
)

// NewRuntimeExecutor returns an executor that connects streams to the runtime's streaming server at
// target, a URL from ExecURL or Attach. A command that exits with a code other than 0 returns an
// exec.CodeExitError of client-go. ErrStdinNotRead is returned if the runtime does not report the
// exit.
func NewRuntimeExecutor(target string) (remotecommand.Executor, error) {
	u, err := url.Parse(target)
	if err != nil {
		return nil, fmt.Errorf("parse streaming URL of the runtime: %w", err)
	}
	j := &runtimeExecutor{}
	transport := &http.Transport{
		// The runtime uses a self-signed certificate that cannot be verified. The URL is
		// valid for one use and was received over a socket that only root can access.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: u.Scheme == "https"}, //nolint:gosec // see above
		DialContext:     j.dial,
		Proxy:           nil, // the server is on this node: never use a proxy from the environment
	}
	upgrade, err := spdystream.NewRoundTripperWithConfig(
		spdystream.RoundTripperConfig{UpgradeTransport: transport, PingPeriod: 5 * time.Second},
	)
	if err != nil {
		return nil, fmt.Errorf("streaming server of the runtime: %w", err)
	}
	j.UpgradeRoundTripper = upgrade
	j.Executor, err = remotecommand.NewSPDYExecutorForTransports(
		upgrade,
		spdy.NewUpgraderForStreaming(j),
		http.MethodPost,
		u,
	)
	if err != nil {
		return nil, fmt.Errorf("streaming server of the runtime: %w", err)
	}
	return j, nil
}

// ErrStdinNotRead is returned when the remote side has closed its outputs and no longer reads its
// input.
var ErrStdinNotRead = errors.New(
	"the command closed its outputs and no longer reads its input, and the runtime does not report its exit",
)

// runtimeExecutor is an executor for one connection to the runtime's streaming server.
type runtimeExecutor struct {
	remotecommand.Executor
	httpstream.UpgradeRoundTripper
	mu   sync.Mutex
	conn net.Conn
}

func (j *runtimeExecutor) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.conn = conn
	return conn, err
}

// NewConnection is called by the executor to create the connection.
func (j *runtimeExecutor) NewConnection(resp *http.Response) (httpstream.Connection, error) {
	c, err := j.UpgradeRoundTripper.NewConnection(resp)
	if err != nil {
		return nil, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return abortableConnection{c, j.conn}, nil
}

// abortableConnection closes the underlying connection. A regular close of each stream would block
// behind input that is not read.
type abortableConnection struct {
	httpstream.Connection
	under net.Conn
}

// Close closes the connection at once and discards unsent data.
func (s abortableConnection) Close() error {
	return errors.Join(s.under.Close(), s.Connection.Close())
}

// Stream is StreamWithContext with the background context.
func (j *runtimeExecutor) Stream(o remotecommand.StreamOptions) error {
	return j.StreamWithContext(context.Background(), o)
}

// StreamWithContext copies the streams until the remote side ends or ctx ends.
func (j *runtimeExecutor) StreamWithContext(ctx context.Context, o remotecommand.StreamOptions) error {
	// The library logs nothing that is not in the returned error.
	ctx, cancel := context.WithCancelCause(klog.NewContext(ctx, klog.Logger{}))
	defer cancel(nil)
	if o.Stdin != nil && (o.Stdout != nil || o.Stderr != nil) {
		f := &stdinWatch{unread: func() { cancel(ErrStdinNotRead) }}
		defer f.end()
		o.Stdin = trackedInput{o.Stdin, f}
		o.Stdout, o.Stderr = f.output(o.Stdout), f.output(o.Stderr)
	}
	err := j.Executor.StreamWithContext(ctx, o)
	if errors.Is(err, context.Canceled) && errors.Is(context.Cause(ctx), ErrStdinNotRead) {
		return ErrStdinNotRead
	}
	return err
}

// stdinReadTimeout limits how long input may stay unread after the outputs have ended. The runtime
// reports the exit of a command within milliseconds after that. containerd 2.4 never reports it
// while input is left.
const stdinReadTimeout = 5 * time.Second

// stdinWatch detects a terminated remote command: it has closed its outputs and does not read its
// input.
type stdinWatch struct {
	unread func() // called when the command is considered terminated

	mu      sync.Mutex
	open    int  // outputs that are still open
	waiting bool // input was read and is not sent yet
	ended   bool
	timer   *time.Timer
}

// set changes the state and starts or stops the timer accordingly.
func (f *stdinWatch) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	if f.timer != nil {
		f.timer.Stop()
		f.timer = nil
	}
	if f.open == 0 && f.waiting && !f.ended {
		f.timer = time.AfterFunc(stdinReadTimeout, f.unread)
	}
}

func (f *stdinWatch) end() { f.set(func() { f.ended = true }) }

// output registers w. A nil writer stays nil.
func (f *stdinWatch) output(w io.Writer) io.Writer {
	if w == nil {
		return nil
	}
	f.open++
	return trackedOutput{w, f}
}

// trackedOutput reports the end of an output.
type trackedOutput struct {
	io.Writer
	flow *stdinWatch
}

// ReadFrom is called by io.Copy. Its return is the only sign of the end of an output.
func (e trackedOutput) ReadFrom(r io.Reader) (int64, error) {
	defer e.flow.set(func() { e.flow.open-- })
	return io.Copy(struct{ io.Writer }{e.Writer}, r)
}

// trackedInput reports whether input was read that is not sent yet. The next Read means that it
// was.
type trackedInput struct {
	io.Reader
	flow *stdinWatch
}

func (f trackedInput) Read(b []byte) (int, error) {
	f.flow.set(func() { f.flow.waiting = false })
	n, err := f.Reader.Read(b)
	f.flow.set(func() { f.flow.waiting = n > 0 })
	return n, err
}
