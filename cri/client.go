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
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/cri/criconfig"
)

// Limits of a connection. One connection carries all calls to an endpoint, so the flow-control
// windows are fixed instead of measured by pings, and the buffers are small.
const (
	maxMessage   = 16 << 20
	bufferSize   = 8 << 10
	streamWindow = 256 << 10
	connWindow   = 1 << 20
)

// Options configures a Client.
type Options struct {
	// RuntimeEndpoint is unix:///path or the absolute path of a socket.
	RuntimeEndpoint string
	// ImageEndpoint is the endpoint of the image service. Empty: RuntimeEndpoint.
	ImageEndpoint string
	// Deadlines of the verbs. Zero fields use the defaults.
	Deadlines Deadlines
	// UnaryInterceptors wrap every call except the event stream, outermost first.
	UnaryInterceptors []grpc.UnaryClientInterceptor
	// Node returns the facts about the host that criconfig needs. It is called for each request.
	Node func() criconfig.Node
	// LogLinkDir is the directory of the log links (/var/log/containers). Empty: no links.
	LogLinkDir string
	// Warn receives problems that do not fail a call, for example a log link that cannot be
	// created. May be nil.
	Warn func(error)
	// WarnPod receives the features that a pod does not get although it runs, with an event reason.
	// May be nil.
	WarnPod func(pod *corev1.Pod, reason, message string)
	// ExitRecorder knows exit codes that the runtime does not know. May be nil.
	ExitRecorder ExitRecorder
	// NetworksAttached reports whether a sandbox that needs networks beyond the runtime's own has
	// all of them, and if not, whether attaching them is in progress. Nil: no sandbox needs any.
	NetworksAttached func(uid, sandbox string) (done, attaching bool)
	// Instance is the value of criconfig.InstanceLabel on berth's own objects. Objects with another
	// value belong to another berth. Empty: all objects with berth's owner label are its own.
	Instance string
	// OwnsUnlabeled reports whether objects of the pod that have berth's owner label but no instance,
	// because an older release created them, are berth's own. Nil: they are.
	OwnsUnlabeled func(uid types.UID) bool
	// Unmarked reports whether the pod has a directory without the mark of berth. Its objects are foreign
	// even with the labels of this instance: the pod was handed over to the kubelet. nil: no pod has.
	Unmarked func(uid types.UID) bool
	// OnEventStream is called when an event stream was obtained, and with the error when one could not
	// be established or failed. May be nil.
	OnEventStream func(error)
	// OnEventDelay receives the time from each event in the runtime to its receipt. May be nil.
	OnEventDelay func(time.Duration)
	// Conn replaces dialing for both services: an in-process runtime.
	Conn grpc.ClientConnInterface
}

// Client is a client of one container runtime. It is safe for concurrent use.
type Client struct {
	runtime          runtimeapi.RuntimeServiceClient
	images           runtimeapi.ImageServiceClient
	conns            []*grpc.ClientConn // opened by the client itself
	deadlines        Deadlines
	node             func() criconfig.Node
	links            logLinks
	warn             func(error)
	warnPod          func(pod *corev1.Pod, reason, message string)
	onEventStream    func(error)
	onEventDelay     func(time.Duration)
	netnsCache       netnsCache
	cache            runtimeCache
	exits            ExitRecorder
	networksAttached func(uid, sandbox string) (done, attaching bool)
	instance         string
	ownsUnlabeled    func(uid types.UID) bool
	unmarked         func(uid types.UID) bool
	adoptions        adoptions

	// containerd's own services: see task.go, leaks.go and import_image.go.
	tasks         tasks.TasksClient
	containers    containers.ContainersClient
	sandboxStore  sandboxapi.StoreClient
	leases        leases.LeasesClient
	snapshots     snapshots.SnapshotsClient
	content       content.ContentClient
	imageServices imageServices // see import_image.go
	sockets       socketDirs
}

