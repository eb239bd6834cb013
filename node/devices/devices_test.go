package devices

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"berth/agent/plan"
)

const null = "example.com/null"

// allocate allocates the devices of the i-th container of a pod.
func (r *managerTest) allocate(pod *corev1.Pod, i int) (plan.Devices, error) {
	r.t.Helper()
	return r.Allocate(r.t.Context(), pod, &pod.Spec.Containers[i], plan.Main)
}

// mustAllocate is allocate without an error. It returns the device IDs.
func (r *managerTest) mustAllocate(pod *corev1.Pod, i int) []string {
	r.t.Helper()
	d, err := r.allocate(pod, i)
	if err != nil {
		r.t.Fatalf("%s: %v", pod.Name, err)
	}
	return d.IDs[null]
}

func TestNodeResourcesMatchPluginLists(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	f := newFakePlugin(t, r.dir, null, "a", "b", "c").mustRegister(r)
	f.set([]string{"a", "c"}, []string{"b"})
	r.waitForResource(null, 3, 2)
	f.set([]string{"a"}, nil)
	r.waitForResource(null, 1, 1)
	f.stop()
	r.waitForResource(null, 1, 0) // the capacity remains during the grace period
	f.set([]string{"a", "d"}, nil)
	f.serve() // on the same socket, without another registration
	r.waitForResource(null, 2, 2)
	// Another process of the same plugin.
	g := newFakePlugin(t, r.dir, "example.com/other", "x")
	g.name = null
	if err := g.register(); err != nil {
		t.Fatal(err)
	}
	r.waitForResource(null, 1, 1)
	f.stop() // the old server is stopped
	g.set([]string{"x", "y"}, nil)
	r.waitForResource(null, 2, 2)
}

func TestDisconnectedPluginLosesCapacity(t *testing.T) {
	t.Parallel()
	r := start(t, func(o *Options) { o.PluginGracePeriod = 50 * time.Millisecond })
	f := newFakePlugin(t, r.dir, null, "a").mustRegister(r)
	f.stop()
	r.waitForResource(null, 0, 0)
	f.serve()
	f.mustRegister(r)
}

func TestInvalidRegistrationsAreRejected(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	for _, row := range []struct{ version, resource, endpoint, want string }{
		{"v1alpha", null, "x.sock", `requested API version "v1alpha" is not supported by kubelet. Supported version ` +
			`is ["v1beta1"]`},
		{"v1beta1", "cpu", "x.sock", `the ResourceName "cpu" is invalid`},
		{"v1beta1", "kubernetes.io/x", "x.sock", `the ResourceName "kubernetes.io/x" is invalid`},
		{"v1beta1", "example.com/a b", "x.sock", `the ResourceName "example.com/a b" is invalid`},
		{"v1beta1", null, "../x.sock", `the endpoint "../x.sock" is not the name of a socket`},
		{"v1beta1", null, "", `the endpoint "" is not the name of a socket`},
		{"v1beta1", null, "kubelet.sock", `the endpoint "kubelet.sock" is not the name of a socket`},
	} {
		err := register(
			t,
			r.dir,
			&pluginapi.RegisterRequest{Version: row.version, ResourceName: row.resource, Endpoint: row.endpoint},
		)
		if err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%+v: got %v", row, err)
		}
	}
	if f := r.Stats(); len(f) > 0 {
		t.Errorf("got resources %+v, want none", f)
	}
}

func TestServeRemovesOnlyOldSockets(t *testing.T) {
	t.Parallel()
	r := newManager(t, tempDir(t), nil)
	for _, name := range []string{"old.sock", socketName} {
		ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(r.dir, name)})
		if err != nil {
			t.Fatal(err)
		}
		ln.SetUnlinkOnClose(false)
		if err := ln.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(r.dir, "kubelet_internal_checkpoint"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r.run()
	newFakePlugin(t, r.dir, null, "a").mustRegister(r)
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if diff := cmp.Diff([]string{"kubelet.sock", "kubelet_internal_checkpoint", "null.sock"}, names); diff != "" {
		t.Errorf("want (-) got (+):\n%s", diff)
	}
}

