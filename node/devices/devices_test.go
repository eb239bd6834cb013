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

// give is Give for a container of a pod by its place.
func (r *rig) give(pod *corev1.Pod, i int) (plan.Devices, error) {
	r.t.Helper()
	return r.Allocate(r.t.Context(), pod, &pod.Spec.Containers[i], plan.Main)
}

// mustGive returns the IDs.
func (r *rig) mustGive(pod *corev1.Pod, i int) []string {
	r.t.Helper()
	d, err := r.give(pod, i)
	if err != nil {
		r.t.Fatalf("%s: %v", pod.Name, err)
	}
	return d.IDs[null]
}

func TestNodeResourcesMatchPluginLists(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	f := newFake(t, r.dir, null, "a", "b", "c").joins(r)
	f.set([]string{"a", "c"}, []string{"b"})
	r.has(null, 3, 2)
	f.set([]string{"a"}, nil)
	r.has(null, 1, 1)
	f.stop()
	r.has(null, 1, 0) // its capacity stays for the grace
	f.set([]string{"a", "d"}, nil)
	f.serve() // at its socket, without registering again
	r.has(null, 2, 2)
	// Another process of the same plugin.
	g := newFake(t, r.dir, "example.com/other", "x")
	g.name = null
	if err := g.register(); err != nil {
		t.Fatal(err)
	}
	r.has(null, 1, 1)
	f.stop() // the old server is stopped
	g.set([]string{"x", "y"}, nil)
	r.has(null, 2, 2)
}

func TestDisconnectedPluginLosesCapacity(t *testing.T) {
	t.Parallel()
	r := start(t, func(o *Options) { o.PluginGracePeriod = 50 * time.Millisecond })
	f := newFake(t, r.dir, null, "a").joins(r)
	f.stop()
	r.has(null, 0, 0)
	f.serve()
	f.joins(r)
}

func TestInvalidRegistrationsAreRejected(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	for _, row := range []struct{ version, resource, endpoint, want string }{
		{"v1alpha", null, "x.sock", `requested API version "v1alpha" is not supported by kubelet. Supported version is ["v1beta1"]`},
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
			t.Errorf("%+v: %v", row, err)
		}
	}
	if f := r.Stats(); len(f) > 0 {
		t.Errorf("something was taken in: %+v", f)
	}
}

func TestServeRemovesOnlyOldSockets(t *testing.T) {
	t.Parallel()
	r := newRig(t, tempDir(t), nil)
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
	newFake(t, r.dir, null, "a").joins(r)
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

// TestLongSocketPath has sockets below a path that no socket's address can hold.
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
	r := newRig(t, long, nil)
	r.run()
	newFake(t, short, null, "a").joins(r)
	if got := r.mustGive(podOf("p", null, 1), 0); !slices.Equal(got, []string{"a"}) {
		t.Errorf("given %v", got)
	}
}

