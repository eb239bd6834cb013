package scheduler

import (
	"context"
	"log/slog"
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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
)

// runScheduler runs a scheduler against a fake API server until the test ends. It must be called in a synctest bubble.
func runScheduler(t *testing.T, objects ...runtime.Object) (*fake.Clientset, *record.FakeRecorder) {
	t.Helper()
	client, events := fake.NewClientset(objects...), record.NewFakeRecorder(100)
	factory := informers.NewSharedInformerFactory(client, 0)
	s, err := New(Config{Client: client, Informers: factory, Events: events, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	factory.Start(ctx.Done())
	var wg sync.WaitGroup
	wg.Go(func() { s.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		factory.Shutdown()
	})
	return client, events
}

func waitingObjects(provisioner string) []runtime.Object {
	first, class := storagev1.VolumeBindingWaitForFirstConsumer, "local"
	web := pod("web", 100)
	web.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	return []runtime.Object{web,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("9"),
				corev1.ResourceCPU: resource.MustParse("9")}}},
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: provisioner,
			VolumeBindingMode: &first},
		&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: web.Namespace, Name: "data", UID: "claim"},
			Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class,
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}},
			Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}},
	}
}

// bindings returns the number of bindings of pods that were created.
func bindings(client *fake.Clientset) (n int) {
	for _, a := range client.Actions() {
		if a.Matches("create", "pods/binding") {
			n++
		}
	}
	return n
}

// TestPodIsBoundAfterItsClaims: the scheduler reserves a volume, and binds the pod when the claim is bound to it.
func TestPodIsBoundAfterItsClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, events := runScheduler(t, waitingObjects("kubernetes.io/no-provisioner")...)
		time.Sleep(time.Second)
		synctest.Wait()
		if text := <-events.Events; !strings.Contains(text,
			"1 node(s) didn't find available persistent volumes to bind") {
			t.Errorf("got event %q", text)
		}
		volumes := client.CoreV1().PersistentVolumes()
		if _, err := volumes.Create(t.Context(), &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "v", UID: "v"},
			Spec: corev1.PersistentVolumeSpec{StorageClassName: "local",
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}},
			Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		v, err := volumes.Get(t.Context(), "v", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != "claim" || bindings(client) != 0 {
			t.Fatalf("claimRef %v, %d bindings, want the claim and no binding yet", v.Spec.ClaimRef, bindings(client))
		}
		web, err := client.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		claims := client.CoreV1().PersistentVolumeClaims(web.Items[0].Namespace)
		claim, err := claims.Get(t.Context(), "data", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		claim.Spec.VolumeName = "v"
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, "pv.kubernetes.io/bind-completed", "yes")
		if _, err := claims.Update(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n := bindings(client); n != 1 {
			t.Errorf("%d bindings after the claim is bound, want 1", n)
		}
	})
}

// TestProvisionerGetsSelectedNode: the scheduler selects the node of a claim. It gives it up after a time.
func TestProvisionerGetsSelectedNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, events := runScheduler(t, waitingObjects("csi.example.com")...)
		time.Sleep(time.Second)
		synctest.Wait()
		claims, err := client.CoreV1().PersistentVolumeClaims("").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := claims.Items[0].Annotations["volume.kubernetes.io/selected-node"]; got != "n1" {
			t.Errorf("selected node %q, want n1", got)
		}
		time.Sleep(volumeBindingTimeout)
		synctest.Wait()
		if text := <-events.Events; !strings.Contains(text, "binding volumes: timed out waiting for the condition") {
			t.Errorf("got event %q", text)
		}
		if bindings(client) != 0 {
			t.Error("the pod is bound")
		}
	})
}

// csiObjects returns a bound claim of a CSI driver with its volume, and a pod that uses it.
func csiObjects(name, node string) []runtime.Object {
	class := ""
	p := pod(name, 100)
	p.Spec.NodeName = node
	p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	return []runtime.Object{p,
		&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: name, UID: types.UID("claim-" + name),
				Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"}},
			Spec:   corev1.PersistentVolumeClaimSpec{StorageClassName: &class, VolumeName: name, AccessModes: modes},
			Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
		},
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
			AccessModes: modes, ClaimRef: &corev1.ObjectReference{Namespace: p.Namespace, Name: name},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: name}}}},
	}
}

func testNode(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
		Allocatable: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("9"),
			corev1.ResourceCPU: resource.MustParse("9")}}}
}

// waitForEvent lets the scheduler work and returns the first event, or "".
func waitForEvent(events *record.FakeRecorder) string {
	time.Sleep(20 * time.Second)
	synctest.Wait()
	select {
	case text := <-events.Events:
		return text
	default:
		return ""
	}
}

// TestVolumeLimits: a driver on a node attaches one volume. A second pod waits until the first one is deleted.
func TestVolumeLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: storagev1.CSINodeSpec{
			Drivers: []storagev1.CSINodeDriver{{Name: "csi.example.com", NodeID: "n1",
				Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(1))}}}}}
		objects := slices.Concat(csiObjects("first", "n1"), csiObjects("second", ""),
			[]runtime.Object{testNode("n1"), limit})
		client, events := runScheduler(t, objects...)
		if text := waitForEvent(events); !strings.Contains(text, "1 node(s) exceed max volume count") {
			t.Fatalf("event %q", text)
		}
		if err := client.CoreV1().Pods("").Delete(t.Context(), "first", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		waitForEvent(events)
		if n := bindings(client); n != 1 {
			t.Errorf("%d bindings after the first pod is deleted, want 1", n)
		}
	})
}

// TestMissingDriver: with preventPodSchedulingIfMissing, a pod waits for a node with the driver.
func TestMissingDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		driver := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "csi.example.com"},
			Spec: storagev1.CSIDriverSpec{PreventPodSchedulingIfMissing: new(true)}}
		client, events := runScheduler(t, append(csiObjects("web", ""), testNode("n1"), driver)...)
		if text := waitForEvent(events); !strings.Contains(text,
			"1 csi.example.com CSI driver is not installed on the node") {
			t.Fatalf("event %q", text)
		}
		if _, err := client.StorageV1().CSINodes().Create(t.Context(), &storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: storagev1.CSINodeSpec{
				Drivers: []storagev1.CSINodeDriver{{Name: "csi.example.com", NodeID: "n1"}}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		waitForEvent(events)
		if n := bindings(client); n != 1 {
			t.Errorf("%d bindings after the driver is installed, want 1", n)
		}
	})
}

// TestPodWaitsForStorageCapacity: a driver that reports its capacity gets the claim when it has enough.
func TestPodWaitsForStorageCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		driver := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "csi.example.com"},
			Spec: storagev1.CSIDriverSpec{StorageCapacity: new(true)}}
		client, events := runScheduler(t, append(waitingObjects("csi.example.com"), driver)...)
		if text := waitForEvent(events); !strings.Contains(text, "1 node(s) did not have enough free storage") {
			t.Fatalf("event %q", text)
		}
		capacity := resource.MustParse("1Ti")
		if _, err := client.StorageV1().CSIStorageCapacities("csi").Create(t.Context(), &storagev1.CSIStorageCapacity{
			ObjectMeta: metav1.ObjectMeta{Namespace: "csi", Name: "n1"}, StorageClassName: "local", Capacity: &capacity,
			NodeTopology: &metav1.LabelSelector{},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		waitForEvent(events)
		claims, err := client.CoreV1().PersistentVolumeClaims("").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if node := claims.Items[0].Annotations["volume.kubernetes.io/selected-node"]; node != "n1" {
			t.Errorf("selected node %q, want n1", node)
		}
	})
}