// TestSocketsOfOtherAgentAreKept has a live kubelet with a plugin on the host.
func TestSocketsOfOtherAgentAreKept(t *testing.T) {
	t.Parallel()
	r := newManager(t, tempDir(t), nil)
	for _, name := range []string{"plugin.sock", socketName} {
		ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(r.dir, name)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ln.Close() })
	}
	if err := r.serve(t.Context()); !errors.Is(err, errServed) {
		t.Errorf("got %v", err)
	}
	for _, name := range []string{"plugin.sock", socketName} {
		if _, err := os.Lstat(filepath.Join(r.dir, name)); err != nil {
			t.Error(err)
		}
	}
}

// TestLongSocketPath uses a directory whose path is too long for a socket address.
func TestLongSocketPath(t *testing.T) {
	t.Parallel()
	long := filepath.Join(tempDir(t), strings.Repeat("x", 120))
	if err := os.Mkdir(long, 0o750); err != nil {
		t.Fatal(err)
	}
	short := filepath.Join(tempDir(t), "link")
	if err := os.Symlink(long, short); err != nil {
		t.Fatal(err)
	}
	r := newManager(t, long, nil)
	r.run()
	newFakePlugin(t, short, null, "a").mustRegister(r)
	if got := r.mustAllocate(podOf("p", null, 1), 0); !slices.Equal(got, []string{"a"}) {
		t.Errorf("got devices %v", got)
	}
}

