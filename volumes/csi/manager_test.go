package csi

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

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/internal/apiclient"
)

// host is a manager with a driver that serves gRPC on a socket.
type host struct {
	*Manager
	t        *testing.T
	api      *fakeAPI
	driver   *fakeNode
	mounts   *mountSet
	endpoint string
	changes  chan struct{} // signals OnChange; capacity 1

	mu     sync.Mutex
	events []string
	pods   []*corev1.Pod // running ones
}

// newHost starts a manager. The driver is not registered.
func newHost(t *testing.T, d *fakeNode, objects ...any) *host {
	t.Helper()
	h := &host{t: t, api: newFakeAPI(), driver: d, mounts: &mountSet{set: map[string]bool{}}}
	node := &corev1.Node{}
	node.Name, node.UID = testNode, "node-uid"
	h.api.put(node)
	for _, o := range objects {
		switch o := o.(type) {
		case *storagev1.CSIDriver:
			h.api.put(o)
		case *corev1.Secret:
			h.api.put(o)
		case *corev1.PersistentVolume:
			h.api.put(o)
		case *corev1.PersistentVolumeClaim:
			h.api.put(o)
		}
	}
	h.changes = make(chan struct{}, 1)
	h.Manager = New(Options{
		RootDir: t.TempDir(), NodeName: testNode, Client: h.api, mounted: h.mounts.mounted,
		CallTimeout: 10 * time.Second, DriverTimeout: 200 * time.Millisecond, AttachTimeout: 10 * time.Second,
		RetryMin: 10 * time.Millisecond, OnChange: func() { signal(h.changes) },
	})
	h.pods = []*corev1.Pod{inlinePod("one")}
	h.opt.RunningPods = func() []*corev1.Pod {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.pods
	}
	h.opt.OnEvent = func(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim, kind, reason, message string) {
		h.mu.Lock()
		defer h.mu.Unlock()
		name := ""
		if claim != nil {
			name = claim.Name
		}
		h.events = append(h.events, fmt.Sprintf("%s %s %s %s: %s", pod.Name, name, kind, reason, message))
	}
	h.opt.RepublishInterval, h.opt.ExpandInterval = 20*time.Millisecond, 20*time.Millisecond
	h.opt.HealthInterval = 20 * time.Millisecond
	h.opt.VolumeName = func(_ *corev1.Pod, specName string) string { return "name of " + specName }
	h.publishNode()
	h.api.onWrite = h.publishNode
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = h.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Error("the manager does not stop")
		}
	})
	dir, err := os.MkdirTemp("", "csi") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	h.endpoint = filepath.Join(dir, "csi.sock")
	ln, err := new(net.ListenConfig).Listen(t.Context(), "unix", h.endpoint)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	csipb.RegisterNodeServer(s, d)
	go func() { _ = s.Serve(ln) }()
	t.Cleanup(s.Stop)
	return h
}

// publishNode passes the current Node to the manager.
func (h *host) publishNode() {
	n := &corev1.Node{}
	if err := h.api.Get(context.Background(), apiclient.Nodes, "", testNode, n); err == nil {
		h.SetNode(n)
	}
}

// updateNode changes the Node on the server.
func (h *host) updateNode(change func(*corev1.Node)) {
	h.t.Helper()
	n := &corev1.Node{}
	if err := h.api.Get(h.t.Context(), apiclient.Nodes, "", testNode, n); err != nil {
		h.t.Fatal(err)
	}
	change(n)
	h.api.put(n)
	h.publishNode()
}

func (h *host) register() {
	h.t.Helper()
	if err := h.Register(h.t.Context(), testDriver, h.endpoint, []string{"1.0.0"}); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) csiNode() *storagev1.CSINode {
	n := &storagev1.CSINode{}
	if err := h.api.Get(context.Background(), apiclient.CSINodes, "", testNode, n); err != nil {
		return nil
	}
	return n
}

