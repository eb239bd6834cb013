package cri

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/api/services/containers/v1"
	"github.com/containerd/containerd/api/services/content/v1"
	"github.com/containerd/containerd/api/services/leases/v1"
	sandboxapi "github.com/containerd/containerd/api/services/sandbox/v1"
	"github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/api/services/tasks/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/cri/criconfig"
)

// Sizes of the connection. One connection carries all calls of an endpoint, so
// windows are fixed rather than measured by pings, and buffers are small.
const (
	maxMessage   = 16 << 20
	bufferSize   = 8 << 10
	streamWindow = 256 << 10
	connWindow   = 1 << 20
)

// Options says where the runtime is and how to speak to it.
type Options struct {
	// RuntimeEndpoint is unix:///path or an absolute path of a socket.
	RuntimeEndpoint string
	// ImageEndpoint is where the image service listens; empty: RuntimeEndpoint.
	ImageEndpoint string
	// Deadlines of the verbs; zero fields take the defaults.
	Deadlines Deadlines
	// UnaryInterceptors are called around every call but the event stream, outermost first.
	UnaryInterceptors []grpc.UnaryClientInterceptor
	// Node returns what criconfig must know of this host, at each call anew.
	Node func() criconfig.Node
	// LogLinkDir is the folder of the log links (/var/log/containers); empty: none.
	LogLinkDir string
	// Warn is told of what went wrong without making a call fail, such as a log
	// link that could not be made. Nil: nobody is.
	Warn func(error)
	// WarnPod is told of what a pod does not get although it runs, with the reason of
	// an event. Nil: nobody is.
	WarnPod func(pod *corev1.Pod, reason, message string)
	// ExitRecorder knows how containers ended where the runtime does not. Nil: nobody does.
	ExitRecorder ExitRecorder
	// NetworksAttached tells of a sandbox that is to have networks which the runtime does not
	// make whether it has them all, and if not whether they may be under way. Nil:
	// no sandbox is.
	NetworksAttached func(uid, sandbox string) (done, making bool)
	// Conn is used for both services instead of dialling an endpoint: a runtime
	// in the same process.
	Conn grpc.ClientConnInterface
}

// Client speaks to one runtime. It is safe for concurrent use.
type Client struct {
	runtime   runtimeapi.RuntimeServiceClient
	images    runtimeapi.ImageServiceClient
	conns     []*grpc.ClientConn // that it opened itself
	deadlines Deadlines
	node      func() criconfig.Node
	links     logLinks
	warn      func(error)
	warnPod   func(pod *corev1.Pod, reason, message string)
	netns     netnsPaths
	facts     runtimeFacts
	exits     ExitRecorder
	attached  func(uid, sandbox string) (done, making bool)

	// containerd's own services: see task.go, forgotten.go and downloads.go.
	tasks      tasks.TasksClient
	containers containers.ContainersClient
	stored     sandboxapi.StoreClient
	leases     leases.LeasesClient
	snapshots  snapshots.SnapshotsClient
	content    content.ContentClient
	store      store // see store.go
	sockets    socketDirs
}