// Dial returns a client. It connects on the first call and reconnects whenever the connection is
// lost. While the runtime is not listening, calls fail immediately with kind plan.Unavailable. Dial
// itself fails only if the options are invalid.
func Dial(_ context.Context, o Options) (*Client, error) {
	c := &Client{
		deadlines:        o.Deadlines.withDefaults(),
		node:             o.Node,
		links:            logLinks{dir: o.LogLinkDir},
		warn:             o.Warn,
		warnPod:          o.WarnPod,
		onEventStream:    o.OnEventStream,
		onEventDelay:     o.OnEventDelay,
		exits:            o.ExitRecorder,
		networksAttached: o.NetworksAttached,
		instance:         o.Instance,
		ownsUnlabeled:    o.OwnsUnlabeled,
		unmarked:         o.Unmarked,
	}
	if c.exits == nil {
		c.exits = noExitRecorder{}
	}
	if c.onEventStream == nil {
		c.onEventStream = func(error) {}
	}
	if c.onEventDelay == nil {
		c.onEventDelay = func(time.Duration) {}
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
		c.setConns(o.Conn, o.Conn)
		return c, nil
	}
	runtime, err := c.dial("containerRuntimeEndpoint", o.RuntimeEndpoint, o.UnaryInterceptors)
	if err != nil {
		return nil, err
	}
	images := runtime
	if o.ImageEndpoint != "" && o.ImageEndpoint != o.RuntimeEndpoint {
		if images, err = c.dial("imageServiceEndpoint", o.ImageEndpoint, o.UnaryInterceptors); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	c.setConns(runtime, images)
	return c, nil
}

func (c *Client) setConns(runtime, images grpc.ClientConnInterface) {
	c.runtime = runtimeapi.NewRuntimeServiceClient(runtime)
	c.images = runtimeapi.NewImageServiceClient(images)
	c.tasks = tasks.NewTasksClient(runtime)
	c.containers = containers.NewContainersClient(runtime)
	c.sandboxStore = sandboxapi.NewStoreClient(runtime)
	c.leases = leases.NewLeasesClient(runtime)
	c.snapshots = snapshots.NewSnapshotsClient(runtime)
	c.content = content.NewContentClient(images)
	c.imageServices = newImageServices(runtime)
}

func (c *Client) dial(field, endpoint string, unary []grpc.UnaryClientInterceptor) (*grpc.ClientConn, error) {
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
		// Reconnect to a restarted runtime within about a second.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
				MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	c.conns = append(c.conns, conn)
	return conn, nil
}

// socketPath returns the path of the socket that an endpoint names.
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

// Close closes the connections, which ends all calls in progress.
func (c *Client) Close() error {
	var errs []error
	for _, conn := range c.conns {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}

// ImageService returns the image service. Its calls have no deadline, and its errors are the
// runtime's own. See package images.
func (c *Client) ImageService() runtimeapi.ImageServiceClient { return c.images }

// Version returns the runtime's name and version, for example containerd 2.4.2.
func (c *Client) Version(ctx context.Context) (name, version string, err error) {
	var resp *runtimeapi.VersionResponse
	err = c.call(ctx, verbVersion, "", c.deadlines.Status, func(ctx context.Context) (err error) {
		resp, err = c.runtime.Version(ctx, &runtimeapi.VersionRequest{})
		return err
	})
	return resp.GetRuntimeName(), resp.GetRuntimeVersion(), err
}

// call runs one CRI call within its deadline and maps its error. The parameter on names the object
// of the call in errors.
func (c *Client) call(ctx context.Context, v verb, on string, deadline time.Duration,
	f func(context.Context) error) error {
	inner := ctx
	if v.creates() {
		var cancel context.CancelFunc
		inner, cancel = withCancelGrace(inner, c.deadlines.CancelGrace)
		defer cancel()
	}
	if deadline > 0 {
		var cancel context.CancelFunc
		inner, cancel = context.WithTimeout(inner, deadline)
		defer cancel()
	}
	return mapError(ctx, v, on, f(inner))
}
