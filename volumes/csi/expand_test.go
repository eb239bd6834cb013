package csi

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

const expands = csipb.NodeServiceCapability_RPC_EXPAND_VOLUME

// claimOfSize returns the claim "claim" of a volume, with a capacity in its status and a state of its expansion.
func claimOfSize(volume, capacity string, state corev1.ClaimResourceStatus) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{}
	c.Namespace, c.Name, c.UID = "default", "claim", "claim-uid"
	c.Spec.VolumeName = volume
	c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}
	c.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(capacity)}
	if state != "" {
		c.Status.AllocatedResources = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}
		c.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{
			corev1.ResourceStorage: state}
	}
	return c
}

// grownVolume returns a PersistentVolume that a controller has expanded to 2Gi.
func grownVolume(name string) *corev1.PersistentVolume {
	pv := testVolume(name)
	pv.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}
	return pv
}

func TestDecideExpand(t *testing.T) {
	t.Parallel()
	const (
		pending    = corev1.PersistentVolumeClaimNodeResizePending
		infeasible = corev1.PersistentVolumeClaimNodeResizeInfeasible
	)
	for _, c := range []struct {
		name     string
		capacity string // in the status of the claim; the volume has 2Gi
		state    corev1.ClaimResourceStatus
		node     string
		mounting bool
		change   func(*corev1.PersistentVolumeClaim)
		want     expandStep
	}{
		{"a claim that has its size", "2Gi", "", "2Gi", false, nil, expandNothing},
		{"an expansion that waits for the node", "1Gi", pending, "1Gi", false, nil, expandClaim},
		{"an expansion that the node has started", "1Gi", corev1.PersistentVolumeClaimNodeResizeInProgress, "", true, nil,
			expandClaim},
		{"the controller has not finished", "1Gi", corev1.PersistentVolumeClaimControllerResizeInProgress, "1Gi", false,
			nil, expandNothing},
		{"an old resizer, which sets no state", "1Gi", "", "1Gi", false, nil, expandClaim},
		{"a new resizer that has not set the state yet", "1Gi", "", "1Gi", false, func(c *corev1.PersistentVolumeClaim) {
			c.Status.AllocatedResources = c.Spec.Resources.Requests
		}, expandNothing},
		{"an infeasible expansion is repeated", "1Gi", infeasible, "1Gi", false, nil, expandClaim},
		{"an infeasible expansion delays no pod", "1Gi", infeasible, "1Gi", true, nil, expandNothing},
		{"a shared volume that another node has expanded", "2Gi", "", "1Gi", false, shared, expandNode},
		{"a shared volume of unknown size", "2Gi", "", "0", false, shared, expandNothing},
		{"a shared volume that needs one expansion only", "2Gi", "", "1Gi", false, func(c *corev1.PersistentVolumeClaim) {
			shared(c)
			c.Annotations = map[string]string{annExpansionNotRequired: "true"}
		}, expandNothing},
		{"an exclusive volume that the controller has expanded", "2Gi", "", "1Gi", false, nil, expandNothing},
	} {
		claim := claimOfSize("pv", c.capacity, c.state)
		if c.change != nil {
			c.change(claim)
		}
		in := expandInputs{claim: claim, capacity: resource.MustParse("2Gi"), mounting: c.mounting}
		if c.node != "" {
			in.node = resource.MustParse(c.node)
		}
		got := decideExpand(in)
		if got != c.want {
			t.Errorf("%s: got step %d, want %d", c.name, got, c.want)
		}
		if got != expandNothing && !mayExpand(claim, in.node) {
			t.Errorf("%s: the volume is not read", c.name)
		}
	}
}

func shared(c *corev1.PersistentVolumeClaim) {
	c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
}

// claim returns the claim on the server.
func (h *host) claim() *corev1.PersistentVolumeClaim {
	h.t.Helper()
	c, err := h.claimOf(context.Background(), "default", "claim")
	if err != nil {
		h.t.Fatal(err)
	}
	return c
}

// changeClaim changes the claim on the server.
func (h *host) changeClaim(change func(*corev1.PersistentVolumeClaim)) {
	h.t.Helper()
	c := h.claim()
	change(c)
	h.api.put(c)
}

// eventTexts returns the events so far.
func (h *host) eventTexts() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.events)
}

// expandingHost returns a manager with a registered driver that can expand volumes, and the pod "one", which runs.
func expandingHost(t *testing.T, claim *corev1.PersistentVolumeClaim, handle func(string) error) (*host, *corev1.Pod) {
	t.Helper()
	d := newFakeNode(stages, expands)
	d.handle = func(_ context.Context, method string, _ any) error {
		return handle(method)
	}
	h := newHost(t, d, csiDriver(nil), claim, grownVolume("pv"))
	h.register()
	pod := testPod("one")
	h.mu.Lock()
	h.pods = []*corev1.Pod{pod}
	h.mu.Unlock()
	return h, pod
}

func succeed(string) error { return nil }