func TestAllocateReturnsDevices(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	f := newFakePlugin(t, r.dir, null, "a", "b").mustRegister(r)
	f.allocateFunc = func(ids []string) (*pluginapi.ContainerAllocateResponse, error) {
		return &pluginapi.ContainerAllocateResponse{
			Envs:        map[string]string{"NULL_IDS": strings.Join(ids, ",")},
			Annotations: map[string]string{"example.com/got": "yes"},
			Mounts:      []*pluginapi.Mount{{HostPath: "/lib", ContainerPath: "/devlib", ReadOnly: true}},
			Devices: []*pluginapi.DeviceSpec{{HostPath: "/dev/null", ContainerPath: "/dev/mynull",
				Permissions: "rw"}},
			CdiDevices: []*pluginapi.CDIDevice{{Name: "example.com/null=a"}},
		}, nil
	}
	newFakePlugin(t, r.dir, "example.com/other", "x").mustRegister(r)
	pod := podOf("p", null, 1)
	pod.Spec.Containers[0].Resources.Limits["example.com/other"] = count(1)
	got, err := r.allocate(pod, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := plan.Devices{
		IDs:         map[corev1.ResourceName][]string{null: {"a"}, "example.com/other": {"x"}},
		Envs:        map[string]string{"NULL_IDS": "a"},
		Annotations: map[string]string{"example.com/got": "yes"},
		Mounts:      []plan.Mount{{HostPath: "/lib", ContainerPath: "/devlib", ReadOnly: true}},
		Nodes:       []plan.DeviceNode{{HostPath: "/dev/null", ContainerPath: "/dev/mynull", Permissions: "rw"}},
		CDI:         []string{"example.com/null=a"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want (-) got (+):\n%s", diff)
	}
	observed := r.Observe(pod)["c0"]
	health := []corev1.ResourceStatus{
		{Name: null, Resources: []corev1.ResourceHealth{{ResourceID: "a", Health: corev1.ResourceHealthStatusHealthy}}},
		{
			Name:      "example.com/other",
			Resources: []corev1.ResourceHealth{{ResourceID: "x", Health: corev1.ResourceHealthStatusHealthy}},
		},
	}
	if diff := cmp.Diff(plan.DeviceStatus{Allocated: health}, observed); diff != "" {
		t.Errorf("want (-) got (+):\n%s", diff)
	}
	if got := r.Observe(podOf("q", null)); got != nil {
		t.Errorf("got %v for a pod without requests, want nil", got)
	}
}

// TestAllocateNeverSharesDevices checks D1 with two pods, and the messages of a waiting pod.
func TestAllocateNeverSharesDevices(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	expectPending := func(pod *corev1.Pod, want string) {
		t.Helper()
		if got := r.Observe(pod)["c0"].Pending; got != want {
			t.Errorf("%s: got pending %q, want %q", pod.Name, got, want)
		}
	}
	p, q := podOf("p", null, 1, 1), podOf("q", null, 1)
	expectPending(q, "example.com/null: no device plugin registered")
	f := newFakePlugin(t, r.dir, null, "a", "b").mustRegister(r)
	expectPending(q, "")
	if a, b := r.mustAllocate(p, 0), r.mustAllocate(p, 1); !slices.Equal(a, []string{"a"}) ||
		!slices.Equal(b, []string{"b"}) {
		t.Errorf("got devices %v and %v, want a and b", a, b)
	}
	const full = "example.com/null: requested: 1, healthy and free: 0, listed: 2"
	expectPending(q, full)
	_, err := r.allocate(q, 0)
	if e, ok := errors.AsType[*plan.Error](err); !ok || e.Reason != plan.ReasonDevices || e.Error() != full {
		t.Errorf("got %v, want an error about unavailable devices", err)
	}
	f.set([]string{"a"}, []string{"b"})
	r.waitForResource(null, 2, 1)
	if capacity := r.NodeResources().AdmissionCapacity[null]; capacity.Value() != 2 {
		t.Errorf("got admission capacity %s, want 2", capacity.String())
	}
	if got := r.Observe(p)["c1"].Allocated[0].Resources[0].Health; got != corev1.ResourceHealthStatusUnhealthy {
		t.Errorf("got health %s of the unhealthy device", got)
	}
	expectPending(p, "") // its own device
	if why := r.Observe(p)["c1"].Pending; why == "" {
		t.Error("a container with an unhealthy device may start")
	}
	f.set([]string{"a", "b"}, nil)
	r.waitForResource(null, 2, 2)
	f.stop()
	r.waitForResource(null, 2, 0)
	expectPending(q, "example.com/null: device plugin not responding")
	expectPending(p, "") // its devices are allocated already
	if got := r.Observe(p)["c0"].Allocated[0].Resources[0].Health; got != corev1.ResourceHealthStatusUnknown {
		t.Errorf("got health %s without the plugin, want Unknown", got)
	}
	f.serve()
	r.waitForResource(null, 2, 2)
	r.Free("p")
	expectPending(q, "")
	r.mustAllocate(q, 0)
}

func TestRestartedContainerGetsSameDevices(t *testing.T) { // D2
	t.Parallel()
	r := start(t, nil)
	f := newFakePlugin(t, r.dir, null, "a", "b", "c").mustRegister(r)
	f.options.PreStartRequired = true
	g := newFakePlugin(t, r.dir, "example.com/again", "x")
	g.name, g.options = null, f.options
	g.set([]string{"a", "b", "c"}, nil)
	p, q := podOf("p", null, 2), podOf("q", null, 1)
	r.mustAllocate(q, 0)
	for range 3 {
		if got := r.mustAllocate(p, 0); !slices.Equal(got, []string{"b", "c"}) {
			t.Errorf("got devices %v", got)
		}
	}
	r.Free("q")
	if got := r.mustAllocate(p, 0); !slices.Equal(got, []string{"b", "c"}) {
		t.Errorf("got devices %v", got)
	}
	if n, _ := f.calls(); n != 2 {
		t.Errorf("got %d Allocate calls, want 2", n)
	}
	// The plugin registers again and requires PreStartContainer.
	if err := g.register(); err != nil {
		t.Fatal(err)
	}
	f.stop()
	r.until("a PreStartContainer call of the new plugin", func() bool {
		_, _ = r.allocate(p, 0) // the old registration may still be in use
		_, n := g.calls()
		r.notify()
		return n > 0
	})
	// One device becomes unhealthy and is replaced. The other one is kept.
	g.set([]string{"a", "c"}, []string{"b"})
	r.waitForResource(null, 3, 2)
	if got := r.mustAllocate(p, 0); !slices.Equal(got, []string{"a", "c"}) {
		t.Errorf("got devices %v", got)
	}
}

// TestRestartedContainerNeedsNoPlugin checks D2 while the plugin is disconnected, also after an agent
// restart, until the next boot.
func TestRestartedContainerNeedsNoPlugin(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	r := newManager(t, dir, nil)
	stop := r.run()
	f := newFakePlugin(t, dir, null, "a", "b", "c", "d").mustRegister(r)
	f.allocateFunc = func(ids []string) (*pluginapi.ContainerAllocateResponse, error) {
		return &pluginapi.ContainerAllocateResponse{Envs: map[string]string{"IDS": strings.Join(ids, ",")}}, nil
	}
	p, preStart, fresh := podOf("p", null, 2), podOf("prestart", null, 1), podOf("fresh", null, 1)
	r.mustAllocate(p, 0)
	f.options.PreStartRequired = true
	f.stop()
	r.waitForResource(null, 4, 0)
	f.serve() // with PreStartContainer, as another version of the plugin
	r.waitForResource(null, 4, 4)
	r.mustAllocate(preStart, 0)
	f.stop()
	r.waitForResource(null, 4, 0)
	more := podOf("p", null, 3)
	check := func(r *managerTest, why string) {
		t.Helper()
		got, err := r.allocate(p, 0)
		if err != nil || !slices.Equal(got.IDs[null], []string{"a", "b"}) || got.Envs["IDS"] != "a,b" {
			t.Errorf("got %+v, %v; want the same devices", got, err)
		}
		if s := r.Observe(p)["c0"]; s.Pending != "" || len(s.Allocated) != 1 {
			t.Errorf("got %+v, want allocated devices without a wait", s)
		}
		for _, pod := range []*corev1.Pod{preStart, fresh, more} {
			_, err := r.allocate(pod, 0)
			if e, ok := errors.AsType[*plan.Error](err); !ok || e.Reason != plan.ReasonDevices || e.Error() != why ||
				r.Observe(pod)["c0"].Pending != why {
				t.Errorf("%s with limits %v: got %v", pod.Name, pod.Spec.Containers[0].Resources.Limits, err)
			}
		}
	}
	check(r, "example.com/null: device plugin not responding")
	stop()
	const none = "example.com/null: no device plugin registered"
	next := newManager(t, dir, func(o *Options) { o.Checkpoint = r.state() })
	stop = next.run()
	check(next, none)
	stop()
	boot := newManager(t, dir, func(o *Options) { o.Checkpoint, o.BootID = next.state(), "boot-2" })
	boot.run()
	if _, err := boot.allocate(p, 0); err == nil || err.Error() != none {
		t.Errorf("got %v after a reboot, want an error", err)
	}
}

// TestAllocationsSurviveAgentRestart checks D1, D3 and D5.
func TestAllocationsSurviveAgentRestart(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	first := newManager(t, dir, nil)
	stop := first.run()
	f := newFakePlugin(t, dir, null, "a", "b", "c").mustRegister(first)
	p, q, deleted := podOf("p", null, 1), podOf("q", null, 1), podOf("deleted", null, 1)
	first.mustAllocate(deleted, 0)
	first.mustAllocate(p, 0)
	if first.flushes == 0 {
		t.Error("the checkpoint was not flushed")
	}
	stop()
	f.stop()

	next := func(boot string) *managerTest {
		r := newManager(t, dir, func(o *Options) {
			o.Checkpoint, o.BootID = first.state(), boot
			o.PodKnown = func(uid types.UID) bool { return uid == "p" }
		})
		if c, listed := r.NodeResources().Capacity[null]; !listed || c.Value() != 0 {
			t.Errorf("got capacity %v before the registration, want 0", r.NodeResources().Capacity)
		}
		if why := r.Observe(p)["c0"].Pending; (why == "") != (boot == "boot-1") { // responses are valid for one boot
			t.Errorf("in %s: got pending %q", boot, why)
		}
		return r
	}
	r := next("boot-1")
	stop = r.run()
	f = newFakePlugin(t, dir, null, "a", "b", "c").mustRegister(r)
	if got := r.mustAllocate(q, 0); !slices.Equal(got, []string{"a"}) { // of the deleted pod
		t.Errorf("got devices %v for the new pod, want a", got)
	}
	if got := r.mustAllocate(p, 0); !slices.Equal(got, []string{"b"}) {
		t.Errorf("got devices %v for the existing pod, want b", got)
	}
	if n, _ := f.calls(); n != 1 {
		t.Errorf("got %d Allocate calls, want 1 for the new pod", n)
	}
	stop()
	f.stop()

	r = next("boot-2") // responses are invalid after a reboot
	r.run()
	f = newFakePlugin(t, dir, null, "a", "b", "c").mustRegister(r)
	if got := r.mustAllocate(p, 0); !slices.Equal(got, []string{"b"}) {
		t.Errorf("got devices %v after a reboot, want b", got)
	}
	if n, _ := f.calls(); n != 1 {
		t.Errorf("got %d Allocate calls after a reboot, want 1", n)
	}
}

func TestRestoreAllocationFromContainers(t *testing.T) {
	t.Parallel()
	r := newManager(t, tempDir(t), func(o *Options) { o.Checkpoint = []byte("{") })
	held := map[corev1.ResourceName][]string{null: {"a"}}
	r.RestoreAllocations("p", []plan.Container{
		{Name: "c0", State: plan.Running, Devices: held},
		{Name: "c1", State: plan.Exited, Devices: map[corev1.ResourceName][]string{null: {"b"}}},
	})
	r.run()
	newFakePlugin(t, r.dir, null, "a", "b").mustRegister(r)
	if got := r.mustAllocate(podOf("q", null, 1), 0); !slices.Equal(got, []string{"b"}) {
		t.Errorf("got devices %v", got)
	}
	if got := r.mustAllocate(podOf("p", null, 1), 0); !slices.Equal(got, []string{"a"}) {
		t.Errorf("got devices %v", got)
	}
}

func TestAllocateUsesPreferredAllocation(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	f := newFakePlugin(t, r.dir, null, "a", "b", "c", "d")
	f.options.GetPreferredAllocationAvailable = true
	f.mustRegister(r)
	var calls []*pluginapi.ContainerPreferredAllocationRequest
	f.preferred = func(q *pluginapi.ContainerPreferredAllocationRequest) []string {
		calls = append(calls, q)
		return []string{"d", "nonsense", "d", "b"}
	}
	if got := r.mustAllocate(podOf("p", null, 2), 0); !slices.Equal(got, []string{"b", "d"}) {
		t.Errorf("got devices %v", got)
	}
	if len(calls) != 1 || calls[0].AllocationSize != 2 ||
		!slices.Equal(calls[0].AvailableDeviceIDs, []string{"a", "b", "c", "d"}) {
		t.Errorf("got preferred allocation requests %v", calls)
	}
	f.preferred = nil // the plugin returns an error
	if got := r.mustAllocate(podOf("q", null, 1), 0); !slices.Equal(got, []string{"a"}) {
		t.Errorf("got devices %v", got)
	}
}

func TestFailedAllocationMatchesKubeletError(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	f := newFakePlugin(t, r.dir, null, "a").mustRegister(r)
	f.allocateFunc = func([]string) (*pluginapi.ContainerAllocateResponse, error) { return nil, errors.New("broken") }
	p := podOf("p", null, 1)
	_, err := r.allocate(p, 0)
	e, ok := errors.AsType[*plan.Error](err)
	if !ok || e.Reason != "UnexpectedAdmissionError" ||
		e.Error() != "Allocate failed due to rpc error: code = Unknown desc = broken, which is unexpected" {
		t.Errorf("got %v, want the kubelet's error", err)
	}
	if why := r.Observe(podOf("q", null, 1))["c0"].Pending; why == "" {
		t.Error("a device can be allocated to another pod after a failed Allocate")
	}
	f.mu.Lock()
	f.allocateFunc = nil
	f.mu.Unlock()
	r.mustAllocate(p, 0)
}

func TestHangingPluginDelaysOnlyItsResource(t *testing.T) { // D4
	t.Parallel()
	r := start(t, nil)
	f := newFakePlugin(t, r.dir, null, "a", "b").mustRegister(r)
	newFakePlugin(t, r.dir, "example.com/other", "x").mustRegister(r)
	hanging, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	f.allocateFunc = func([]string) (*pluginapi.ContainerAllocateResponse, error) {
		once.Do(func() { close(hanging) })
		<-release
		return &pluginapi.ContainerAllocateResponse{}, nil
	}
	p := podOf("p", null, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := r.Allocate(t.Context(), p, &p.Spec.Containers[0], plan.Main); err != nil {
			t.Error(err)
		}
	})
	<-hanging
	other := podOf("q", "example.com/other", 1)
	if _, err := r.Allocate(t.Context(), other, &other.Spec.Containers[0], plan.Main); err != nil {
		t.Error(err)
	}
	r.Observe(p)
	r.NodeResources()
	r.Free("unknown")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := podOf("s", null, 1)
	if _, err := r.Allocate(ctx, s, &s.Spec.Containers[0], plan.Main); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Canceled", err)
	}
	close(release)
	wg.Wait()
}