func TestAllocateReturnsDevices(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	f := newFake(t, r.dir, null, "a", "b").joins(r)
	f.answer = func(ids []string) (*pluginapi.ContainerAllocateResponse, error) {
		return &pluginapi.ContainerAllocateResponse{
			Envs:        map[string]string{"NULL_IDS": strings.Join(ids, ",")},
			Annotations: map[string]string{"example.com/given": "yes"},
			Mounts:      []*pluginapi.Mount{{HostPath: "/lib", ContainerPath: "/devlib", ReadOnly: true}},
			Devices:     []*pluginapi.DeviceSpec{{HostPath: "/dev/null", ContainerPath: "/dev/mynull", Permissions: "rw"}},
			CdiDevices:  []*pluginapi.CDIDevice{{Name: "example.com/null=a"}},
		}, nil
	}
	newFake(t, r.dir, "example.com/other", "x").joins(r)
	pod := podOf("p", null, 1)
	pod.Spec.Containers[0].Resources.Limits["example.com/other"] = count(1)
	got, err := r.give(pod, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := plan.Devices{
		IDs:         map[corev1.ResourceName][]string{null: {"a"}, "example.com/other": {"x"}},
		Envs:        map[string]string{"NULL_IDS": "a"},
		Annotations: map[string]string{"example.com/given": "yes"},
		Mounts:      []plan.Mount{{HostPath: "/lib", ContainerPath: "/devlib", ReadOnly: true}},
		Nodes:       []plan.DeviceNode{{HostPath: "/dev/null", ContainerPath: "/dev/mynull", Permissions: "rw"}},
		CDI:         []string{"example.com/null=a"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want (-) got (+):\n%s", diff)
	}
	seen := r.Observe(pod)["c0"]
	health := []corev1.ResourceStatus{
		{Name: null, Resources: []corev1.ResourceHealth{{ResourceID: "a", Health: corev1.ResourceHealthStatusHealthy}}},
		{
			Name:      "example.com/other",
			Resources: []corev1.ResourceHealth{{ResourceID: "x", Health: corev1.ResourceHealthStatusHealthy}},
		},
	}
	if diff := cmp.Diff(plan.DeviceStatus{Allocated: health}, seen); diff != "" {
		t.Errorf("want (-) got (+):\n%s", diff)
	}
	if got := r.Observe(podOf("q", null)); got != nil {
		t.Errorf("a pod that wants nothing: %v", got)
	}
}

// TestAllocateNeverSharesDevices is D1 in the small, with the words of those
// who wait.
func TestAllocateNeverSharesDevices(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	waits := func(pod *corev1.Pod, want string) {
		t.Helper()
		if got := r.Observe(pod)["c0"].Pending; got != want {
			t.Errorf("%s waits for %q, want %q", pod.Name, got, want)
		}
	}
	p, q := podOf("p", null, 1, 1), podOf("q", null, 1)
	waits(q, "example.com/null: no device plugin registered")
	f := newFake(t, r.dir, null, "a", "b").joins(r)
	waits(q, "")
	if a, b := r.mustGive(p, 0), r.mustGive(p, 1); !slices.Equal(a, []string{"a"}) || !slices.Equal(b, []string{"b"}) {
		t.Errorf("given %v and %v", a, b)
	}
	const full = "example.com/null: requested: 1, healthy and free: 0, listed: 2"
	waits(q, full)
	_, err := r.give(q, 0)
	if e, ok := errors.AsType[*plan.Error](err); !ok || e.Reason != plan.ReasonDevices || e.Error() != full {
		t.Errorf("given all the same: %v", err)
	}
	f.set([]string{"a"}, []string{"b"})
	r.has(null, 2, 1)
	if room := r.NodeResources().AdmissionCapacity[null]; room.Value() != 2 {
		t.Errorf("admission counts with %s", room.String())
	}
	if got := r.Observe(p)["c1"].Allocated[0].Resources[0].Health; got != corev1.ResourceHealthStatusUnhealthy {
		t.Errorf("the broken one is %s", got)
	}
	waits(p, "") // its own
	if why := r.Observe(p)["c1"].Pending; why == "" {
		t.Error("a broken device may be given again")
	}
	f.set([]string{"a", "b"}, nil)
	r.has(null, 2, 2)
	f.stop()
	r.has(null, 2, 0)
	waits(q, "example.com/null: device plugin not responding")
	waits(p, "") // what it has was made ready
	if got := r.Observe(p)["c0"].Allocated[0].Resources[0].Health; got != corev1.ResourceHealthStatusUnknown {
		t.Errorf("without its plugin a device is %s", got)
	}
	f.serve()
	r.has(null, 2, 2)
	r.Free("p")
	waits(q, "")
	r.mustGive(q, 0)
}

func TestRestartedContainerGetsSameDevices(t *testing.T) { // D2
	t.Parallel()
	r := start(t, nil)
	f := newFake(t, r.dir, null, "a", "b", "c").joins(r)
	f.options.PreStartRequired = true
	g := newFake(t, r.dir, "example.com/again", "x")
	g.name, g.options = null, f.options
	g.set([]string{"a", "b", "c"}, nil)
	p, q := podOf("p", null, 2), podOf("q", null, 1)
	r.mustGive(q, 0)
	for range 3 {
		if got := r.mustGive(p, 0); !slices.Equal(got, []string{"b", "c"}) {
			t.Errorf("given %v", got)
		}
	}
	r.Free("q")
	if got := r.mustGive(p, 0); !slices.Equal(got, []string{"b", "c"}) {
		t.Errorf("given %v", got)
	}
	if n, _ := f.calls(); n != 2 {
		t.Errorf("%d Allocate calls", n)
	}
	// The plugin registers again and requires PreStartContainer.
	if err := g.register(); err != nil {
		t.Fatal(err)
	}
	f.stop()
	r.until("a start that the new plugin hears of", func() bool {
		_, _ = r.give(p, 0) // the old registration may still be in use
		_, n := g.calls()
		r.notify()
		return n > 0
	})
	// One of them breaks: it is replaced, the other stays.
	g.set([]string{"a", "c"}, []string{"b"})
	r.has(null, 3, 2)
	if got := r.mustGive(p, 0); !slices.Equal(got, []string{"a", "c"}) {
		t.Errorf("given %v", got)
	}
}

// TestRestartedContainerNeedsNoPlugin is D2 while the plugin is away, in this
// life and in the next, until the host boots.
func TestRestartedContainerNeedsNoPlugin(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	r := newRig(t, dir, nil)
	stop := r.run()
	f := newFake(t, dir, null, "a", "b", "c", "d").joins(r)
	f.answer = func(ids []string) (*pluginapi.ContainerAllocateResponse, error) {
		return &pluginapi.ContainerAllocateResponse{Envs: map[string]string{"IDS": strings.Join(ids, ",")}}, nil
	}
	p, hears, fresh := podOf("p", null, 2), podOf("hears", null, 1), podOf("fresh", null, 1)
	r.mustGive(p, 0)
	f.options.PreStartRequired = true
	f.stop()
	r.has(null, 4, 0)
	f.serve() // as another version of the plugin does
	r.has(null, 4, 4)
	r.mustGive(hears, 0)
	f.stop()
	r.has(null, 4, 0)
	more := podOf("p", null, 3)
	check := func(r *rig, why string) {
		t.Helper()
		got, err := r.give(p, 0)
		if err != nil || !slices.Equal(got.IDs[null], []string{"a", "b"}) || got.Envs["IDS"] != "a,b" {
			t.Errorf("given %+v, %v", got, err)
		}
		if s := r.Observe(p)["c0"]; s.Pending != "" || len(s.Allocated) != 1 {
			t.Errorf("seen: %+v", s)
		}
		for _, pod := range []*corev1.Pod{hears, fresh, more} {
			_, err := r.give(pod, 0)
			if e, ok := errors.AsType[*plan.Error](err); !ok || e.Reason != plan.ReasonDevices || e.Error() != why ||
				r.Observe(pod)["c0"].Pending != why {
				t.Errorf("%s, which wants %v: %v", pod.Name, pod.Spec.Containers[0].Resources.Limits, err)
			}
		}
	}
	check(r, "example.com/null: device plugin not responding")
	stop()
	const none = "example.com/null: no device plugin registered"
	next := newRig(t, dir, func(o *Options) { o.Checkpoint = r.state() })
	stop = next.run()
	check(next, none)
	stop()
	boot := newRig(t, dir, func(o *Options) { o.Checkpoint, o.BootID = next.state(), "boot-2" })
	boot.run()
	if _, err := boot.give(p, 0); err == nil || err.Error() != none {
		t.Errorf("after a boot: %v", err)
	}
}

// TestAllocationsSurviveAgentRestart is D1, D3 and D5 over restarts.
func TestAllocationsSurviveAgentRestart(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	first := newRig(t, dir, nil)
	stop := first.run()
	f := newFake(t, dir, null, "a", "b", "c").joins(first)
	p, q, gone := podOf("p", null, 1), podOf("q", null, 1), podOf("gone", null, 1)
	first.mustGive(gone, 0)
	first.mustGive(p, 0)
	if first.flushes == 0 {
		t.Error("nothing was brought onto the disk")
	}
	stop()
	f.stop()

	next := func(boot string) *rig {
		r := newRig(t, dir, func(o *Options) {
			o.Checkpoint, o.BootID = first.state(), boot
			o.PodKnown = func(uid types.UID) bool { return uid == "p" }
		})
		if c, listed := r.NodeResources().Capacity[null]; !listed || c.Value() != 0 {
			t.Errorf("before its plugin is back the node has %v", r.NodeResources().Capacity)
		}
		if why := r.Observe(p)["c0"].Pending; (why == "") != (boot == "boot-1") { // responses are valid for one boot
			t.Errorf("in %s its pod waits for the plugin: %q", boot, why)
		}
		return r
	}
	r := next("boot-1")
	stop = r.run()
	f = newFake(t, dir, null, "a", "b", "c").joins(r)
	if got := r.mustGive(q, 0); !slices.Equal(got, []string{"a"}) { // of the deleted pod
		t.Errorf("a new pod was given %v", got)
	}
	if got := r.mustGive(p, 0); !slices.Equal(got, []string{"b"}) {
		t.Errorf("the old pod was given %v", got)
	}
	if n, _ := f.calls(); n != 1 {
		t.Errorf("%d Allocate calls: only the new pod needs one", n)
	}
	stop()
	f.stop()

	r = next("boot-2") // responses are invalid after a reboot
	r.run()
	f = newFake(t, dir, null, "a", "b", "c").joins(r)
	if got := r.mustGive(p, 0); !slices.Equal(got, []string{"b"}) {
		t.Errorf("after a boot the pod was given %v", got)
	}
	if n, _ := f.calls(); n != 1 {
		t.Errorf("%d Allocate calls after a reboot", n)
	}
}

func TestRestoreAllocationFromContainers(t *testing.T) {
	t.Parallel()
	r := newRig(t, tempDir(t), func(o *Options) { o.Checkpoint = []byte("{") })
	r.RestoreAllocation("p", "c0", plan.Main, map[corev1.ResourceName][]string{null: {"a"}})
	r.run()
	newFake(t, r.dir, null, "a", "b").joins(r)
	if got := r.mustGive(podOf("q", null, 1), 0); !slices.Equal(got, []string{"b"}) {
		t.Errorf("given %v", got)
	}
	if got := r.mustGive(podOf("p", null, 1), 0); !slices.Equal(got, []string{"a"}) {
		t.Errorf("given %v", got)
	}
}

func TestAllocateUsesPreferredAllocation(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	f := newFake(t, r.dir, null, "a", "b", "c", "d")
	f.options.GetPreferredAllocationAvailable = true
	f.joins(r)
	var asked []*pluginapi.ContainerPreferredAllocationRequest
	f.preferred = func(q *pluginapi.ContainerPreferredAllocationRequest) []string {
		asked = append(asked, q)
		return []string{"d", "nonsense", "d", "b"}
	}
	if got := r.mustGive(podOf("p", null, 2), 0); !slices.Equal(got, []string{"b", "d"}) {
		t.Errorf("given %v", got)
	}
	if len(asked) != 1 || asked[0].AllocationSize != 2 ||
		!slices.Equal(asked[0].AvailableDeviceIDs, []string{"a", "b", "c", "d"}) {
		t.Errorf("asked %v", asked)
	}
	f.preferred = nil // an error: a choice is made all the same
	if got := r.mustGive(podOf("q", null, 1), 0); !slices.Equal(got, []string{"a"}) {
		t.Errorf("given %v", got)
	}
}

func TestFailedAllocationMatchesKubeletError(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	f := newFake(t, r.dir, null, "a").joins(r)
	f.answer = func([]string) (*pluginapi.ContainerAllocateResponse, error) { return nil, errors.New("burnt") }
	p := podOf("p", null, 1)
	_, err := r.give(p, 0)
	e, ok := errors.AsType[*plan.Error](err)
	if !ok || e.Reason != "UnexpectedAdmissionError" ||
		e.Error() != "Allocate failed due to rpc error: code = Unknown desc = burnt, which is unexpected" {
		t.Errorf("%v", err)
	}
	if why := r.Observe(podOf("q", null, 1))["c0"].Pending; why == "" {
		t.Error("what may have been set up for one pod can be given to another")
	}
	f.mu.Lock()
	f.answer = nil
	f.mu.Unlock()
	r.mustGive(p, 0)
}

func TestHangingPluginDelaysOnlyItsResource(t *testing.T) { // D4
	t.Parallel()
	r := start(t, nil)
	f := newFake(t, r.dir, null, "a", "b").joins(r)
	newFake(t, r.dir, "example.com/other", "x").joins(r)
	hangs, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	f.answer = func([]string) (*pluginapi.ContainerAllocateResponse, error) {
		once.Do(func() { close(hangs) })
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
	<-hangs
	other := podOf("q", "example.com/other", 1)
	if _, err := r.Allocate(t.Context(), other, &other.Spec.Containers[0], plan.Main); err != nil {
		t.Error(err)
	}
	r.Observe(p)
	r.NodeResources()
	r.Free("nobody")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := podOf("s", null, 1)
	if _, err := r.Allocate(ctx, s, &s.Spec.Containers[0], plan.Main); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled while waiting: %v", err)
	}
	close(release)
	wg.Wait()
}

// TestConcurrentAllocationsAreDisjoint is D1 in the large.
func TestConcurrentAllocationsAreDisjoint(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	var ids []string
	for i := range 12 {
		ids = append(ids, fmt.Sprintf("d%02d", i))
	}
	newFake(t, r.dir, null, ids...).joins(r)
	var mu sync.Mutex
	holder := map[string]string{}
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
					if other := holder[id]; other != "" {
						t.Errorf("%s has %s, which %s holds", pod.Name, id, other)
					}
					holder[id] = pod.Name
				}
				mu.Unlock()
				mu.Lock()
				for _, id := range d.IDs[null] {
					delete(holder, id)
				}
				mu.Unlock()
				r.Free(pod.UID)
			}
		})
	}
	wg.Wait()
	if f := r.Stats(); len(f) != 1 || f[0].Allocated != 0 {
		t.Errorf("all devices were removed, but: %+v", f)
	}
}

