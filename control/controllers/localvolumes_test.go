package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"berth/control/localvolumes"
	nodevolumes "berth/internal/localvolumes"
)

// fakeNodeVolumes holds the volumes of nodes in memory.
type fakeNodeVolumes struct {
	mu      sync.Mutex
	free    map[string]int64 // by node; missing: the node has no driver
	volumes map[string]nodevolumes.Volume
	err     error // of all calls
	lists   int   // calls of List
}

func (f *fakeNodeVolumes) List(_ context.Context, node string) (nodevolumes.List, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	free, ok := f.free[node]
	if !ok {
		return nodevolumes.List{}, fmt.Errorf("%w: not found", ErrNoLocalVolumes)
	}
	f.lists++
	out := nodevolumes.List{AvailableBytes: free}
	for key, v := range f.volumes {
		if strings.HasPrefix(key, node+"/") {
			out.Volumes = append(out.Volumes, v)
		}
	}
	return out, f.err
}

func (f *fakeNodeVolumes) Ensure(_ context.Context, node, name string, bytes int64) (nodevolumes.Volume, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := f.volumes[node+"/"+name]
	if f.err != nil {
		return v, f.err
	}
	if bytes-v.CapacityBytes > f.free[node] {
		return v, ErrNoSpaceOnNode
	}
	f.free[node] -= max(0, bytes-v.CapacityBytes)
	v.Name, v.CapacityBytes = name, max(bytes, v.CapacityBytes)
	f.volumes[node+"/"+name] = v
	return v, nil
}

func (f *fakeNodeVolumes) Grow(ctx context.Context, node, name string, bytes int64) (nodevolumes.Volume, error) {
	f.mu.Lock()
	_, exists := f.volumes[node+"/"+name]
	f.mu.Unlock()
	if !exists {
		return nodevolumes.Volume{}, ErrLocalVolumeLost
	}
	return f.Ensure(ctx, node, name, bytes)
}

func (f *fakeNodeVolumes) Delete(_ context.Context, node, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return f.err
	}
	f.free[node] += f.volumes[node+"/"+name].CapacityBytes
	delete(f.volumes, node+"/"+name)
	return nil
}

func (f *fakeNodeVolumes) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fakeNodeVolumes) names() (out []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, v := range f.volumes {
		out = append(out, fmt.Sprintf("%s %dGi", key, v.CapacityBytes>>30))
	}
	slices.Sort(out)
	return out
}

// provisionerTest is a provisioner and a binder with two nodes of 10 GiB.
type provisionerTest struct {
	t      *testing.T
	client kubernetes.Interface
	nodes  *fakeNodeVolumes
	events *record.FakeRecorder
}

func startProvisioner(t *testing.T) *provisionerTest {
	p := &provisionerTest{t: t, events: record.NewFakeRecorder(1000), nodes: &fakeNodeVolumes{
		free: map[string]int64{"n1": 10 << 30, "n2": 10 << 30}, volumes: map[string]nodevolumes.Volume{},
	}}
	p.client = startControllers(t, Config{Events: p.events, NodeVolumes: p.nodes},
		[]string{LocalVolumeProvisioner, VolumeBinder}, newNode("n1", corev1.ConditionTrue),
		newNode("n2", corev1.ConditionTrue), newNode("kubelet", corev1.ConditionTrue))
	p.settle()
	return p
}

func (p *provisionerTest) settle() { time.Sleep(2 * time.Second); synctest.Wait() }

func (p *provisionerTest) create(claim *corev1.PersistentVolumeClaim) {
	p.t.Helper()
	if _, err := p.client.CoreV1().PersistentVolumeClaims("default").Create(p.t.Context(), claim,
		metav1.CreateOptions{}); err != nil {
		p.t.Fatal(err)
	}
	p.settle()
}

// change updates a claim.
func (p *provisionerTest) change(name string, change func(*corev1.PersistentVolumeClaim)) {
	p.t.Helper()
	c := getClaim(p.t, p.client, name)
	change(c)
	if _, err := p.client.CoreV1().PersistentVolumeClaims("default").Update(p.t.Context(), c,
		metav1.UpdateOptions{}); err != nil {
		p.t.Fatal(err)
	}
	p.settle()
}

func (p *provisionerTest) requireVolumes(want ...string) {
	p.t.Helper()
	if got := p.nodes.names(); !slices.Equal(got, want) {
		p.t.Errorf("volumes on nodes: got %v, want %v", got, want)
	}
}

// capacities returns the published capacities as "node GiB".
func (p *provisionerTest) capacities() (out []string) {
	p.t.Helper()
	list, err := p.client.StorageV1().CSIStorageCapacities("kube-system").List(p.t.Context(), metav1.ListOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	for _, c := range list.Items {
		out = append(out, fmt.Sprintf("%s %d", c.NodeTopology.MatchLabels[nodevolumes.TopologyKey],
			c.Capacity.Value()>>30))
	}
	slices.Sort(out)
	return out
}

func onNode(node string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, "volume.kubernetes.io/selected-node", node)
	}
}

