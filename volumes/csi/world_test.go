package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/volumes"
)

// world is a host with a driver that survives crashes of the agent. The driver fails at random, before
// or after its effect. The world checks each call against the invariants of the package.
type world struct {
	t         *testing.T
	seed      uint64
	rand      *rand.Rand
	root      string
	mounts    *mountSet
	staged    map[string]string          // target by handle
	published map[string]map[string]bool // targets by handle
	running   map[string]bool            // publish targets that containers use
	stages    bool                       // the driver has STAGE_UNSTAGE_VOLUME
	errors    bool                       // the driver fails at random
	crashIn   int                        // steps until the agent crashes; negative: never
	calls     int

	manager *Manager
	volumes *volumes.Volumes
	pods    []*worldPod
}

type worldPod struct {
	pod      *corev1.Pod
	objects  plan.Objects
	target   string
	device   string // of a raw block volume
	deleting bool
}

// crash is the panic that ends the agent.
type crash struct{}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		t: t, seed: seed, rand: rand.New(rand.NewPCG(seed, 19)), root: t.TempDir(),
		mounts: &mountSet{set: map[string]bool{}},
		staged: map[string]string{}, published: map[string]map[string]bool{}, running: map[string]bool{}, crashIn: -1,
	}
	w.stages = w.rand.IntN(4) > 0
	w.startAgent()
	return w
}

func (w *world) violation(format string, args ...any) {
	w.t.Helper()
	w.t.Errorf("seed %d: "+format, append([]any{w.seed}, args...)...)
}

// startAgent replaces the agent.
func (w *world) startAgent() {
	var err error
	w.volumes, err = volumes.New(volumes.Options{RootDir: w.root, PodLogsDir: filepath.Join(w.root, "logs")})
	if err != nil {
		w.t.Fatal(err)
	}
	w.manager = New(Options{
		RootDir: w.root, NodeName: testNode, Client: newFakeAPI(csiDriver(nil)), mounted: w.mounts.mounted,
		connect: func(string) (nodeClient, error) { return worldClient{w: w}, nil }, fault: w.fault,
		devices: deviceFiles{
			check: func(path string) error {
				_, err := os.Lstat(path)
				return err
			},
			bind: func(from, to string) error {
				if _, err := os.Lstat(to); err != nil || !w.mounts.put(to, true) {
					w.violation("device %s mapped to %s twice or without a mount point: %v", from, to, err)
				}
				return nil
			},
			unbind: func(path string) error {
				if w.running[path] {
					w.violation("device %s unmapped under a running pod", path)
				}
				w.mounts.put(path, false)
				return nil
			},
		},
	})
	w.volumes.CSI = w.manager
	w.register()
}

// register registers the driver without waiting for the CSINode.
func (w *world) register() {
	w.manager.mu.Lock()
	defer w.manager.mu.Unlock()
	w.manager.drivers[testDriver] = &driver{name: testDriver, client: worldClient{w: w}}
}

// fault crashes the agent between two steps.
func (w *world) fault(string) {
	if w.crashIn == 0 {
		panic(crash{})
	}
	w.crashIn--
}

// run runs a part of the agent. It returns false if the agent has crashed.
func (w *world) run(f func()) (finished bool) {
	defer func() {
		if r := recover(); r != nil {
			if _, is := r.(crash); !is {
				panic(r)
			}
			w.crashIn = -1
			w.startAgent()
		}
	}()
	f()
	return true
}

// worldClient is the connection to the driver.
type worldClient struct {
	csipb.NodeClient // nil: other methods are not called

	w *world
}

func (worldClient) Close() error { return nil }

// outcome decides whether a call has an effect and which error it returns.
func (c worldClient) outcome() (effect bool, err error) {
	c.w.calls++
	if !c.w.errors || c.w.rand.IntN(3) > 0 {
		return true, nil
	}
	switch c.w.rand.IntN(4) {
	case 0:
		return false, status.Error(codes.Internal, "failed")
	case 1:
		return false, status.Error(codes.Unavailable, "connection lost")
	case 2:
		return true, status.Error(codes.DeadlineExceeded, "too slow")
	default:
		return false, status.Error(codes.Aborted, "operation pending")
	}
}

func (c worldClient) NodeGetCapabilities(
	context.Context, *csipb.NodeGetCapabilitiesRequest, ...grpc.CallOption,
) (*csipb.NodeGetCapabilitiesResponse, error) {
	n := newFakeNode()
	if c.w.stages {
		n = newFakeNode(stages)
	}
	return n.NodeGetCapabilities(context.Background(), nil)
}