// TestConcurrentAllocationsAreDisjoint checks D1 with many pods.
func TestConcurrentAllocationsAreDisjoint(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	var ids []string
	for i := range 12 {
		ids = append(ids, fmt.Sprintf("d%02d", i))
	}
	newFakePlugin(t, r.dir, null, ids...).mustRegister(r)
	var mu sync.Mutex
	owner := map[string]string{}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for n := range 25 {
				pod := podOf(fmt.Sprintf("p%d-%d", w, n), null, int64(1+(w+n)%3))
				d, err := r.Allocate(t.Context(), pod, &pod.Spec.Containers[0], plan.Main)
				if e, ok := errors.AsType[*plan.Error](err); ok && e.Reason == plan.ReasonDevices {
					continue
				} else if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, id := range d.IDs[null] {
					if other := owner[id]; other != "" {
						t.Errorf("%s: device %s is allocated to %s", pod.Name, id, other)
					}
					owner[id] = pod.Name
				}
				mu.Unlock()
				mu.Lock()
				for _, id := range d.IDs[null] {
					delete(owner, id)
				}
				mu.Unlock()
				r.Free(pod.UID)
			}
		})
	}
	wg.Wait()
	if f := r.Stats(); len(f) != 1 || f[0].Allocated != 0 {
		t.Errorf("got %+v after the deletion of all pods, want no allocations", f)
	}
}