func TestExpandAtMount(t *testing.T) {
	t.Parallel()
	h, pod := expandingHost(t, claimOfSize("pv", "1Gi", corev1.PersistentVolumeClaimNodeResizePending), succeed)
	h.changeClaim(func(c *corev1.PersistentVolumeClaim) {
		c.Status.Conditions = []corev1.PersistentVolumeClaimCondition{
			{Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue}, {Type: "Other"}}
	})
	pv := grownVolume("pv")
	pv.Spec.CSI.NodeExpandSecretRef = &corev1.SecretReference{Namespace: "default", Name: "key"}
	key := &corev1.Secret{Data: map[string][]byte{"password": []byte("x")}}
	key.Namespace, key.Name = "default", "key"
	h.api.put(pv)
	h.api.put(key)
	if err := h.setUp(pod, pv); err != nil {
		t.Fatal(err)
	}
	q := h.driver.request("NodeExpandVolume").(*csipb.NodeExpandVolumeRequest)
	if q.GetVolumeId() != "handle-pv" || q.GetCapacityRange().GetRequiredBytes() != 2<<30 ||
		!strings.HasSuffix(q.GetStagingTargetPath(), "/globalmount") ||
		!strings.HasSuffix(q.GetVolumePath(), "/pods/one/volumes/kubernetes.io~csi/pv/mount") ||
		q.GetVolumeCapability().GetMount().GetFsType() != "ext4" || q.GetSecrets()["password"] != "x" {
		t.Errorf("got request %v", q)
	}
	c := h.claim()
	if size := c.Status.Capacity[corev1.ResourceStorage]; size.String() != "2Gi" || resizeState(c) != "" ||
		len(c.Status.Conditions) != 1 || c.Status.Conditions[0].Type != "Other" {
		t.Errorf("got status %+v", c.Status)
	}
	want := []string{`pod-one claim Normal FileSystemResizeSuccessful: MountVolume.NodeExpandVolume succeeded for volume ` +
		`"pv" node-1`}
	if got := h.eventTexts(); !slices.Equal(got, want) {
		t.Errorf("got events %q", got)
	}
	// A volume that has its size is not expanded again.
	if err := h.setUp(testPod("two"), pv); err != nil {
		t.Fatal(err)
	}
	if n := h.driver.count("NodeExpandVolume"); n != 1 {
		t.Errorf("got %d calls, want 1", n)
	}
}

func TestExpandAtMountFails(t *testing.T) {
	t.Parallel()
	var code codes.Code
	h, pod := expandingHost(t, claimOfSize("pv", "1Gi", corev1.PersistentVolumeClaimNodeResizePending),
		func(method string) error {
			if method == "NodeExpandVolume" {
				return status.Error(code, "no")
			}
			return nil
		})
	h.mu.Lock()
	h.pods = nil
	h.mu.Unlock()
	code = codes.Internal
	err := h.setUp(pod, grownVolume("pv"))
	if reason, message := eventOf(t, err); reason != "FailedMount" ||
		!strings.HasPrefix(message, `MountVolume.NodeExpandVolume failed for volume "pv" : `) {
		t.Errorf("got event %s %s", reason, message)
	}
	c := h.claim()
	if len(c.Status.Conditions) != 1 || c.Status.Conditions[0].Type != corev1.PersistentVolumeClaimNodeResizeError ||
		resizeState(c) != corev1.PersistentVolumeClaimNodeResizeInProgress {
		t.Errorf("got status %+v", c.Status)
	}
	code = codes.FailedPrecondition // the volume is in use: the pod starts with the old size
	if err := h.setUp(pod, grownVolume("pv")); err != nil {
		t.Error(err)
	}
	code = codes.OutOfRange
	if err := h.setUp(pod, grownVolume("pv")); err == nil {
		t.Error("got no error of an infeasible expansion")
	}
	if state := resizeState(h.claim()); state != corev1.PersistentVolumeClaimNodeResizeInfeasible {
		t.Errorf("got state %s", state)
	}
	if err := h.setUp(pod, grownVolume("pv")); err != nil {
		t.Errorf("an infeasible expansion delays the pod: %v", err)
	}
}

func TestExpandWithoutServer(t *testing.T) {
	t.Parallel()
	h, pod := expandingHost(t, claimOfSize("pv", "1Gi", corev1.PersistentVolumeClaimNodeResizePending), succeed)
	if _, err := h.driverSpec(t.Context(), testDriver); err != nil {
		t.Fatal(err)
	}
	h.api.mu.Lock()
	h.api.err = errors.New("connection refused")
	h.api.mu.Unlock()
	if err := h.setUp(pod, grownVolume("pv")); err != nil {
		t.Errorf("the volume requires the server: %v", err)
	}
}

func TestExpandReadOnlyVolume(t *testing.T) {
	t.Parallel()
	h, pod := expandingHost(t, claimOfSize("pv", "1Gi", corev1.PersistentVolumeClaimNodeResizePending), succeed)
	pod.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
	if err := h.setUp(pod, grownVolume("pv")); err != nil {
		t.Fatal(err)
	}
	if n := h.driver.count("NodeExpandVolume"); n != 0 {
		t.Errorf("got %d calls for a read-only volume", n)
	}
	if got := h.eventTexts(); len(got) != 1 || !strings.Contains(got[0], "FileSystemResizeFailed") {
		t.Errorf("got events %q", got)
	}
}