// Dial prepares a client. It connects with the first call and again whenever
// the connection is lost; while nobody listens, calls fail at once with kind
// plan.Unavailable. Dial itself fails only for options that cannot be right.
func Dial(_ context.Context, o Options) (*Client, error) {
	c := &Client{
		deadlines: o.Deadlines.withDefaults(),
		node:      o.Node,
		links:     logLinks{dir: o.LogLinkDir},
		warn:      o.Warn,
		warnPod:   o.WarnPod,
		exits:     o.ExitRecorder,
		attached:  o.NetworksAttached,
	}
	if c.exits == nil {
		c.exits = noExits{}
	}
	if c.node == nil {
		c.node = func() criconfig.Node { return criconfig.Node{} }
	}
	if c.warn == nil {
		c.warn = func(error) {}
	}
	if c.warnPod == nil {
		c.warnPod = func(*corev1.Pod, string, string) {}
	}
	if o.Conn != nil {
		c.serve(o.Conn, o.Conn)
		return c, nil
	}
	runtime, err := c.open("containerRuntimeEndpoint", o.RuntimeEndpoint, o.UnaryInterceptors)
	if err != nil {
		return nil, err
	}
	images := runtime
	if o.ImageEndpoint != "" && o.ImageEndpoint != o.RuntimeEndpoint {
		if images, err = c.open("imageServiceEndpoint", o.ImageEndpoint, o.UnaryInterceptors); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	c.serve(runtime, images)
	return c, nil
}

func (c *Client) serve(runtime, images grpc.ClientConnInterface) {
	c.runtime = runtimeapi.NewRuntimeServiceClient(runtime)
	c.images = runtimeapi.NewImageServiceClient(images)
	c.tasks = tasks.NewTasksClient(runtime)
	c.containers = containers.NewContainersClient(runtime)
	c.stored = sandboxapi.NewStoreClient(runtime)
	c.leases = leases.NewLeasesClient(runtime)
	c.snapshots = snapshots.NewSnapshotsClient(runtime)
	c.content = content.NewContentClient(images)
	c.store = newStore(runtime)
}

func (c *Client) open(field, endpoint string, unary []grpc.UnaryClientInterceptor) (*grpc.ClientConn, error) {
	path, err := socketPath(endpoint)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	conn, err := grpc.NewClient("unix://"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(unary...),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithReadBufferSize(bufferSize),
		grpc.WithWriteBufferSize(bufferSize),
		grpc.WithInitialWindowSize(streamWindow),
		grpc.WithInitialConnWindowSize(connWindow),
		grpc.WithIdleTimeout(0),
		grpc.WithDisableServiceConfig(),
		grpc.WithNoProxy(),
		grpc.WithUserAgent("berth"),
		// A restarted runtime is found again within a second or so.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	c.conns = append(c.conns, conn)
	return conn, nil
}

// socketPath reads an endpoint.
func socketPath(endpoint string) (string, error) {
	if filepath.IsAbs(endpoint) {
		return filepath.Clean(endpoint), nil
	}
	u, err := url.Parse(endpoint)
	if err != nil {
		return "", fmt.Errorf("%q is not unix:///path: %w", endpoint, err)
	}
	if u.Scheme != "unix" || u.Host != "" || !filepath.IsAbs(u.Path) {
		return "", fmt.Errorf("%q is not unix:///path of a socket", endpoint)
	}
	return filepath.Clean(u.Path), nil
}

// Close ends the connections and with them the calls under way.
func (c *Client) Close() error {
	var errs []error
	for _, conn := range c.conns {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}

// ImageService returns the image service. Its calls have no deadline and its errors
// are the runtime's own: see package images.
func (c *Client) ImageService() runtimeapi.ImageServiceClient { return c.images }

// Version returns the runtime's name and version, such as containerd 2.4.2.
func (c *Client) Version(ctx context.Context) (name, version string, err error) {
	var resp *runtimeapi.VersionResponse
	err = c.call(ctx, verbVersion, "", c.deadlines.Status, func(ctx context.Context) (err error) {
		resp, err = c.runtime.Version(ctx, &runtimeapi.VersionRequest{})
		return err
	})
	return resp.GetRuntimeName(), resp.GetRuntimeVersion(), err
}

// call runs one CRI call within its deadline and maps its error. On names what
// the call is about in errors.
func (c *Client) call(ctx context.Context, v verb, on string, deadline time.Duration, f func(context.Context) error) error {
	inner := ctx
	if v.makes() {
		var cancel context.CancelFunc
		inner, cancel = gently(inner, c.deadlines.CancelGrace)
		defer cancel()
	}
	if deadline > 0 {
		var cancel context.CancelFunc
		inner, cancel = context.WithTimeout(inner, deadline)
		defer cancel()
	}
	return mapError(ctx, v, on, f(inner))
}