func (c worldClient) NodeStageVolume(
	_ context.Context, q *csipb.NodeStageVolumeRequest, _ ...grpc.CallOption,
) (*csipb.NodeStageVolumeResponse, error) {
	w := c.w
	if _, err := os.Stat(q.GetStagingTargetPath()); err != nil || !w.stages {
		w.violation("NodeStageVolume without a target: %v", err)
	}
	if at := w.staged[q.GetVolumeId()]; at != "" && at != q.GetStagingTargetPath() {
		w.violation("volume %s staged twice", q.GetVolumeId())
	}
	effect, err := c.outcome()
	if effect {
		w.staged[q.GetVolumeId()] = q.GetStagingTargetPath()
		w.mounts.put(q.GetStagingTargetPath(), q.GetVolumeCapability().GetBlock() == nil)
	}
	return &csipb.NodeStageVolumeResponse{}, err
}

func (c worldClient) NodePublishVolume(
	_ context.Context, q *csipb.NodePublishVolumeRequest, _ ...grpc.CallOption,
) (*csipb.NodePublishVolumeResponse, error) {
	w := c.w
	if w.stages && (q.GetStagingTargetPath() == "" || w.staged[q.GetVolumeId()] != q.GetStagingTargetPath()) {
		w.violation("volume %s published before it was staged", q.GetVolumeId())
	}
	if w.running[q.GetTargetPath()] {
		w.violation("volume %s published again under a running pod", q.GetVolumeId())
	}
	effect, err := c.outcome()
	if effect {
		err := os.MkdirAll(filepath.Dir(q.GetTargetPath()), 0o750)
		if q.GetVolumeCapability().GetBlock() != nil {
			err = errors.Join(err, os.WriteFile(q.GetTargetPath(), nil, 0o640))
		} else {
			err = errors.Join(err, os.MkdirAll(q.GetTargetPath(), 0o750))
		}
		if err != nil {
			w.t.Fatal(err)
		}
		if w.published[q.GetVolumeId()] == nil {
			w.published[q.GetVolumeId()] = map[string]bool{}
		}
		w.published[q.GetVolumeId()][q.GetTargetPath()] = true
		w.mounts.put(q.GetTargetPath(), true)
	}
	return &csipb.NodePublishVolumeResponse{}, err
}

func (c worldClient) NodeUnpublishVolume(
	_ context.Context, q *csipb.NodeUnpublishVolumeRequest, _ ...grpc.CallOption,
) (*csipb.NodeUnpublishVolumeResponse, error) {
	w := c.w
	if w.running[q.GetTargetPath()] {
		w.violation("volume %s unpublished under a running pod", q.GetVolumeId())
	}
	effect, err := c.outcome()
	if effect {
		delete(w.published[q.GetVolumeId()], q.GetTargetPath())
		w.mounts.put(q.GetTargetPath(), false)
		if err := os.Remove(q.GetTargetPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.t.Fatal(err)
		}
	}
	return &csipb.NodeUnpublishVolumeResponse{}, err
}

func (c worldClient) NodeUnstageVolume(
	_ context.Context, q *csipb.NodeUnstageVolumeRequest, _ ...grpc.CallOption,
) (*csipb.NodeUnstageVolumeResponse, error) {
	w := c.w
	if len(w.published[q.GetVolumeId()]) > 0 {
		w.violation("volume %s unstaged while it is published", q.GetVolumeId())
	}
	effect, err := c.outcome()
	if effect {
		delete(w.staged, q.GetVolumeId())
		w.mounts.put(q.GetStagingTargetPath(), false)
	}
	return &csipb.NodeUnstageVolumeResponse{}, err
}

// step lets one thing happen.
func (w *world) step(i int) {
	ctx := w.t.Context()
	if w.rand.IntN(4) == 0 {
		w.crashIn = w.rand.IntN(8)
	}
	switch w.rand.IntN(8) {
	case 0: // a new pod, with one of two volumes
		if len(w.pods) < 4 {
			w.addPod(fmt.Sprintf("%d-%d", w.seed, i), fmt.Sprintf("pv-%d", w.rand.IntN(2)))
		}
	case 1:
		if p := w.somePod(); p != nil {
			p.deleting = true
		}
	case 2: // the driver restarts
		w.manager.mu.Lock()
		w.manager.forgetStaged(testDriver)
		delete(w.manager.drivers, testDriver)
		w.manager.mu.Unlock()
		w.register()
	case 3: // the agent restarts
		w.crashIn = -1
		w.startAgent()
	case 4: // the host reboots
		if w.rand.IntN(4) == 0 {
			w.crashIn = -1
			w.mounts.set, w.staged, w.running = map[string]bool{}, map[string]string{}, map[string]bool{}
			w.published = map[string]map[string]bool{}
			w.startAgent()
		}
	case 5:
		w.run(func() { w.unstage(ctx) })
	default:
		if p := w.somePod(); p != nil {
			w.syncPod(ctx, p)
		}
	}
	w.crashIn = -1
}