func (h *host) setUp(pod *corev1.Pod, pv *corev1.PersistentVolume) error {
	_, err := h.SetUp(h.t.Context(), pod, &pod.Spec.Volumes[0], pv)
	return err
}

// eventOf returns the reason and the message of the event of an error.
func eventOf(t *testing.T, err error) (reason, message string) {
	t.Helper()
	out := plan.Outcome{Action: plan.MountVolume{Volume: "data"}, Err: err}
	reasons := plan.ActionFinished(out)
	if len(reasons) != 1 {
		t.Fatalf("got events %v for %v", reasons, err)
	}
	return reasons[0].Code, reasons[0].Message
}

func TestRegistration(t *testing.T) {
	t.Parallel()
	d := newFakeNode()
	d.info.AccessibleTopology = &csipb.Topology{Segments: map[string]string{"zone": "a"}}
	d.info.MaxVolumesPerNode = 5
	h := newHost(t, d)
	eventually(t, "an empty CSINode", func() bool { n := h.csiNode(); return n != nil && len(n.Spec.Drivers) == 0 })
	if owner := h.csiNode().OwnerReferences; len(owner) != 1 || owner[0].UID != "node-uid" {
		t.Errorf("got owners %v", owner)
	}
	h.register()
	if n := h.csiNode(); len(n.Spec.Drivers) != 1 || n.Spec.Drivers[0].NodeID != "id-1" ||
		*n.Spec.Drivers[0].Allocatable.Count != 5 || !slices.Equal(n.Spec.Drivers[0].TopologyKeys, []string{"zone"}) {
		t.Errorf("got drivers %+v", n.Spec.Drivers)
	}
	n := &corev1.Node{}
	if err := h.api.Get(t.Context(), apiclient.Nodes, "", testNode, n); err != nil || n.Labels["zone"] != "a" ||
		n.Annotations[annNodeID] != `{"csi.example.com":"id-1"}` {
		t.Errorf("got labels %v, annotations %v, %v", n.Labels, n.Annotations, err)
	}
	if err := h.Register(t.Context(), testDriver, "/other", []string{"1.0.0"}); err == nil {
		t.Error("a second driver with the same name was registered")
	}
	if err := h.Register(t.Context(), "new.example.com", h.endpoint, []string{"0.3.0"}); err == nil {
		t.Error("a driver of an old version was registered")
	}
	h.Deregister(testDriver, h.endpoint)
	eventually(t, "the CSINode without the driver", func() bool { return len(h.csiNode().Spec.Drivers) == 0 })

	// The Node is replaced: the CSINode of the old one is, too.
	h.register()
	n = &corev1.Node{}
	n.Name, n.UID = testNode, "new-uid"
	h.api.put(n)
	h.publishNode()
	eventually(t, "the CSINode of the new Node", func() bool {
		c := h.csiNode()
		return c != nil && len(c.Spec.Drivers) == 1 && ownsCSINode(c, testNode, "new-uid")
	})

	// Another topology than the label of the Node is refused.
	h.Deregister(testDriver, h.endpoint)
	eventually(t, "the CSINode without the driver", func() bool { return len(h.csiNode().Spec.Drivers) == 0 })
	d.mu.Lock()
	d.info.AccessibleTopology = &csipb.Topology{Segments: map[string]string{"zone": "b"}}
	d.mu.Unlock()
	err := h.Register(t.Context(), testDriver, h.endpoint, []string{"1.0.0"})
	if err == nil || !strings.Contains(err.Error(), "topology value collision") {
		t.Errorf("got error %v, want a collision", err)
	}
}

