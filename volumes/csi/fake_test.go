package csi

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	authnv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/apiclient"
)

const (
	testDriver = "csi.example.com"
	testNode   = "node-1"
)

// fakeAPI is an API server with objects of a few kinds.
type fakeAPI struct {
	mu      sync.Mutex
	objects map[string]runtime.Object // by resource, namespace and name
	version int
	err     error // of all requests; nil: they succeed
	writes  []string
	tokens  []authnv1.TokenRequest
	onWrite func()
}

func newFakeAPI(objects ...runtime.Object) *fakeAPI {
	a := &fakeAPI{objects: map[string]runtime.Object{}, onWrite: func() {}}
	for _, o := range objects {
		a.put(o)
	}
	return a
}

// put creates or replaces an object.
func (a *fakeAPI) put(o runtime.Object) {
	resource := map[string]string{
		"Node": "nodes", "CSINode": "csinodes", "CSIDriver": "csidrivers", "Secret": "secrets",
		"VolumeAttachment": "volumeattachments", "PersistentVolume": "persistentvolumes",
		"PersistentVolumeClaim": "persistentvolumeclaims",
	}[reflect.TypeOf(o).Elem().Name()]
	m := o.(metav1.Object)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	m.SetResourceVersion(fmt.Sprint(a.version))
	a.objects[resource+"/"+m.GetNamespace()+"/"+m.GetName()] = o
}

func (a *fakeAPI) find(r apiclient.Resource, namespace, name string) (runtime.Object, string, error) {
	key := r.Name + "/" + namespace + "/" + name
	if a.err != nil {
		return nil, key, a.err
	}
	o, ok := a.objects[key]
	if !ok {
		return nil, key, apierrors.NewNotFound(schema.GroupResource{Group: r.Group.Group, Resource: r.Name}, name)
	}
	return o, key, nil
}

func (a *fakeAPI) Get(_ context.Context, r apiclient.Resource, namespace, name string, into runtime.Object) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	o, _, err := a.find(r, namespace, name)
	if err == nil {
		reflect.ValueOf(into).Elem().Set(reflect.ValueOf(o.DeepCopyObject()).Elem())
	}
	return err
}

func (a *fakeAPI) Create(_ context.Context, r apiclient.Resource, namespace string, obj, into runtime.Object,
	nameAndSub ...string) error {
	if q, ok := obj.(*authnv1.TokenRequest); ok {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.tokens = append(a.tokens, *q)
		*into.(*authnv1.TokenRequest) = *q
		into.(*authnv1.TokenRequest).Status.Token = fmt.Sprintf("token of %s/%s for %v", namespace, nameAndSub[0],
			q.Spec.Audiences)
		return nil
	}
	a.mu.Lock()
	name := obj.(metav1.Object).GetName()
	_, _, err := a.find(r, namespace, name)
	a.mu.Unlock()
	switch {
	case err == nil:
		return apierrors.NewAlreadyExists(schema.GroupResource{Resource: r.Name}, name)
	case !apierrors.IsNotFound(err):
		return err
	}
	a.put(obj.DeepCopyObject())
	a.written("create " + r.Name)
	return nil
}

func (a *fakeAPI) written(what string) {
	a.mu.Lock()
	a.writes = append(a.writes, what)
	f := a.onWrite
	a.mu.Unlock()
	f()
}

func (a *fakeAPI) Patch(_ context.Context, r apiclient.Resource, namespace, name string, kind types.PatchType,
	patch []byte, into runtime.Object, _ ...string) error {
	a.mu.Lock()
	o, _, err := a.find(r, namespace, name)
	a.mu.Unlock()
	if err != nil {
		return err
	}
	if kind != types.MergePatchType {
		return fmt.Errorf("patch type %s", kind)
	}
	was, err := json.Marshal(o)
	if err != nil {
		return err
	}
	var has, change map[string]any
	if err := json.Unmarshal(was, &has); err != nil {
		return err
	}
	if err := json.Unmarshal(patch, &change); err != nil {
		return err
	}
	version, conditional := change["metadata"].(map[string]any)["resourceVersion"]
	if conditional && version != o.(metav1.Object).GetResourceVersion() {
		return apierrors.NewConflict(schema.GroupResource{Resource: r.Name}, name, nil)
	}
	merged, err := json.Marshal(mergeJSON(has, change))
	if err != nil {
		return err
	}
	now := reflect.New(reflect.TypeOf(o).Elem()).Interface().(runtime.Object)
	if err := json.Unmarshal(merged, now); err != nil {
		return err
	}
	a.put(now)
	if into != nil {
		reflect.ValueOf(into).Elem().Set(reflect.ValueOf(now.DeepCopyObject()).Elem())
	}
	a.written("patch " + r.Name)
	return nil
}

func mergeJSON(has, change map[string]any) map[string]any {
	for key, value := range change {
		switch value := value.(type) {
		case nil:
			delete(has, key)
		case map[string]any:
			below, _ := has[key].(map[string]any)
			if below == nil {
				below = map[string]any{}
			}
			has[key] = mergeJSON(below, value)
		default:
			has[key] = value
		}
	}
	return has
}

func (a *fakeAPI) Delete(
	_ context.Context, r apiclient.Resource, namespace, name string, _ metav1.DeleteOptions,
) error {
	a.mu.Lock()
	_, key, err := a.find(r, namespace, name)
	if err == nil {
		delete(a.objects, key)
	}
	a.mu.Unlock()
	if err == nil {
		a.written("delete " + r.Name)
	}
	return err
}

