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

// Options of a Runtime. The zero value is a containerd 2.4 that needs no time.
type Options struct {
	// Containerd16 is a runtime as containerd 1.6: without events, without RuntimeConfig,
	// and with nothing to tell of its handlers.
	Containerd16 bool
	// WriteFiles lets containers write their logs and termination messages to the
	// host, at the paths that they were given.
	WriteFiles bool
	// Latency is how long the calls of a verb take, by RPC name; of a stream, how
	// long until it begins.
	Latency map[string]time.Duration
	// Steps gives what a container does, instead of its command and arguments.
	// Nil result: as it says itself.
	Steps func(*runtimeapi.ContainerConfig) []string
	// CgroupDriver is what RuntimeConfig tells.
	CgroupDriver runtimeapi.CgroupDriver
	// ImageFilesystem and ContainerDisk are where it says that images, and what containers
	// write, lie. Empty: where containerd keeps images; of containers it says nothing.
	ImageFilesystem, ContainerFilesystem string
}

// Runtime is a container runtime in memory. It is safe for concurrent use.
type Runtime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer

	opts Options
	ctx  context.Context // ends with Close
	end  context.CancelFunc
	work sync.WaitGroup

	mu         sync.Mutex
	ids        int
	sandboxes  map[string]*sandbox
	containers map[string]*container
	names      map[string]string // reserved name: ID
	images     map[string]*runtimeapi.Image
	published  map[string]PublishedImage
	faults     []*fault
	calls      map[string]int
	followers  map[*follower]bool
	network    string // why it is not ready; empty: ready
	down       bool
	cut        chan struct{} // closed when calls and streams under way are cut off
}

// New returns a runtime with nothing in it. Close it.
func New(o Options) *Runtime {
	ctx, end := context.WithCancel(context.Background())
	return &Runtime{
		opts: o, ctx: ctx, end: end,
		sandboxes:  map[string]*sandbox{},
		containers: map[string]*container{},
		names:      map[string]string{},
		images:     map[string]*runtimeapi.Image{},
		published:  map[string]PublishedImage{},
		calls:      map[string]int{},
		followers:  map[*follower]bool{},
		cut:        make(chan struct{}),
	}
}

// Close ends all calls, streams and processes and waits for them.
func (r *Runtime) Close() {
	r.end()
	r.work.Wait()
}

// Down makes the runtime unreachable: calls and streams under way are cut off
// and new ones fail until Up. Containers go on.
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

// Restart cuts off all calls and streams under way. Containers go on.
func (r *Runtime) Restart() {
	r.Down()
	r.Up()
}

// SetNetworkNotReady says why the network is not ready; empty: it is.
func (r *Runtime) SetNetworkNotReady(why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.network = why
}

// Sandbox is a sandbox as tests want to see it.
type Sandbox struct {
	ID, UID, Namespace, Name string
	Attempt                  uint32
	Ready                    bool
	IP                       string
}

// Container is a container as tests want to see it.
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
		out = append(out, c.seen())
	}
	slices.SortFunc(out, func(a, b Container) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

func (c *container) seen() Container {
	m := c.sandbox.config.GetMetadata()
	return Container{
		ID: c.id, SandboxID: c.sandbox.id, UID: m.GetUid(), Pod: m.GetName(), Name: c.config.GetMetadata().GetName(),
		Attempt: c.config.GetMetadata().GetAttempt(), State: c.state, ExitCode: c.exitCode, Reason: c.reason,
	}
}

// FindContainer returns the newest container of that name in the pod of that name.
func (r *Runtime) FindContainer(pod, name string) (Container, bool) {
	all := r.Containers()
	for _, c := range slices.Backward(all) {
		if c.Pod == pod && c.Name == name {
			return c, true
		}
	}
	return Container{}, false
}

// CallCount returns how often a verb was called, by its RPC name.
func (r *Runtime) CallCount(rpc string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[rpc]
}

// newID returns the next ID; the lock is held. IDs look like containerd's and
// sort by age.
func (r *Runtime) newID() string {
	r.ids++
	return fmt.Sprintf("%016x%048x", r.ids, 0xfa4e)
}

// reserve takes a name for an object that is going to be; the lock is held.
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

// selected reports whether labels have all that a selector wants.
func selected(labels, selector map[string]string) bool {
	for k, v := range selector {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}