// TestCSINodeIsRetried registers a driver while the server does not respond.
func TestCSINodeIsRetried(t *testing.T) {
	t.Parallel()
	h := newHost(t, newFakeNode())
	h.api.mu.Lock()
	h.api.err = errors.New("no server")
	h.api.mu.Unlock()
	done := make(chan error, 1)
	go func() { done <- h.Register(context.Background(), testDriver, h.endpoint, []string{"1.0.0"}) }()
	eventually(t, "the driver", func() bool { _, err := h.registered(testDriver); return err == nil })
	h.api.mu.Lock()
	h.api.err = nil
	h.api.mu.Unlock()
	eventually(t, "the driver in the CSINode", func() bool {
		n := h.csiNode()
		return n != nil && len(n.Spec.Drivers) == 1
	})
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestSetUp checks the calls for a volume of two pods, with secrets and tokens.
func TestSetUp(t *testing.T) {
	t.Parallel()
	secret := &corev1.Secret{Data: map[string][]byte{"user": []byte("admin")}}
	secret.Namespace, secret.Name = "storage", "credentials"
	d := newFakeNode(stages)
	h := newHost(t, d, secret, csiDriver(func(s *storagev1.CSIDriverSpec) {
		s.TokenRequests = []storagev1.TokenRequest{{Audience: "vault", ExpirationSeconds: new(int64(600))}}
	}))
	h.register()
	pv := testVolume("pv")
	pv.Spec.MountOptions = []string{"noatime"}
	ref := &corev1.SecretReference{Namespace: "storage", Name: "credentials"}
	pv.Spec.CSI.NodeStageSecretRef, pv.Spec.CSI.NodePublishSecretRef = ref, ref
	one, two := testPod("one"), testPod("two")
	if err := errors.Join(h.setUp(one, pv), h.setUp(two, pv)); err != nil {
		t.Fatal(err)
	}
	if d.count("NodeStageVolume") != 1 || d.count("NodePublishVolume") != 2 || d.count("NodeGetCapabilities") != 1 {
		t.Errorf("got calls %q", d.calls)
	}
	stage := d.request("NodeStageVolume").(*csipb.NodeStageVolumeRequest)
	if stage.GetSecrets()["user"] != "admin" || stage.GetVolumeContext()["color"] != "red" ||
		!slices.Equal(stage.GetVolumeCapability().GetMount().GetMountFlags(), []string{"noatime"}) {
		t.Errorf("got %v", stage.GetVolumeCapability())
	}
	publish := d.request("NodePublishVolume").(*csipb.NodePublishVolumeRequest)
	if tokens := publish.GetVolumeContext()[tokensAttribute]; !strings.Contains(tokens,
		`"vault":{"token":"token of default/robot for [vault]"`) {
		t.Errorf("got tokens %s", tokens)
	}
	if q := h.api.tokens[0].Spec; q.BoundObjectRef.UID != "one" || *q.ExpirationSeconds != 600 {
		t.Errorf("got token request %+v", q)
	}
	if publish.GetStagingTargetPath() != stage.GetStagingTargetPath() || publish.GetSecrets()["user"] != "admin" ||
		publish.GetTargetPath() != h.Path(two, "pv") {
		t.Errorf("got paths %s, %s", publish.GetStagingTargetPath(), publish.GetTargetPath())
	}
	if err := h.TearDown(t.Context(), "one", "pv"); err != nil {
		t.Fatal(err)
	}
	if err := h.TearDown(t.Context(), "two", "pv"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the volume to be unstaged", func() bool {
		_, err := os.Stat(h.stagedDir(volumeKey{testDriver, "handle-pv"}))
		return os.IsNotExist(err)
	})
	if d.count("NodeUnpublishVolume") != 2 || d.count("NodeUnstageVolume") != 1 {
		t.Errorf("got calls %q", d.calls)
	}
}

func TestReadWriteOncePod(t *testing.T) {
	t.Parallel()
	h := newHost(t, newFakeNode(), csiDriver(nil))
	h.register()
	pv := testVolume("pv")
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	if err := h.setUp(testPod("one"), pv); err != nil {
		t.Fatal(err)
	}
	_, message := eventOf(t, h.setUp(testPod("two"), pv))
	if message != `MountVolume.SetUp failed for volume "pv" : volume uses the ReadWriteOncePod access mode and is `+
		`already in use by another pod` {
		t.Errorf("got event %s", message)
	}
	if err := h.setUp(testPod("one"), pv); err != nil {
		t.Errorf("the setup cannot be repeated: %v", err)
	}
}

