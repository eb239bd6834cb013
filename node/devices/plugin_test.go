package devices

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// bound is how long a test waits for anything at most.
const bound = 2 * time.Minute

// rig is a running Manager that records its callbacks.
type rig struct {
	*Manager
	t       *testing.T
	dir     string
	changed chan struct{}

	mu      sync.Mutex
	kept    []byte
	flushes int
}

// tempDir is a folder with a short path, as sockets need it.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dp") //nolint:usetesting // shorter than t.TempDir, which has the test's name
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// newRig returns a Manager that is not running. more changes its options.
func newRig(t *testing.T, dir string, more func(*Options)) *rig {
	t.Helper()
	r := &rig{t: t, dir: dir, changed: make(chan struct{}, 1)}
	o := Options{
		Dir: dir, BootID: "boot-1", RetryInterval: 5 * time.Millisecond,
		SaveCheckpoint: func(state []byte) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.kept = state
		},
		Flush: func(context.Context) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.flushes++
			return nil
		},
		OnChange: func() {
			select {
			case r.changed <- struct{}{}:
			default:
			}
		},
	}
	if more != nil {
		more(&o)
	}
	r.Manager = New(o)
	return r
}

func start(t *testing.T, more func(*Options)) *rig {
	t.Helper()
	r := newRig(t, tempDir(t), more)
	r.run()
	return r
}

// run runs the devices until the test ends, or the result is called.
func (r *rig) run() (stop func()) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		if err := r.Run(ctx); err != nil {
			r.t.Error(err)
		}
	}()
	stop = func() { cancel(); <-over }
	r.t.Cleanup(stop)
	r.until("the socket", func() bool { // what lies beside it is removed before
		r.Manager.mu.Lock()
		defer r.Manager.mu.Unlock()
		return r.registering
	})
	return stop
}

func (r *rig) state() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kept
}

// until waits for a condition that a change brings about.
func (r *rig) until(what string, cond func() bool) {
	r.t.Helper()
	late := time.After(bound)
	for !cond() {
		select {
		case <-r.changed:
		case <-late:
			r.t.Fatalf("%s never came: %+v", what, r.Stats())
		}
	}
}

// has waits until a resource has these figures.
func (r *rig) has(name string, capacity, allocatable int64) {
	r.t.Helper()
	n := corev1.ResourceName(name)
	r.until(name, func() bool {
		o := r.NodeResources()
		c, a := o.Capacity[n], o.Allocatable[n]
		_, listed := o.Capacity[n]
		return listed && c.Value() == capacity && a.Value() == allocatable
	})
}

// fake is a device plugin in this process.
type fake struct {
	pluginapi.UnimplementedDevicePluginServer
	t        *testing.T
	dir      string
	name     string // of the resource
	endpoint string
	options  *pluginapi.DevicePluginOptions
	server   *grpc.Server
	news     chan struct{} // a newer list is available; capacity 1

	mu        sync.Mutex
	list      []*pluginapi.Device
	allocated [][]string
	started   [][]string
	preferred func(*pluginapi.ContainerPreferredAllocationRequest) []string
	answer    func(ids []string) (*pluginapi.ContainerAllocateResponse, error)
}

// newFake serves a plugin of these devices, all healthy.
func newFake(t *testing.T, dir, name string, ids ...string) *fake {
	t.Helper()
	f := &fake{
		t:        t,
		dir:      dir,
		name:     name,
		endpoint: filepath.Base(name) + ".sock",
		options:  &pluginapi.DevicePluginOptions{},
		news:     make(chan struct{}, 1),
	}
	f.set(ids, nil)
	f.serve()
	return f
}

func (f *fake) serve() {
	f.t.Helper()
	ln, err := new(net.ListenConfig).Listen(f.t.Context(), "unix", filepath.Join(f.dir, f.endpoint))
	if err != nil {
		f.t.Fatal(err)
	}
	s := grpc.NewServer()
	f.mu.Lock()
	f.server = s
	f.mu.Unlock()
	pluginapi.RegisterDevicePluginServer(s, f)
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = s.Serve(ln) // its end is the test's doing
	}()
	f.t.Cleanup(func() { s.Stop(); <-over })
}

