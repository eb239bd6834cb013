package scheduler

import (
	"context"
	"log/slog"
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