func (w *world) somePod() *worldPod {
	if len(w.pods) == 0 {
		return nil
	}
	return w.pods[w.rand.IntN(len(w.pods))]
}

func (w *world) addPod(uid, volume string) {
	p := &worldPod{pod: testPod(uid)}
	pv := testVolume(volume)
	p.objects = plan.Objects{{Kind: plan.Claim, Name: "claim"}: {Volume: pv}}
	p.target = filepath.Join(w.root, "pods", uid, "volumes", podVolumesDir, volume, publishName)
	if volume == "pv-1" {
		pv.Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
		p.target = w.manager.blockTarget(p.pod.UID, volume)
		p.device = w.manager.DevicePath(p.pod.UID, volume)
	}
	w.pods = append(w.pods, p)
}

// syncPod does what the worker of a pod does.
func (w *world) syncPod(ctx context.Context, p *worldPod) {
	if p.deleting {
		w.deletePod(ctx, p)
		return
	}
	_, observed, err := w.volumes.Observe(ctx, p.pod)
	if err != nil {
		w.t.Fatal(err)
	}
	state, exists := observed["data"]
	before := w.calls
	var mountErr error
	finished := w.run(func() { mountErr = w.volumes.Mount(ctx, p.pod, "data", "1", p.objects, nil) })
	if exists && !state.Incomplete && w.calls != before {
		w.violation("calls for a volume that is set up")
	}
	if finished && mountErr == nil {
		if mounted, _ := w.mounts.mounted(p.target); !mounted {
			w.violation("volume set up without a mount")
		}
		w.running[p.target] = true
		if p.device != "" {
			if mounted, _ := w.mounts.mounted(p.device); !mounted {
				w.violation("device not mapped")
			}
			w.running[p.device] = true
		}
	}
}

// deletePod stops the containers of a pod and removes what is left of it. Errors are repeated by a later step.
func (w *world) deletePod(ctx context.Context, p *worldPod) {
	delete(w.running, p.target)
	delete(w.running, p.device)
	w.run(func() {
		_, observed, err := w.volumes.Observe(ctx, p.pod)
		if err != nil {
			w.t.Fatal(err)
		}
		for name := range observed {
			if w.volumes.Unmount(ctx, p.pod, name) != nil {
				return
			}
		}
		if w.volumes.RemoveDirs(ctx, p.pod) != nil {
			return
		}
		for i := range w.pods {
			if w.pods[i] == p {
				w.pods = append(w.pods[:i], w.pods[i+1:]...)
				break
			}
		}
	})
}

// unstage is one pass of Run.
func (w *world) unstage(ctx context.Context) {
	due, err := w.manager.scan()
	if err != nil {
		w.t.Fatal(err)
	}
	for dir, data := range due {
		_ = w.manager.unstage(ctx, dir, data) // repeated by a later step
	}
}

// TestWorld lets pods with volumes come and go on a host whose driver fails, while the agent crashes between
// any two steps. At the end nothing is left.
func TestWorld(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		w := newWorld(t, seed)
		w.errors = seed%3 > 0
		for i := range 80 {
			w.step(i)
		}
		w.errors = false
		for i := 0; len(w.pods) > 0; i++ {
			if i == 100 {
				t.Fatalf("seed %d: pods cannot be deleted", seed)
			}
			w.pods[0].deleting = true
			w.syncPod(t.Context(), w.pods[0])
		}
		w.unstage(t.Context())
		if left := w.mounts.all(); len(left) > 0 || len(w.staged) > 0 {
			t.Errorf("seed %d: mounts left: %q, staged: %v", seed, left, w.staged)
		}
		if left := filesBelow(t, w.root); len(left) > 0 {
			t.Errorf("seed %d: files left: %q", seed, left)
		}
		if t.Failed() {
			return
		}
	}
}

// filesBelow lists what is left of volumes and pods. Empty directories of drivers are not removed, like by the
// kubelet.
func filesBelow(t *testing.T, root string) (out []string) {
	t.Helper()
	for _, pattern := range []string{"plugins/kubernetes.io/csi/*/*", "pods/*"} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range paths {
			entries, err := os.ReadDir(p)
			if err != nil || len(entries) > 0 || !strings.Contains(p, "/"+blockDirName+"/") {
				out = append(out, strings.TrimPrefix(p, root))
			}
		}
	}
	return out
}