// TestExpandWhileMounted expands the volume of a running pod, which a controller has expanded, and repeats it after
// an error.
func TestExpandWhileMounted(t *testing.T) {
	t.Parallel()
	failures := make(chan struct{}, 1)
	failures <- struct{}{}
	h, pod := expandingHost(t, claimOfSize("pv", "2Gi", ""), func(method string) error {
		if method != "NodeExpandVolume" {
			return nil
		}
		select {
		case <-failures:
			return status.Error(codes.Internal, "disk busy")
		default:
			return nil
		}
	})
	if err := h.setUp(pod, grownVolume("pv")); err != nil {
		t.Fatal(err)
	}
	h.mounts.put(h.Path(pod, "pv"), true)
	time.Sleep(50 * time.Millisecond)
	if n := h.driver.count("NodeExpandVolume"); n != 0 {
		t.Fatalf("got %d calls for a volume that has its size", n)
	}
	h.changeClaim(func(c *corev1.PersistentVolumeClaim) {
		grown := claimOfSize("pv", "1Gi", corev1.PersistentVolumeClaimNodeResizePending)
		c.Status = grown.Status
	})
	eventually(t, "the size in the claim", func() bool {
		size := h.claim().Status.Capacity[corev1.ResourceStorage]
		return size.String() == "2Gi"
	})
	if c := h.claim(); resizeState(c) != "" || len(c.Status.Conditions) != 0 {
		t.Errorf("got status %+v", c.Status)
	}
	got := strings.Join(h.eventTexts(), "\n")
	if !strings.Contains(got, `pod-one claim Warning VolumeResizeFailed: NodeExpandVolume.NodeExpandVolume failed for `+
		`volume "pv" : `) || !strings.Contains(got, "pod-one claim Normal FileSystemResizeSuccessful") {
		t.Errorf("got events %s", got)
	}
}

// TestExpandSharedVolume expands a volume of several nodes after another node has updated the claim.
func TestExpandSharedVolume(t *testing.T) {
	t.Parallel()
	claim := claimOfSize("pv", "1Gi", "")
	shared(claim)
	claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("1Gi")
	h, pod := expandingHost(t, claim, succeed)
	h.api.put(func() *corev1.PersistentVolume {
		pv := grownVolume("pv")
		pv.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse("1Gi")
		return pv
	}())
	if err := h.setUp(pod, grownVolume("pv")); err != nil {
		t.Fatal(err)
	}
	h.mounts.put(h.Path(pod, "pv"), true)
	h.api.put(grownVolume("pv"))
	h.changeClaim(func(c *corev1.PersistentVolumeClaim) {
		c.Status.Capacity[corev1.ResourceStorage] = resource.MustParse("2Gi")
	})
	version := h.claim().ResourceVersion
	eventually(t, "the expansion", func() bool { return h.driver.count("NodeExpandVolume") == 1 })
	time.Sleep(60 * time.Millisecond)
	if n := h.driver.count("NodeExpandVolume"); n != 1 || h.claim().ResourceVersion != version {
		t.Errorf("got %d calls, claim %+v", n, h.claim())
	}
}

func TestUpdateClaimRepeatsAfterConflict(t *testing.T) {
	t.Parallel()
	h, _ := expandingHost(t, claimOfSize("pv", "1Gi", ""), succeed)
	stale := h.claim()
	h.changeClaim(func(c *corev1.PersistentVolumeClaim) { c.Labels = map[string]string{"changed": "yes"} })
	err := h.updateClaim(t.Context(), stale, func(c *corev1.PersistentVolumeClaim) map[string]any {
		return expansionFinished(c, resource.MustParse("2Gi"))
	})
	if size := h.claim().Status.Capacity[corev1.ResourceStorage]; err != nil || size.String() != "2Gi" ||
		h.claim().Labels["changed"] != "yes" {
		t.Errorf("got %v, claim %+v", err, h.claim())
	}
	other := stale.DeepCopy()
	other.UID, other.ResourceVersion = "other", "1"
	err = h.updateClaim(t.Context(), other, func(*corev1.PersistentVolumeClaim) map[string]any {
		return allocatedStatus(nil)
	})
	if err == nil {
		t.Error("the claim of another one was updated")
	}
}

func TestExpansionRetries(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var e expansion
	e.failed(status.Error(codes.Internal, "x"), time.Minute, now)
	if !e.due(now.Add(2*time.Minute)) || e.due(now.Add(time.Minute)) {
		t.Errorf("got next attempt after %s", e.retryAt.Sub(now))
	}
	e = expansion{}
	e.failed(status.Error(codes.OutOfRange, "x"), time.Minute, now)
	if e.retryAt.Sub(now) != maxExpandDelay {
		t.Errorf("an infeasible expansion is repeated after %s", e.retryAt.Sub(now))
	}
	e = expansion{}
	e.failed(status.Error(codes.FailedPrecondition, "x"), time.Minute, now)
	if e.due(now.Add(time.Hour)) {
		t.Error("a volume that is in use is expanded again")
	}
}