// fakeNode is a driver whose mounts are in memory.
type fakeNode struct {
	csipb.UnimplementedNodeServer
	mu    sync.Mutex
	caps  []csipb.NodeServiceCapability_RPC_Type
	info  *csipb.NodeGetInfoResponse
	calls []string

	condition *Condition
	last      map[string]any                                        // the last request by method
	handle    func(ctx context.Context, method string, q any) error // before each call; nil: nothing
}

func newFakeNode(caps ...csipb.NodeServiceCapability_RPC_Type) *fakeNode {
	return &fakeNode{caps: caps, last: map[string]any{}, info: &csipb.NodeGetInfoResponse{NodeId: "id-1"}}
}

const stages = csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME

func (n *fakeNode) record(ctx context.Context, method string, q any) error {
	n.mu.Lock()
	n.calls = append(n.calls, method)
	n.last[method] = q
	handle := n.handle
	n.mu.Unlock()
	if handle == nil {
		return nil
	}
	return handle(ctx, method, q)
}

func (n *fakeNode) setHandle(f func(ctx context.Context, method string, q any) error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.handle = f
}

func (n *fakeNode) count(method string) (count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.calls {
		if c == method {
			count++
		}
	}
	return count
}

func (n *fakeNode) request(method string) any {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.last[method]
}

func (n *fakeNode) NodeGetInfo(ctx context.Context, q *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	err := n.record(ctx, "NodeGetInfo", q)
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.info, err
}

func (n *fakeNode) NodeGetCapabilities(
	ctx context.Context, q *csipb.NodeGetCapabilitiesRequest,
) (*csipb.NodeGetCapabilitiesResponse, error) {
	out := &csipb.NodeGetCapabilitiesResponse{}
	for _, c := range n.caps {
		out.Capabilities = append(out.Capabilities, &csipb.NodeServiceCapability{Type: &csipb.NodeServiceCapability_Rpc{
			Rpc: &csipb.NodeServiceCapability_RPC{Type: c}}})
	}
	return out, n.record(ctx, "NodeGetCapabilities", q)
}

func (n *fakeNode) NodeStageVolume(
	ctx context.Context, q *csipb.NodeStageVolumeRequest,
) (*csipb.NodeStageVolumeResponse, error) {
	return &csipb.NodeStageVolumeResponse{}, n.record(ctx, "NodeStageVolume", q)
}

func (n *fakeNode) NodePublishVolume(
	ctx context.Context, q *csipb.NodePublishVolumeRequest,
) (*csipb.NodePublishVolumeResponse, error) {
	return &csipb.NodePublishVolumeResponse{}, n.record(ctx, "NodePublishVolume", q)
}

func (n *fakeNode) NodeUnpublishVolume(
	ctx context.Context, q *csipb.NodeUnpublishVolumeRequest,
) (*csipb.NodeUnpublishVolumeResponse, error) {
	return &csipb.NodeUnpublishVolumeResponse{}, n.record(ctx, "NodeUnpublishVolume", q)
}

func (n *fakeNode) NodeGetVolumeStats(
	ctx context.Context, q *csipb.NodeGetVolumeStatsRequest,
) (*csipb.NodeGetVolumeStatsResponse, error) {
	n.mu.Lock()
	condition := n.condition
	n.mu.Unlock()
	r := &csipb.NodeGetVolumeStatsResponse{Usage: []*csipb.VolumeUsage{
		{Unit: csipb.VolumeUsage_BYTES, Total: 1000, Used: 300, Available: 700},
		{Unit: csipb.VolumeUsage_INODES, Total: 100, Used: 3, Available: 97},
	}}
	setCondition(r, condition)
	return r, n.record(ctx, "NodeGetVolumeStats", q)
}

func (n *fakeNode) NodeExpandVolume(
	ctx context.Context, q *csipb.NodeExpandVolumeRequest,
) (*csipb.NodeExpandVolumeResponse, error) {
	return &csipb.NodeExpandVolumeResponse{}, n.record(ctx, "NodeExpandVolume", q)
}

func (n *fakeNode) NodeUnstageVolume(
	ctx context.Context, q *csipb.NodeUnstageVolumeRequest,
) (*csipb.NodeUnstageVolumeResponse, error) {
	return &csipb.NodeUnstageVolumeResponse{}, n.record(ctx, "NodeUnstageVolume", q)
}

// testPod returns a pod with a claim as volume "data".
func testPod(uid string) *corev1.Pod {
	p := &corev1.Pod{}
	p.Namespace, p.Name, p.UID = "default", "pod-"+uid, types.UID(uid)
	p.Spec.ServiceAccountName = "robot"
	p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}}}
	return p
}

// testVolume returns a PersistentVolume of the driver.
func testVolume(name string) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{}
	pv.Name = name
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: testDriver, VolumeHandle: "handle-" + name, FSType: "ext4",
		VolumeAttributes: map[string]string{"color": "red"}}
	return pv
}

// csiDriver returns the CSIDriver object of the driver. change may change it.
func csiDriver(change func(*storagev1.CSIDriverSpec)) *storagev1.CSIDriver {
	d := &storagev1.CSIDriver{}
	d.Name = testDriver
	d.Spec.AttachRequired = new(false)
	d.Spec.FSGroupPolicy = new(storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
	d.Spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	if change != nil {
		change(&d.Spec)
	}
	return d
}

// mountSet is a mount table in memory.
type mountSet struct {
	mu  sync.Mutex
	set map[string]bool
}

func (s *mountSet) mounted(path string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.set[path], nil
}

// put changes an entry and reports whether that is a change.
func (s *mountSet) put(path string, mounted bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.set[path]
	if mounted {
		s.set[path] = true
	} else {
		delete(s.set, path)
	}
	return was != mounted
}

func (s *mountSet) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.set))
}

// eventually waits until ok returns true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting for %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
