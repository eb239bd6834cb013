package controllers

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
)

func testClaim(name, class string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name),
			Finalizers: []string{claimProtection}},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class,
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceStorage: resource.MustParse("1Gi")}}},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func testVolume(name, class string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Finalizers: []string{volumeProtection}},
		Spec: corev1.PersistentVolumeSpec{StorageClassName: class,
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: "/data"}}},
	}
}

func getClaim(t *testing.T, client kubernetes.Interface, name string) *corev1.PersistentVolumeClaim {
	t.Helper()
	c, err := client.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func getVolume(t *testing.T, client kubernetes.Interface, name string) *corev1.PersistentVolume {
	t.Helper()
	v, err := client.CoreV1().PersistentVolumes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestBinderFollowsObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := record.NewFakeRecorder(100)
		client := startControllers(t, Config{Events: events}, []string{VolumeBinder}, testClaim("data", "fast"))
		settle := func() { time.Sleep(time.Second); synctest.Wait() }
		settle()
		if c := getClaim(t, client, "data"); c.Status.Phase != corev1.ClaimPending {
			t.Fatalf("claim is %s", c.Status.Phase)
		}
		if text := <-events.Events; !strings.Contains(text, `storageclass.storage.k8s.io "fast" not found`) {
			t.Errorf("got event %q", text)
		}
		if _, err := client.CoreV1().PersistentVolumes().Create(t.Context(), testVolume("v", "fast"),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		settle()
		c, v := getClaim(t, client, "data"), getVolume(t, client, "v")
		if c.Status.Phase != corev1.ClaimBound || c.Spec.VolumeName != "v" || v.Status.Phase != corev1.VolumeBound ||
			v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != c.UID {
			t.Fatalf("not bound: %+v, %+v", c, v)
		}
		if err := client.CoreV1().PersistentVolumeClaims("default").Delete(t.Context(), "data",
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		settle()
		if v := getVolume(t, client, "v"); v.Status.Phase != corev1.VolumeReleased {
			t.Errorf("volume of the deleted claim is %s", v.Status.Phase)
		}
	})
}

func TestBinderAssignsDefaultClassLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := startControllers(t, Config{}, []string{VolumeBinder}, testClaim("data", "",
			func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = nil }))
		time.Sleep(time.Second)
		class := &storagev1.StorageClass{Provisioner: "csi.example.com", ObjectMeta: metav1.ObjectMeta{Name: "fast",
			Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}}}
		if _, err := client.StorageV1().StorageClasses().Create(t.Context(), class,
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		c := getClaim(t, client, "data")
		if name := c.Spec.StorageClassName; name == nil || *name != "fast" {
			t.Errorf("class %v, want fast", name)
		}
		if got := c.Annotations["volume.kubernetes.io/storage-provisioner"]; got != "csi.example.com" {
			t.Errorf("provisioner %q", got)
		}
	})
}

func TestClaimInUseIsProtected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		deleting := func(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp = &metav1.Time{Time: time.Now()} }
		pod := func(name, node, claim string) *corev1.Pod {
			return newPod(name, node, func(p *corev1.Pod) {
				p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}
			})
		}
		client := startControllers(t, Config{}, []string{ClaimProtection},
			testClaim("used", "", deleting), testClaim("unscheduled", "", deleting), testClaim("unused", "", deleting),
			testClaim("new", "", func(c *corev1.PersistentVolumeClaim) { c.Finalizers = nil }),
			pod("p", "n", "used"), pod("q", "", "unscheduled"))
		time.Sleep(time.Second)
		synctest.Wait()
		for name, want := range map[string]bool{"used": true, "unscheduled": false, "unused": false, "new": true} {
			if got := slices.Contains(getClaim(t, client, name).Finalizers, claimProtection); got != want {
				t.Errorf("claim %s is protected: %v, want %v", name, got, want)
			}
		}
		if err := client.CoreV1().Pods("default").Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if len(getClaim(t, client, "used").Finalizers) != 0 {
			t.Error("claim is protected after the deletion of its last pod")
		}
	})
}

func TestBoundVolumeIsProtected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		deleting := func(name string, phase corev1.PersistentVolumePhase) *corev1.PersistentVolume {
			v := testVolume(name, "")
			v.DeletionTimestamp, v.Status.Phase = &metav1.Time{Time: time.Now()}, phase
			return v
		}
		client := startControllers(t, Config{}, []string{VolumeProtection}, deleting("bound", corev1.VolumeBound),
			deleting("released", corev1.VolumeReleased))
		time.Sleep(time.Second)
		synctest.Wait()
		for name, want := range map[string]int{"bound": 1, "released": 0} {
			if got := len(getVolume(t, client, name).Finalizers); got != want {
				t.Errorf("volume %s has %d finalizers, want %d", name, got, want)
			}
		}
	})
}

func TestAttributesClassInUseIsProtected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		class := func(name string, deleting bool) *storagev1.VolumeAttributesClass {
			c := &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
			if deleting {
				c.Finalizers, c.DeletionTimestamp = []string{attributesClassProtection}, &metav1.Time{Time: time.Now()}
			}
			return c
		}
		wanted := testClaim("wanted", "", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.VolumeAttributesClassName = new("wanted")
		})
		current := testClaim("current", "", func(c *corev1.PersistentVolumeClaim) {
			c.Status.CurrentVolumeAttributesClassName = new("current")
		})
		volume := testVolume("volume", "")
		volume.Spec.VolumeAttributesClassName = new("volume")
		client := startControllers(t, Config{}, []string{VolumeAttributesClassProtection}, wanted, current, volume,
			class("wanted", true), class("current", true), class("volume", true), class("unused", true),
			class("new", false))
		protected := func() (out []string) {
			time.Sleep(time.Second)
			synctest.Wait()
			list, err := client.StorageV1().VolumeAttributesClasses().List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range list.Items {
				if slices.Contains(c.Finalizers, attributesClassProtection) {
					out = append(out, c.Name)
				}
			}
			slices.Sort(out)
			return out
		}
		if got := protected(); !slices.Equal(got, []string{"current", "new", "volume", "wanted"}) {
			t.Errorf("protected classes are %v", got)
		}
		err := client.CoreV1().PersistentVolumes().Delete(t.Context(), "volume", metav1.DeleteOptions{})
		if err != nil {
			t.Fatal(err)
		}
		current.Status.CurrentVolumeAttributesClassName = new("other")
		if _, err := client.CoreV1().PersistentVolumeClaims(current.Namespace).UpdateStatus(t.Context(), current,
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := protected(); !slices.Equal(got, []string{"new", "wanted"}) {
			t.Errorf("protected classes are %v after the release of two", got)
		}
	})
}

func TestEphemeralVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := record.NewFakeRecorder(100)
		withVolume := func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{
				Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
					ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
					Spec:       testClaim("", "fast").Spec}}}}}
		}
		client := startControllers(t, Config{Events: events}, []string{EphemeralVolumes}, newPod("web", "", withVolume),
			newPod("other", "", withVolume), testClaim("other-scratch", ""))
		time.Sleep(time.Second)
		synctest.Wait()
		c := getClaim(t, client, "web-scratch")
		owner := metav1.GetControllerOf(c)
		if owner == nil || owner.UID != "web" || c.Labels["app"] != "web" || *c.Spec.StorageClassName != "fast" {
			t.Errorf("got claim %+v", c)
		}
		if text := <-events.Events; !strings.Contains(text, "FailedBinding ephemeral volume scratch: PVC "+
			"default/other-scratch was not created for pod default/other (pod is not owner)") {
			t.Errorf("got event %q", text)
		}
	})
}
