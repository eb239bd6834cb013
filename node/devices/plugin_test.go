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

// waitTimeout is the timeout of every wait.
const waitTimeout = 2 * time.Minute

// managerTest is a Manager that records its callbacks.
type managerTest struct {
	*Manager
	t       *testing.T
	dir     string
	changed chan struct{}

	mu      sync.Mutex
	saved   []byte
	flushes int
}

// tempDir returns a temporary directory with a path that is short enough for sockets.
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

// newManager returns a Manager that is not running. configure may change its options.
func newManager(t *testing.T, dir string, configure func(*Options)) *managerTest {
	t.Helper()
	r := &managerTest{t: t, dir: dir, changed: make(chan struct{}, 1)}
	o := Options{
		Dir: dir, BootID: "boot-1", RetryInterval: 5 * time.Millisecond,
		SaveCheckpoint: func(state []byte) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.saved = state
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
	if configure != nil {
		configure(&o)
	}
	r.Manager = New(o)
	return r
}

// start returns a running Manager.
func start(t *testing.T, configure func(*Options)) *managerTest {
	t.Helper()
	r := newManager(t, tempDir(t), configure)
	r.run()
	return r
}

// run runs the Manager until the test ends or stop is called.
func (r *managerTest) run() (stop func()) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.Run(ctx); err != nil {
			r.t.Error(err)
		}
	}()
	stop = func() { cancel(); <-done }
	r.t.Cleanup(stop)
	r.until("the socket", func() bool { // old sockets are removed before
		r.Manager.mu.Lock()
		defer r.Manager.mu.Unlock()
		return r.registering
	})
	return stop
}

func (r *managerTest) state() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.saved
}

// until waits for a condition that depends on changes of the Manager.
func (r *managerTest) until(what string, cond func() bool) {
	r.t.Helper()
	timeout := time.After(waitTimeout)
	for !cond() {
		select {
		case <-r.changed:
		case <-timeout:
			r.t.Fatalf("timeout waiting for %s: %+v", what, r.Stats())
		}
	}
}

// waitForResource waits until a resource has the given numbers of devices.
func (r *managerTest) waitForResource(name string, capacity, allocatable int64) {
	r.t.Helper()
	n := corev1.ResourceName(name)
	r.until(name, func() bool {
		o := r.NodeResources()
		c, a := o.Capacity[n], o.Allocatable[n]
		_, listed := o.Capacity[n]
		return listed && c.Value() == capacity && a.Value() == allocatable
	})
}

// fakePlugin is a device plugin in this process.
type fakePlugin struct {
	pluginapi.UnimplementedDevicePluginServer
	t           *testing.T
	dir         string
	name        string // resource name
	endpoint    string
	options     *pluginapi.DevicePluginOptions
	server      *grpc.Server
	listChanged chan struct{} // a newer list is available; capacity 1

	mu           sync.Mutex
	list         []*pluginapi.Device
	allocated    [][]string
	started      [][]string
	preferred    func(*pluginapi.ContainerPreferredAllocationRequest) []string
	allocateFunc func(ids []string) (*pluginapi.ContainerAllocateResponse, error)
}

// newFakePlugin serves a plugin with the given healthy devices.
func newFakePlugin(t *testing.T, dir, name string, ids ...string) *fakePlugin {
	t.Helper()
	f := &fakePlugin{
		t:           t,
		dir:         dir,
		name:        name,
		endpoint:    filepath.Base(name) + ".sock",
		options:     &pluginapi.DevicePluginOptions{},
		listChanged: make(chan struct{}, 1),
	}
	f.set(ids, nil)
	f.serve()
	return f
}

func (f *fakePlugin) serve() {
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
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(ln) // returns an error when the test stops it
	}()
	f.t.Cleanup(func() { s.Stop(); <-done })
}

func (f *fakePlugin) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.server.Stop()
}

// set replaces the device list.
func (f *fakePlugin) set(healthy, unhealthy []string) {
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
	case f.listChanged <- struct{}{}:
	default:
	}
}

func (f *fakePlugin) register() error {
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
	defer func() { _ = conn.Close() }() // after the response
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, q, grpc.WaitForReady(true))
	return err
}

// mustRegister registers the plugin and waits until the Manager has its device list.
func (f *fakePlugin) mustRegister(r *managerTest) *fakePlugin {
	f.t.Helper()
	if err := f.register(); err != nil {
		f.t.Fatal(err)
	}
	f.mu.Lock()
	n := int64(len(f.list))
	f.mu.Unlock()
	r.waitForResource(f.name, n, n)
	return f
}

func (f *fakePlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return f.options, nil
}

func (f *fakePlugin) ListAndWatch(_ *pluginapi.Empty,
	to grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	for {
		f.mu.Lock()
		list := slices.Clone(f.list)
		f.mu.Unlock()
		if err := to.Send(&pluginapi.ListAndWatchResponse{Devices: list}); err != nil {
			return err
		}
		select {
		case <-f.listChanged:
		case <-to.Context().Done():
			return nil
		}
	}
}

func (f *fakePlugin) GetPreferredAllocation(
	_ context.Context,
	q *pluginapi.PreferredAllocationRequest,
) (*pluginapi.PreferredAllocationResponse, error) {
	if f.preferred == nil {
		return nil, errors.New("no preference")
	}
	return &pluginapi.PreferredAllocationResponse{
		ContainerResponses: []*pluginapi.ContainerPreferredAllocationResponse{
			{DeviceIDs: f.preferred(q.ContainerRequests[0])},
		},
	}, nil
}

func (f *fakePlugin) Allocate(_ context.Context, q *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	ids := q.ContainerRequests[0].DevicesIds
	f.mu.Lock()
	f.allocated = append(f.allocated, ids)
	allocate := f.allocateFunc
	f.mu.Unlock()
	if allocate == nil {
		return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{{}}}, nil
	}
	a, err := allocate(ids)
	if err != nil {
		return nil, err
	}
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{a}}, nil
}

func (f *fakePlugin) PreStartContainer(
	_ context.Context,
	q *pluginapi.PreStartContainerRequest,
) (*pluginapi.PreStartContainerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.started = append(f.started, q.DevicesIds)
	return &pluginapi.PreStartContainerResponse{}, nil
}

func (f *fakePlugin) calls() (allocated, started int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.allocated), len(f.started)
}

// podOf returns a pod with containers c0, c1, … that request the given numbers of devices.
func podOf(uid, name string, counts ...int64) *corev1.Pod {
	pod := &corev1.Pod{}
	pod.UID, pod.Name, pod.Namespace = types.UID(uid), uid, "default"
	for i, n := range counts {
		pod.Spec.Containers = append(pod.Spec.Containers, containerOf("c"+string(rune('0'+i)), name, n))
	}
	return pod
}

func containerOf(container, name string, n int64) corev1.Container {
	list := corev1.ResourceList{corev1.ResourceName(name): *resource.NewQuantity(n, resource.DecimalSI)}
	return corev1.Container{Name: container, Resources: corev1.ResourceRequirements{Limits: list, Requests: list}}
}