func requesting(size string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	}
}

func TestLocalVolumeFollowsItsClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startProvisioner(t)
		class, err := p.client.StorageV1().StorageClasses().Get(t.Context(), localvolumes.ClassName, metav1.GetOptions{})
		if err != nil || class.Annotations["storageclass.kubernetes.io/is-default-class"] != "true" {
			t.Fatalf("class: %+v %v", class, err)
		}
		if got := p.capacities(); !slices.Equal(got, []string{"n1 10", "n2 10"}) {
			t.Errorf("capacities: %v", got)
		}
		claim := testClaim("data", localvolumes.ClassName)
		p.create(claim)
		p.requireVolumes()
		p.change("data", onNode("n1"))
		p.requireVolumes("n1/pvc-data 1Gi")
		if c := getClaim(t, p.client, "data"); c.Status.Phase != corev1.ClaimBound || c.Spec.VolumeName != "pvc-data" {
			t.Fatalf("claim: %+v", c)
		}
		if got := p.capacities(); !slices.Equal(got, []string{"n1 9", "n2 10"}) {
			t.Errorf("capacities: %v", got)
		}
		p.nodes.set(func() { p.nodes.volumes["n1/pvc-lost"] = nodevolumes.Volume{Name: "pvc-lost", CapacityBytes: 1 << 30} })
		p.nodes.set(func() {
			p.nodes.volumes["n1/pvc-old"] = nodevolumes.Volume{Name: "pvc-old", CapacityBytes: 1 << 30, Used: true}
		})
		time.Sleep(2 * capacityInterval)
		p.requireVolumes("n1/pvc-data 1Gi", "n1/pvc-old 1Gi")
		p.nodes.set(func() { delete(p.nodes.volumes, "n1/pvc-old") })

		p.change("data", requesting("3Gi"))
		p.requireVolumes("n1/pvc-data 3Gi")
		if c := getClaim(t, p.client, "data"); c.Status.Capacity.Storage().String() != "3Gi" {
			t.Errorf("capacity of the claim: %s", c.Status.Capacity.Storage())
		}
		if v := getVolume(t, p.client, "pvc-data"); v.Spec.Capacity.Storage().String() != "3Gi" {
			t.Errorf("capacity of the volume: %s", v.Spec.Capacity.Storage())
		}
		p.nodes.set(func() { p.nodes.err = ErrVolumeInUse })
		if err := p.client.CoreV1().PersistentVolumeClaims("default").Delete(t.Context(), "data",
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		p.settle()
		if v := getVolume(t, p.client, "pvc-data"); v.Status.Phase != corev1.VolumeReleased {
			t.Errorf("volume in use is %s", v.Status.Phase)
		}
		p.nodes.set(func() { p.nodes.err = nil })
		time.Sleep(2 * busyInterval)
		synctest.Wait()
		p.requireVolumes()
		if list, err := p.client.CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{}); err != nil ||
			len(list.Items) > 0 {
			t.Errorf("volumes left: %+v %v", list, err)
		}
	})
}

func TestFullNodeIsScheduledAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startProvisioner(t)
		claim := testClaim("big", localvolumes.ClassName)
		requesting("20Gi")(claim)
		p.create(claim)
		p.change("big", onNode("n1"))
		if c := getClaim(t, p.client, "big"); c.Annotations["volume.kubernetes.io/selected-node"] != "" {
			t.Error("the selected node was kept")
		}
		p.requireVolumes()
		p.change("big", onNode("kubelet")) // a node without the driver
		if c := getClaim(t, p.client, "big"); c.Annotations["volume.kubernetes.io/selected-node"] != "" {
			t.Error("the selected node without the driver was kept")
		}
		p.nodes.set(func() { p.nodes.free["n2"] = 30 << 30 })
		p.change("big", onNode("n2"))
		p.requireVolumes("n2/pvc-big 20Gi")
		var events []string
		for len(p.events.Events) > 0 {
			events = append(events, <-p.events.Events)
		}
		text := strings.Join(events, "\n")
		for _, want := range []string{
			`Warning ProvisioningFailed failed to provision volume with StorageClass "local" on node n1: not enough free space`,
			"Normal ProvisioningSucceeded Successfully provisioned volume pvc-big",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("no event %q in\n%s", want, text)
			}
		}
	})
}