// TestEvents compares the events of failures with those of the kubelet.
func TestEvents(t *testing.T) {
	t.Parallel()
	d := newFakeNode(stages)
	h := newHost(t, d, csiDriver(nil))
	pod, pv := testPod("one"), testVolume("pv")
	check := func(err error, want string) {
		t.Helper()
		if reason, message := eventOf(t, err); reason != "FailedMount" || message != want {
			t.Errorf("got event %s: %s\nwant %s", reason, message, want)
		}
	}
	check(h.setUp(pod, pv), `MountVolume.SetUp failed for volume "pv" : kubernetes.io/csi: mounter.SetUpAt failed `+
		`to get CSI client: driver name csi.example.com not found in the list of registered CSI drivers`)
	h.register()
	fail := func(failing string) {
		d.setHandle(func(_ context.Context, method string, _ any) error {
			if method == failing {
				return status.Error(codes.Internal, "disk is broken")
			}
			return nil
		})
	}
	fail("NodeStageVolume")
	check(h.setUp(pod, pv), `MountVolume.MountDevice failed for volume "pv" : rpc error: code = Internal desc = `+
		`disk is broken`)
	if _, err := os.Stat(h.stagedDir(volumeKey{testDriver, "handle-pv"})); !os.IsNotExist(err) {
		t.Errorf("a volume that was not staged has a directory: %v", err)
	}
	fail("NodePublishVolume")
	check(h.setUp(pod, pv), `MountVolume.SetUp failed for volume "pv" : rpc error: code = Internal desc = `+
		`disk is broken`)
	inline := inlinePod("two")
	check(h.setUp(inline, nil), `MountVolume.SetUp failed for volume "inline" : kubernetes.io/csi: mounter.SetupAt `+
		`failed to check volume lifecycle mode: volume mode "Ephemeral" not supported by driver csi.example.com `+
		`(only supports ["Persistent"])`)
	pv.Spec.CSI.NodePublishSecretRef = &corev1.SecretReference{Namespace: "storage", Name: "gone"}
	if _, message := eventOf(t, h.setUp(pod, pv)); !strings.Contains(message,
		"fetching NodePublishSecretRef storage/gone failed") {
		t.Errorf("got event %s", message)
	}
}

