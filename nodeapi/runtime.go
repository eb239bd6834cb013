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

// NewRuntimeExecutor prepares to join streams to the runtime's streaming server at
// target, as ExecURL and Attach give it. The error of a command that ended with
// another code than 0 is an exec.CodeExitError of client-go; that of one whose
// end the runtime does not tell is ErrUnread.
func NewRuntimeExecutor(target string) (remotecommand.Executor, error) {
	u, err := url.Parse(target)
	if err != nil {
		return nil, fmt.Errorf("the streaming URL of the runtime: %w", err)
	}
	j := &joined{}
	transport := &http.Transport{
		// The runtime makes itself a certificate that nobody could check, and its
		// URL, good for one use, came over the root-only socket.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: u.Scheme == "https"}, //nolint:gosec // see above
		DialContext:     j.dial,
		Proxy:           nil, // the server is on this node: never through a proxy of the environment
	}
	upgrade, err := spdystream.NewRoundTripperWithConfig(spdystream.RoundTripperConfig{UpgradeTransport: transport, PingPeriod: 5 * time.Second})
	if err != nil {
		return nil, fmt.Errorf("the streaming server of the runtime: %w", err)
	}
	j.UpgradeRoundTripper = upgrade
	j.Executor, err = remotecommand.NewSPDYExecutorForTransports(upgrade, spdy.NewUpgraderForStreaming(j), http.MethodPost, u)
	if err != nil {
		return nil, fmt.Errorf("the streaming server of the runtime: %w", err)
	}
	return j, nil
}

// ErrStdinNotRead is the end of streams whose other side has closed its outputs and
// reads no more of its input.
var ErrStdinNotRead = errors.New("the command reads no more of its input and has closed its outputs, and the runtime does not tell how it has ended")

// joined are the streams of one connection to the runtime's streaming server.
type joined struct {
	remotecommand.Executor
	httpstream.UpgradeRoundTripper
	mu   sync.Mutex
	conn net.Conn
}

func (j *joined) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.conn = conn
	return conn, err
}

// NewConnection is what the executor makes its streams on.
func (j *joined) NewConnection(resp *http.Response) (httpstream.Connection, error) {
	c, err := j.UpgradeRoundTripper.NewConnection(resp)
	if err != nil {
		return nil, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return severed{c, j.conn}, nil
}

// severed is a connection that is closed from below. To say goodbye on each of
// its streams would wait behind input that nobody reads any more.
type severed struct {
	httpstream.Connection
	under net.Conn
}

// Close closes it at once; what was not sent yet never is.
func (s severed) Close() error {
	return errors.Join(s.under.Close(), s.Connection.Close())
}

// Stream is StreamWithContext without a context.
func (j *joined) Stream(o remotecommand.StreamOptions) error {
	return j.StreamWithContext(context.Background(), o)
}

// StreamWithContext joins the streams until the other side ends or ctx does.
func (j *joined) StreamWithContext(ctx context.Context, o remotecommand.StreamOptions) error {
	// The library's own log has nothing that the error does not say.
	ctx, cancel := context.WithCancelCause(klog.NewContext(ctx, klog.Logger{}))
	defer cancel(nil)
	if o.Stdin != nil && (o.Stdout != nil || o.Stderr != nil) {
		f := &flow{unread: func() { cancel(ErrStdinNotRead) }}
		defer f.end()
		o.Stdin = feeding{o.Stdin, f}
		o.Stdout, o.Stderr = f.output(o.Stdout), f.output(o.Stderr)
	}
	err := j.Executor.StreamWithContext(ctx, o)
	if errors.Is(err, context.Canceled) && errors.Is(context.Cause(ctx), ErrStdinNotRead) {
		return ErrStdinNotRead
	}
	return err
}

// unreadFor is how long input may wait for somebody to read it after the outputs
// have ended. The runtime tells the end of a command milliseconds after that;
// containerd 2.4 never does while input is left over.
const unreadFor = 5 * time.Second

// flow watches whether the other side of an exec is there: one that has closed
// its outputs and takes no input has ended.
type flow struct {
	unread func() // called when it has

	mu      sync.Mutex
	open    int  // outputs that have not ended
	waiting bool // input was read that is not yet on its way
	over    bool
	timer   *time.Timer
}

// set changes what is known and starts or stops the clock accordingly.
func (f *flow) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	if f.timer != nil {
		f.timer.Stop()
		f.timer = nil
	}
	if f.open == 0 && f.waiting && !f.over {
		f.timer = time.AfterFunc(unreadFor, f.unread)
	}
}

func (f *flow) end() { f.set(func() { f.over = true }) }

// output counts w, of which nil stays nil.
func (f *flow) output(w io.Writer) io.Writer {
	if w == nil {
		return nil
	}
	f.open++
	return ending{w, f}
}

// ending is an output that tells its end.
type ending struct {
	io.Writer
	flow *flow
}

// ReadFrom is what io.Copy calls, and the one place where an output's end shows.
func (e ending) ReadFrom(r io.Reader) (int64, error) {
	defer e.flow.set(func() { e.flow.open-- })
	return io.Copy(struct{ io.Writer }{e.Writer}, r)
}

// feeding is an input that tells whether what was read of it is on its way: the
// next read comes after that.
type feeding struct {
	io.Reader
	flow *flow
}

func (f feeding) Read(b []byte) (int, error) {
	f.flow.set(func() { f.flow.waiting = false })
	n, err := f.Reader.Read(b)
	f.flow.set(func() { f.flow.waiting = n > 0 })
	return n, err
}