// TestGrowthWaitsForTheNode grows a volume whose file system can only grow when it is next mounted.
func TestGrowthWaitsForTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startProvisioner(t)
		p.create(testClaim("data", localvolumes.ClassName))
		p.change("data", onNode("n1"))
		p.nodes.set(func() {
			p.nodes.volumes["n1/pvc-data"] = nodevolumes.Volume{Name: "pvc-data", CapacityBytes: 1 << 30, Pending: true}
		})
		p.change("data", requesting("2Gi"))
		c := getClaim(t, p.client, "data")
		if len(c.Status.Conditions) != 1 ||
			c.Status.Conditions[0].Type != corev1.PersistentVolumeClaimFileSystemResizePending ||
			c.Status.Capacity.Storage().String() != "1Gi" {
			t.Fatalf("status: %+v", c.Status)
		}
		p.nodes.set(func() {
			p.nodes.volumes["n1/pvc-data"] = nodevolumes.Volume{Name: "pvc-data", CapacityBytes: 2 << 30}
		})
		time.Sleep(2 * pendingInterval)
		synctest.Wait()
		if c := getClaim(t, p.client, "data"); len(c.Status.Conditions) > 0 ||
			c.Status.Capacity.Storage().String() != "2Gi" {
			t.Errorf("status: %+v", c.Status)
		}
	})
}

// TestImmediateClassSelectsReadyNode creates a claim of a class that does not wait for pods.
func TestImmediateClassSelectsReadyNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startProvisioner(t)
		class := localvolumes.Class(false)
		class.Name, class.VolumeBindingMode = "now", ptr.To(storagev1.VolumeBindingImmediate)
		if _, err := p.client.StorageV1().StorageClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		p.nodes.set(func() { p.nodes.free["n1"] = 50 << 30 })
		p.settle()
		if got := p.capacities(); len(got) != 4 {
			t.Errorf("capacities of both classes: %v", got)
		}
		full := newNode("n1", corev1.ConditionFalse)
		if _, err := p.client.CoreV1().Nodes().Update(t.Context(), full, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		p.settle()
		p.create(testClaim("data", "now"))
		p.requireVolumes("n2/pvc-data 1Gi")

		// A volume of a claim that got one on another node was created by a request whose response was lost.
		p.nodes.set(func() {
			p.nodes.volumes["n2/pvc-lost"] = nodevolumes.Volume{Name: "pvc-lost"}
			p.nodes.volumes["n1/pvc-data"] = nodevolumes.Volume{Name: "pvc-data", CapacityBytes: 1 << 30}
		})
		if _, err := p.client.CoreV1().Nodes().Update(t.Context(), newNode("n1", corev1.ConditionTrue),
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * capacityInterval)
		synctest.Wait()
		p.requireVolumes("n2/pvc-data 1Gi")
	})
}

func TestVolumeOfLostNodeIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startProvisioner(t)
		p.create(testClaim("data", localvolumes.ClassName))
		p.change("data", onNode("n1"))
		p.nodes.set(func() { p.nodes.err = ErrNoLocalVolumes })
		core := p.client.CoreV1()
		if err := errors.Join(core.Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}),
			core.PersistentVolumeClaims("default").Delete(t.Context(), "data", metav1.DeleteOptions{})); err != nil {
			t.Fatal(err)
		}
		p.settle()
		if v := getVolume(t, p.client, "pvc-data"); v.Status.Phase != corev1.VolumeReleased {
			t.Errorf("volume is %s", v.Status.Phase)
		}
		var reported int
		for len(p.events.Events) > 0 {
			if strings.Contains(<-p.events.Events, "node n1 does not exist; if it does not return, remove the finalizer "+
				localvolumes.Finalizer) {
				reported++
			}
		}
		if reported == 0 {
			t.Error("no event says what to do")
		}
	})
}

// TestUnreachableNodeIsAskedRarely has nodes whose API does not respond, such as nodes behind a firewall.
func TestUnreachableNodeIsAskedRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startProvisioner(t)
		p.nodes.set(func() { p.nodes.err = errors.New("connection refused") })
		time.Sleep(10 * capacityInterval)
		synctest.Wait()
		p.nodes.set(func() { p.nodes.lists = 0 })
		time.Sleep(10 * capacityInterval)
		synctest.Wait()
		p.nodes.set(func() {
			if p.nodes.lists < 18 || p.nodes.lists > 22 { // of two nodes in ten minutes
				t.Errorf("%d requests, want 20", p.nodes.lists)
			}
			p.nodes.err, p.nodes.free["n1"] = nil, 4<<30
		})
		time.Sleep(2 * capacityInterval)
		synctest.Wait()
		if got := p.capacities(); !slices.Equal(got, []string{"n1 4", "n2 10"}) {
			t.Errorf("capacities when the nodes respond again: %v", got)
		}
	})
}

// TestLostVolumeDoesNotGrow grows a claim whose volume is missing on the node.
func TestLostVolumeDoesNotGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startProvisioner(t)
		p.create(testClaim("data", localvolumes.ClassName))
		p.change("data", onNode("n1"))
		p.nodes.set(func() { delete(p.nodes.volumes, "n1/pvc-data") })
		p.change("data", requesting("2Gi"))
		p.requireVolumes()
		reported := false
		for len(p.events.Events) > 0 {
			reported = strings.Contains(<-p.events.Events, "VolumeResizeFailed") || reported
		}
		if c := getClaim(t, p.client, "data"); !reported || c.Status.Capacity.Storage().String() != "1Gi" {
			t.Errorf("reported %v, status %+v", reported, c.Status)
		}
	})
}
