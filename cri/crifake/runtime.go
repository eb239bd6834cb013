package crifake

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Options of a Runtime. The zero value is a containerd 2.4 without latency.
type Options struct {
	// Containerd16 emulates containerd 1.6: no events, no RuntimeConfig and no handler features.
	Containerd16 bool
	// WriteFiles lets containers write their logs and termination messages to the host, at the
	// configured paths.
	WriteFiles bool
	// Latency is the duration of calls by RPC name, and for a stream the delay until it starts.
	Latency map[string]time.Duration
	// Steps overrides what a container does. A nil result means its command and arguments.
	Steps func(*runtimeapi.ContainerConfig) []string
	// CgroupDriver is reported by RuntimeConfig.
	CgroupDriver runtimeapi.CgroupDriver
	// ImageFilesystem and ContainerFilesystem are the reported mount points of images and writable
	// layers. Empty: containerd's default for images, and none for containers.
	ImageFilesystem, ContainerFilesystem string
}

// Runtime is an in-memory container runtime. It is safe for concurrent use.
type Runtime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer

	opts       Options
	ctx        context.Context // ends with Close
	end        context.CancelFunc
	goroutines sync.WaitGroup

	mu          sync.Mutex
	ids         int
	sandboxes   map[string]*sandbox
	containers  map[string]*container
	names       map[string]string // ID by reserved name
	images      map[string]*runtimeapi.Image
	published   map[string]PublishedImage
	faults      []*fault
	calls       map[string]int
	subscribers map[*subscriber]bool
	network     string // why it is not ready; empty: ready
	down        bool
	cut         chan struct{} // closed when calls and streams in progress are cut
}

// New returns an empty runtime. The caller must close it.
func New(o Options) *Runtime {
	ctx, end := context.WithCancel(context.Background())
	return &Runtime{
		opts: o, ctx: ctx, end: end,
		sandboxes:   map[string]*sandbox{},
		containers:  map[string]*container{},
		names:       map[string]string{},
		images:      map[string]*runtimeapi.Image{},
		published:   map[string]PublishedImage{},
		calls:       map[string]int{},
		subscribers: map[*subscriber]bool{},
		cut:         make(chan struct{}),
	}
}

// Close ends all calls, streams and processes and waits for them.
func (r *Runtime) Close() {
	r.end()
	r.goroutines.Wait()
}

// Down makes the runtime unavailable: calls and streams in progress are cut and new ones fail until
// Up. Containers keep running.
func (r *Runtime) Down() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = true
	close(r.cut)
	r.cut = make(chan struct{})
}

// Up ends Down.
func (r *Runtime) Up() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = false
}

// Restart cuts all calls and streams in progress. Containers keep running.
func (r *Runtime) Restart() {
	r.Down()
	r.Up()
}

// SetNetworkNotReady sets why the network is not ready. Empty: it is ready.
func (r *Runtime) SetNetworkNotReady(why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.network = why
}

// Sandbox is a sandbox for assertions in tests.
type Sandbox struct {
	ID, UID, Namespace, Name string
	Attempt                  uint32
	Ready                    bool
	IP                       string
}

// Container is a container for assertions in tests.
type Container struct {
	ID, SandboxID, UID, Pod, Name string
	Attempt                       uint32
	State                         runtimeapi.ContainerState
	ExitCode                      int32
	Reason                        string
}

// Sandboxes returns all sandboxes, oldest first.
func (r *Runtime) Sandboxes() []Sandbox {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Sandbox
	for _, s := range r.sandboxes {
		m := s.config.GetMetadata()
		out = append(out, Sandbox{
			ID: s.id, UID: m.GetUid(), Namespace: m.GetNamespace(), Name: m.GetName(),
			Attempt: m.GetAttempt(), Ready: s.ready, IP: s.ip,
		})
	}
	slices.SortFunc(out, func(a, b Sandbox) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// Containers returns all containers, oldest first.
func (r *Runtime) Containers() []Container {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Container
	for _, c := range r.containers {
		out = append(out, c.snapshot())
	}
	slices.SortFunc(out, func(a, b Container) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

func (c *container) snapshot() Container {
	m := c.sandbox.config.GetMetadata()
	return Container{
		ID: c.id, SandboxID: c.sandbox.id, UID: m.GetUid(), Pod: m.GetName(), Name: c.config.GetMetadata().GetName(),
		Attempt: c.config.GetMetadata().GetAttempt(), State: c.state, ExitCode: c.exitCode, Reason: c.reason,
	}
}

// FindContainer returns the newest container with that name in the pod with that name.
func (r *Runtime) FindContainer(pod, name string) (Container, bool) {
	all := r.Containers()
	for _, c := range slices.Backward(all) {
		if c.Pod == pod && c.Name == name {
			return c, true
		}
	}
	return Container{}, false
}

// CallCount returns the number of calls of an RPC.
func (r *Runtime) CallCount(rpc string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[rpc]
}

// newID returns the next ID. The caller holds the lock. IDs have containerd's format and sort by
// age.
func (r *Runtime) newID() string {
	r.ids++
	return fmt.Sprintf("%016x%048x", r.ids, 0xfa4e)
}

// reserve reserves the name of a new object. The caller holds the lock.
func (r *Runtime) reserve(kind, name, id string) error {
	if holder, taken := r.names[name]; taken {
		code := codes.FailedPrecondition
		if r.opts.Containerd16 {
			code = codes.Unknown
		}
		return status.Errorf(code, "failed to reserve %s name %q: name %q is reserved for %q", kind, name, name, holder)
	}
	r.names[name] = id
	return nil
}

func notFound(format string, args ...any) error {
	return status.Error(codes.NotFound, fmt.Sprintf(format, args...)+": not found")
}

// selected reports whether the labels match a selector.
func selected(labels, selector map[string]string) bool {
	for k, v := range selector {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}