func TestInitContainerDevicesAreReused(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	newFakePlugin(t, r.dir, null, "a", "b", "c").mustRegister(r)
	pod := podOf("p", null, 1, 1)
	pod.Spec.InitContainers = []corev1.Container{
		containerOf("i1", null, 1),
		containerOf("i2", null, 2),
		containerOf("side", null, 1),
	}
	var got []string
	for _, x := range []struct {
		c    *corev1.Container
		kind plan.ContainerKind
	}{
		{&pod.Spec.InitContainers[0], plan.Init}, {&pod.Spec.InitContainers[1], plan.Init},
		{&pod.Spec.InitContainers[2], plan.Sidecar},
		{&pod.Spec.Containers[0], plan.Main}, {&pod.Spec.Containers[1], plan.Main},
	} {
		d, err := r.Allocate(t.Context(), pod, x.c, x.kind)
		if err != nil {
			t.Fatalf("%s: %v", x.c.Name, err)
		}
		got = append(got, x.c.Name+"="+strings.Join(d.IDs[null], ","))
	}
	if diff := cmp.Diff([]string{"i1=a", "i2=a,b", "side=a", "c0=b", "c1=c"}, got); diff != "" {
		t.Errorf("want (-) got (+):\n%s", diff)
	}
	if f := r.Stats(); f[0].Allocated != 3 {
		t.Errorf("got %+v, want 3 allocated devices", f)
	}
}

// After the kubelet, the resources of its plugins are known before the plugins register again.
func TestCheckpointOfKubelet(t *testing.T) {
	t.Parallel()
	state, err := CheckpointOfKubelet([]byte(
		`{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"example.com/gpu":["0"]}},"Checksum":1}`))
	if err != nil {
		t.Fatal(err)
	}
	d := New(Options{Checkpoint: state, OnChange: func() {}, SaveCheckpoint: func([]byte) {}})
	if q, known := d.NodeResources().AdmissionCapacity["example.com/gpu"]; !known || !q.IsZero() {
		t.Errorf("got %v, known %v", q, known)
	}
	if _, err := CheckpointOfKubelet([]byte("{")); err == nil {
		t.Error("an unreadable checkpoint is no error")
	}
}