// TestHangingDriver checks that a call that does not return delays neither other volumes nor the end of the manager,
// and that it is named.
func TestHangingDriver(t *testing.T) {
	t.Parallel()
	d := newFakeNode(stages)
	h := newHost(t, d, csiDriver(nil))
	h.register()
	d.setHandle(func(ctx context.Context, method string, q any) error {
		if s, ok := q.(*csipb.NodeStageVolumeRequest); ok && s.GetVolumeId() == "handle-slow" {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	slow, done := testPod("slow"), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, err := h.SetUp(ctx, slow, &slow.Spec.Volumes[0], testVolume("slow"))
		done <- err
	}()
	want := "waiting for NodeStageVolume of CSI driver csi.example.com since "
	eventually(t, "the progress", func() bool { return strings.HasPrefix(h.Progress("slow", "slow"), want) })
	if err := h.setUp(testPod("quick"), testVolume("quick")); err != nil {
		t.Error(err)
	}
	cancel()
	select {
	case err := <-done:
		if plan.KindOf(err) != plan.Canceled && !strings.Contains(err.Error(), "anceled") {
			t.Errorf("got error %v", err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("SetUp does not end with its context")
	}
	if p := h.Progress("slow", "slow"); p != "" {
		t.Errorf("got progress %s after the end", p)
	}
	if err := h.TearDown(t.Context(), "slow", "slow"); err != nil {
		t.Error(err)
	}
	eventually(t, "the interrupted volume to be unstaged", func() bool { return d.count("NodeUnstageVolume") == 1 })
}

// TestAttachment waits for a volume that a controller attaches.
func TestAttachment(t *testing.T) {
	t.Parallel()
	d := newFakeNode()
	h := newHost(t, d, csiDriver(func(s *storagev1.CSIDriverSpec) { s.AttachRequired = nil }))
	h.register()
	pod, pv := testPod("one"), testVolume("pv")
	key := volumeKey{testDriver, "handle-pv"}
	done := make(chan error, 1)
	go func() { done <- h.setUp(pod, pv) }()
	eventually(t, "the volume to be in use", func() bool {
		return slices.Equal(h.VolumesInUse(), []corev1.UniqueVolumeName{key.uniqueName()})
	})
	h.updateNode(func(n *corev1.Node) { n.Status.VolumesInUse = h.VolumesInUse() })
	eventually(t, "the wait for the controller", func() bool {
		return strings.Contains(h.Progress("one", "pv"), "attached to the node")
	})
	if d.count("NodePublishVolume") > 0 {
		t.Error("the volume was published before it was attached")
	}
	a := &storagev1.VolumeAttachment{}
	a.Name = attachmentName(key, testNode)
	a.Status.Attached, a.Status.AttachmentMetadata = true, map[string]string{"device": "sdb"}
	h.api.put(a)
	h.updateNode(func(n *corev1.Node) {
		n.Status.VolumesAttached = []corev1.AttachedVolume{{Name: key.uniqueName()}}
	})
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	q := d.request("NodePublishVolume").(*csipb.NodePublishVolumeRequest)
	if q.GetPublishContext()["device"] != "sdb" {
		t.Errorf("got publish context %v", q.GetPublishContext())
	}
	if err := h.TearDown(t.Context(), types.UID("one"), "pv"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the volume not to be in use", func() bool { return len(h.VolumesInUse()) == 0 })

	a.Status.Attached, a.Status.AttachError = false, &storagev1.VolumeError{Message: "no disk"}
	h.api.put(a)
	reason, message := eventOf(t, h.setUp(pod, pv))
	if reason != "FailedAttachVolume" || message != `AttachVolume.Attach failed for volume "pv" : no disk` {
		t.Errorf("got event %s: %s", reason, message)
	}
}

// TestVolumesOfEarlierAgent checks that volumes whose pods are gone are unstaged after a restart, and that volumes in
// use are not.
func TestVolumesOfEarlierAgent(t *testing.T) {
	t.Parallel()
	d := newFakeNode(stages)
	h := newHost(t, d, csiDriver(nil))
	for _, name := range []string{"used", "unused", "foreign"} {
		key := volumeKey{testDriver, name}
		if err := writeData(h.stagedDir(key), volumeData{Driver: testDriver, Handle: name}); err != nil {
			t.Fatal(err)
		}
		if name == "foreign" {
			continue
		}
		if err := mark(h.stagedDir(key)); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeData(h.podVolumeDir("one", "pv"), volumeData{Driver: testDriver, Handle: "used"}); err != nil {
		t.Fatal(err)
	}
	h.register()
	eventually(t, "the unused volume to be unstaged", func() bool {
		_, err := os.Stat(h.stagedDir(volumeKey{testDriver, "unused"}))
		return os.IsNotExist(err)
	})
	if _, err := os.Stat(h.stagedDir(volumeKey{testDriver, "used"})); err != nil || d.count("NodeUnstageVolume") != 1 {
		t.Errorf("the volume in use: %v, calls %q", err, d.calls)
	}
	if _, err := os.Stat(h.stagedDir(volumeKey{testDriver, "foreign"})); err != nil {
		t.Errorf("the volume of another program: %v", err)
	}
}

// TestBootWithoutServer checks that a volume is set up again with the saved CSIDriver object.
func TestBootWithoutServer(t *testing.T) {
	t.Parallel()
	var saved []byte
	m := New(Options{RootDir: t.TempDir(), Client: newFakeAPI(csiDriver(nil)), Save: func(s []byte) { saved = s }})
	if _, err := m.driverSpec(t.Context(), testDriver); err != nil {
		t.Fatal(err)
	}
	api := newFakeAPI()
	api.err = errors.New("no server")
	m = New(Options{RootDir: t.TempDir(), Client: api, Saved: saved})
	spec, err := m.driverSpec(t.Context(), testDriver)
	if err != nil || spec == nil || requiresAttach(spec) {
		t.Errorf("got %+v, %v", spec, err)
	}
	if _, err := m.driverSpec(t.Context(), "unknown.example.com"); err == nil {
		t.Error("got no error for an unknown driver")
	}
}

// TestRepublish checks that a driver with requiresRepublish is called again for a running pod, with new tokens.
func TestRepublish(t *testing.T) {
	t.Parallel()
	d := newFakeNode()
	spec := csiDriver(func(s *storagev1.CSIDriverSpec) {
		s.RequiresRepublish, s.VolumeLifecycleModes = new(true), []storagev1.VolumeLifecycleMode{"Ephemeral"}
		s.TokenRequests = []storagev1.TokenRequest{{}}
	})
	h := newHost(t, d, spec, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "key"}})
	h.register()
	pod := inlinePod("one")
	if err := h.setUp(pod, nil); err != nil {
		t.Fatal(err)
	}
	h.mounts.put(h.Path(pod, "inline"), true)
	eventually(t, "further calls", func() bool { return d.count("NodePublishVolume") > 3 })
	h.api.mu.Lock()
	defer h.api.mu.Unlock()
	if len(h.api.tokens) < 4 {
		t.Errorf("got %d token requests for %d calls", len(h.api.tokens), d.count("NodePublishVolume"))
	}
}

// TestUnreadableData checks that data that a loss of power has truncated prevents nothing.
func TestUnreadableData(t *testing.T) {
	t.Parallel()
	d := newFakeNode(stages)
	h := newHost(t, d, csiDriver(nil))
	h.register()
	broken := h.podVolumeDir("broken", "pv")
	if err := errors.Join(os.MkdirAll(filepath.Join(broken, publishName), 0o750),
		os.WriteFile(filepath.Join(broken, dataName), []byte(`{"driver`), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(h.setUp(testPod("one"), testVolume("pv")), h.TearDown(t.Context(), "one", "pv")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the volume to be unstaged", func() bool { return d.count("NodeUnstageVolume") == 1 })
	h.mounts.put(filepath.Join(broken, publishName), true)
	if err := h.TearDown(t.Context(), "broken", "pv"); err == nil {
		t.Error("a mount of an unknown driver was removed")
	}
	h.mounts.put(filepath.Join(broken, publishName), false)
	if err := h.TearDown(t.Context(), "broken", "pv"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(broken); !os.IsNotExist(err) {
		t.Errorf("the directory is left: %v", err)
	}
}

// TestStats checks that statistics are measured in the background and kept.
func TestStats(t *testing.T) {
	t.Parallel()
	d := newFakeNode(csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS)
	h := newHost(t, d, csiDriver(nil))
	h.register()
	if err := h.setUp(testPod("one"), testVolume("pv")); err != nil {
		t.Fatal(err)
	}
	if _, ok := h.Stats("one", "pv"); ok {
		t.Error("got statistics before they were measured")
	}
	eventually(t, "the statistics", func() bool {
		s, ok := h.Stats("one", "pv")
		return ok && s.Capacity == 1000 && s.Used == 300 && s.InodesFree == 97
	})
	if got := d.count("NodeGetVolumeStats"); got != 1 {
		t.Errorf("got %d calls, want 1", got)
	}
}