func TestInitContainerDevicesAreReused(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	newFake(t, r.dir, null, "a", "b", "c").joins(r)
	pod := podOf("p", null, 1, 1)
	pod.Spec.InitContainers = []corev1.Container{
		containerOf("i1", null, 1),
		containerOf("i2", null, 2),
		containerOf("side", null, 1),
	}
	var given []string
	for _, x := range []struct {
		c    *corev1.Container
		kind plan.ContainerKind
	}{
		{&pod.Spec.InitContainers[0], plan.Init}, {&pod.Spec.InitContainers[1], plan.Init}, {&pod.Spec.InitContainers[2], plan.Sidecar},
		{&pod.Spec.Containers[0], plan.Main}, {&pod.Spec.Containers[1], plan.Main},
	} {
		d, err := r.Allocate(t.Context(), pod, x.c, x.kind)
		if err != nil {
			t.Fatalf("%s: %v", x.c.Name, err)
		}
		given = append(given, x.c.Name+"="+strings.Join(d.IDs[null], ","))
	}
	if diff := cmp.Diff([]string{"i1=a", "i2=a,b", "side=a", "c0=b", "c1=c"}, given); diff != "" {
		t.Errorf("want (-) got (+):\n%s", diff)
	}
	if f := r.Stats(); f[0].Allocated != 3 {
		t.Errorf("%+v", f)
	}
}