func (f *fake) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.server.Stop()
}

// set replaces the list.
func (f *fake) set(healthy, unhealthy []string) {
	f.mu.Lock()
	f.list = nil
	for _, id := range healthy {
		f.list = append(f.list, &pluginapi.Device{ID: id, Health: pluginapi.Healthy})
	}
	for _, id := range unhealthy {
		f.list = append(f.list, &pluginapi.Device{ID: id, Health: pluginapi.Unhealthy})
	}
	f.mu.Unlock()
	select {
	case f.news <- struct{}{}:
	default:
	}
}

func (f *fake) register() error {
	return register(
		f.t,
		f.dir,
		&pluginapi.RegisterRequest{Version: "v1beta1", Endpoint: f.endpoint, ResourceName: f.name, Options: f.options},
	)
}

func register(t *testing.T, dir string, q *pluginapi.RegisterRequest) error {
	t.Helper()
	conn, err := grpc.NewClient(
		"unix://"+filepath.Join(dir, socketName),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
	)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // the answer is there
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, q, grpc.WaitForReady(true))
	return err
}

// joins registers and waits for the list to be taken in.
func (f *fake) joins(r *rig) *fake {
	f.t.Helper()
	if err := f.register(); err != nil {
		f.t.Fatal(err)
	}
	f.mu.Lock()
	n := int64(len(f.list))
	f.mu.Unlock()
	r.has(f.name, n, n)
	return f
}

func (f *fake) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return f.options, nil
}

func (f *fake) ListAndWatch(_ *pluginapi.Empty, to grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	for {
		f.mu.Lock()
		list := slices.Clone(f.list)
		f.mu.Unlock()
		if err := to.Send(&pluginapi.ListAndWatchResponse{Devices: list}); err != nil {
			return err
		}
		select {
		case <-f.news:
		case <-to.Context().Done():
			return nil
		}
	}
}

func (f *fake) GetPreferredAllocation(
	_ context.Context,
	q *pluginapi.PreferredAllocationRequest,
) (*pluginapi.PreferredAllocationResponse, error) {
	if f.preferred == nil {
		return nil, errors.New("no idea")
	}
	return &pluginapi.PreferredAllocationResponse{
		ContainerResponses: []*pluginapi.ContainerPreferredAllocationResponse{
			{DeviceIDs: f.preferred(q.ContainerRequests[0])},
		},
	}, nil
}

func (f *fake) Allocate(_ context.Context, q *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	ids := q.ContainerRequests[0].DevicesIds
	f.mu.Lock()
	f.allocated = append(f.allocated, ids)
	answer := f.answer
	f.mu.Unlock()
	if answer == nil {
		return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{{}}}, nil
	}
	a, err := answer(ids)
	if err != nil {
		return nil, err
	}
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{a}}, nil
}

func (f *fake) PreStartContainer(
	_ context.Context,
	q *pluginapi.PreStartContainerRequest,
) (*pluginapi.PreStartContainerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.started = append(f.started, q.DevicesIds)
	return &pluginapi.PreStartContainerResponse{}, nil
}

func (f *fake) calls() (allocated, started int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.allocated), len(f.started)
}

// podOf has containers c0, c1, … that want so many of a resource.
func podOf(uid, name string, wants ...int64) *corev1.Pod {
	pod := &corev1.Pod{}
	pod.UID, pod.Name, pod.Namespace = types.UID(uid), uid, "default"
	for i, n := range wants {
		pod.Spec.Containers = append(pod.Spec.Containers, containerOf("c"+string(rune('0'+i)), name, n))
	}
	return pod
}

func containerOf(container, name string, n int64) corev1.Container {
	list := corev1.ResourceList{corev1.ResourceName(name): *resource.NewQuantity(n, resource.DecimalSI)}
	return corev1.Container{Name: container, Resources: corev1.ResourceRequirements{Limits: list, Requests: list}}
}
