package volumes

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// settle executes steps for a claim until there are none, and returns the reasons of the events.
func settle(t *testing.T, claim *corev1.PersistentVolumeClaim, view fixedView) (out *corev1.PersistentVolumeClaim,
	writes int, reasons []string) {
	t.Helper()
	for ; writes < 8; writes++ {
		step, err := NextForClaim(claim, view)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range step.Events {
			reasons = append(reasons, e.Reason)
		}
		switch {
		case step.Write == nil:
			return claim, writes, reasons
		case step.Write.Claim != nil:
			claim = step.Write.Claim
		default:
			view.volumes[step.Write.Volume.Name] = step.Write.Volume
		}
	}
	t.Fatalf("the claim does not settle: %+v", claim)
	return nil, 0, nil
}

func TestBindClaim(t *testing.T) {
	t.Parallel()
	view := viewOf(newVolume("v", "fast", "7Gi"))
	claim, writes, reasons := settle(t, newClaim("data", "fast", "5Gi"), view)
	v := view.volumes["v"]
	if writes != 4 || len(reasons) != 0 {
		t.Errorf("%d writes, events %v, want 4 writes and no event", writes, reasons)
	}
	if !IsFullyBound(claim, v) || claim.Status.Phase != corev1.ClaimBound || v.Status.Phase != corev1.VolumeBound {
		t.Errorf("not bound: %+v, %+v", claim, v)
	}
	if got := claim.Status.Capacity[corev1.ResourceStorage]; got.String() != "7Gi" {
		t.Errorf("capacity %s, want 7Gi", got.String())
	}
	const byController = "pv.kubernetes.io/bound-by-controller"
	if claim.Annotations[byController] != yes || v.Annotations[byController] != yes {
		t.Errorf("annotations %v, %v", claim.Annotations, v.Annotations)
	}
}

func TestReservedVolumeIsNotMarkedAsBoundByController(t *testing.T) {
	t.Parallel()
	view := viewOf(newVolume("v", "fast", "7Gi", boundTo("data", "uid-data")))
	claim, _, _ := settle(t, newClaim("data", "fast", "5Gi", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.VolumeName = "v"
	}), view)
	if len(view.volumes["v"].Annotations) != 0 || len(claim.Annotations) != 1 {
		t.Errorf("annotations %v, %v, want bind-completed of the claim only", view.volumes["v"].Annotations,
			claim.Annotations)
	}
}

func TestPendingClaims(t *testing.T) {
	t.Parallel()
	named := func(name string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = name }
	}
	first := storagev1.VolumeBindingWaitForFirstConsumer
	for _, tc := range []struct {
		name    string
		claim   *corev1.PersistentVolumeClaim
		view    fixedView
		reasons []string
		phase   corev1.PersistentVolumeClaimPhase
	}{
		{"no class", newClaim("data", "", "5Gi"), viewOf(), []string{"FailedBinding"}, corev1.ClaimPending},
		{"unknown class", newClaim("data", "fast", "5Gi"), viewOf(), []string{"ProvisioningFailed"},
			corev1.ClaimPending},
		{"class without provisioner", newClaim("data", "fast", "5Gi"),
			viewOf(newClass("fast", "", storagev1.VolumeBindingImmediate)), []string{"ProvisioningFailed"},
			corev1.ClaimPending},
		{"waits for a consumer", newClaim("data", "fast", "5Gi"), viewOf(newClass("fast", "", first),
			newVolume("v", "fast", "5Gi")), []string{"WaitForFirstConsumer"}, corev1.ClaimPending},
		{"waits for pods", newClaim("data", "fast", "5Gi"), func() fixedView {
			v := viewOf(newClass("fast", "", first))
			v.waiting = []string{"web-0", "web-1"}
			return v
		}(), []string{"WaitForPodScheduled"}, corev1.ClaimPending},
		{"external provisioner", newClaim("data", "fast", "5Gi"),
			viewOf(newClass("fast", "csi.example.com", storagev1.VolumeBindingImmediate)),
			[]string{"ExternalProvisioning"}, corev1.ClaimPending},
		{"external provisioner for a selected node", newClaim("data", "fast", "5Gi",
			func(c *corev1.PersistentVolumeClaim) {
				c.Annotations = map[string]string{"volume.kubernetes.io/selected-node": "n1"}
			}), viewOf(newClass("fast", "csi.example.com", first)), []string{"ExternalProvisioning"},
			corev1.ClaimPending},
		{"named volume is missing", newClaim("data", "fast", "5Gi", named("v")), viewOf(), nil, corev1.ClaimPending},
		{"named volume is too small", newClaim("data", "fast", "5Gi", named("v")),
			viewOf(newVolume("v", "fast", "4Gi")), []string{"VolumeMismatch"}, corev1.ClaimPending},
		{"named volume is bound to another claim", newClaim("data", "fast", "5Gi", named("v")),
			viewOf(newVolume("v", "fast", "5Gi", boundTo("other", "uid-other"))), []string{"FailedBinding"},
			corev1.ClaimPending},
		{"volume of a bound claim is gone", newClaim("data", "fast", "5Gi", named("v"), completed), viewOf(),
			[]string{"ClaimLost"}, corev1.ClaimLost},
		{"bound claim names no volume", newClaim("data", "fast", "5Gi", completed), viewOf(), []string{"ClaimLost"},
			corev1.ClaimLost},
		{"volume of a bound claim is bound to another claim", newClaim("data", "fast", "5Gi", named("v"), completed),
			viewOf(newVolume("v", "fast", "5Gi", boundTo("other", "uid-other"))), []string{"ClaimMisbound"},
			corev1.ClaimLost},
		{"claim is being deleted", newClaim("data", "fast", "5Gi", func(c *corev1.PersistentVolumeClaim) {
			c.DeletionTimestamp = &metav1.Time{}
		}), viewOf(newVolume("v", "fast", "5Gi")), nil, corev1.ClaimPending},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			claim, _, reasons := settle(t, tc.claim, tc.view)
			if !slices.Equal(reasons, tc.reasons) || claim.Status.Phase != tc.phase {
				t.Errorf("phase %s, events %v, want %s, %v", claim.Status.Phase, reasons, tc.phase, tc.reasons)
			}
		})
	}
}

func completed(c *corev1.PersistentVolumeClaim) {
	metav1.SetMetaDataAnnotation(&c.ObjectMeta, "pv.kubernetes.io/bind-completed", yes)
}

func TestDefaultClassIsAssignedLater(t *testing.T) {
	t.Parallel()
	isDefault := func(at int64) func(*storagev1.StorageClass) {
		return func(c *storagev1.StorageClass) {
			c.CreationTimestamp = metav1.Unix(at, 0)
			c.Annotations = map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}
		}
	}
	withoutClass := newClaim("data", "", "5Gi", func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = nil })
	classes := []metav1.Object{newClass("old", "x.example.com", storagev1.VolumeBindingImmediate, isDefault(1)),
		newClass("new", "x.example.com", storagev1.VolumeBindingImmediate, isDefault(2)),
		newClass("none", "x.example.com", storagev1.VolumeBindingImmediate)}
	claim, _, reasons := settle(t, withoutClass, viewOf(classes...))
	if *claim.Spec.StorageClassName != "new" || !slices.Equal(reasons, []string{"ExternalProvisioning"}) {
		t.Errorf("class %s, events %v", *claim.Spec.StorageClassName, reasons)
	}
	claim, _, _ = settle(t, withoutClass, viewOf(append(classes, newVolume("v", "", "5Gi"))...))
	if claim.Spec.VolumeName != "v" {
		t.Error("a volume without a class was not preferred to the default class")
	}
	claim, _, _ = settle(t, newClaim("data", "", "5Gi"), viewOf(classes...))
	if *claim.Spec.StorageClassName != "" {
		t.Error("a claim that asks for no class got one")
	}
}

func TestVolumes(t *testing.T) {
	t.Parallel()
	deleted := func(v *corev1.PersistentVolume) {
		v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	}
	annotated := func(key, value string) func(*corev1.PersistentVolume) {
		return func(v *corev1.PersistentVolume) { metav1.SetMetaDataAnnotation(&v.ObjectMeta, key, value) }
	}
	elsewhere := newClaim("data", "fast", "5Gi", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "w" })
	here := newClaim("data", "fast", "5Gi", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "v" })
	own := boundTo("data", "uid-data")
	for _, tc := range []struct {
		name      string
		volume    *corev1.PersistentVolume
		claim     *corev1.PersistentVolumeClaim
		phase     corev1.PersistentVolumePhase
		reasons   []string
		unbound   bool
		syncClaim bool
	}{
		{"new", newVolume("v", "", "5Gi", func(v *corev1.PersistentVolume) { v.Status.Phase = "" }), nil,
			corev1.VolumeAvailable, nil, true, false},
		{"reserved by name", newVolume("v", "", "5Gi", boundTo("data", "")), nil, corev1.VolumeAvailable, nil, false,
			false},
		{"claim is bound to it", newVolume("v", "", "5Gi", own), here, corev1.VolumeBound, nil, false, false},
		{"claim is not bound yet", newVolume("v", "", "5Gi", own), newClaim("data", "", "5Gi"), corev1.VolumeAvailable,
			nil, false, true},
		{"claim is gone, retained", newVolume("v", "", "5Gi", own), nil, corev1.VolumeReleased, nil, false, false},
		{"claim is gone, deleted by its provisioner", newVolume("v", "", "5Gi", own, deleted,
			annotated("pv.kubernetes.io/provisioned-by", "csi.example.com")), nil, corev1.VolumeReleased, nil, false,
			false},
		{"claim is gone, no provisioner", newVolume("v", "", "5Gi", own, deleted), nil, corev1.VolumeFailed,
			[]string{"VolumeFailedDelete"}, false, false},
		{"claim is gone, recycled", newVolume("v", "", "5Gi", own, func(v *corev1.PersistentVolume) {
			v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRecycle
		}), nil, corev1.VolumeFailed, []string{"VolumeFailedRecycle"}, false, false},
		{"claim is bound to another volume", newVolume("v", "", "5Gi", own,
			annotated("pv.kubernetes.io/bound-by-controller", yes)), elsewhere, corev1.VolumeAvailable, nil, true,
			false},
		{"provisioned, claim is bound to another volume", newVolume("v", "", "5Gi", own, deleted,
			annotated("pv.kubernetes.io/provisioned-by", "csi.example.com")), elsewhere, corev1.VolumeReleased, nil,
			false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			v := tc.volume
			var reasons []string
			var syncClaim bool
			for range 5 {
				var step Step
				if step, syncClaim = NextForVolume(v, tc.claim); step.Write == nil {
					break
				}
				for _, e := range step.Events {
					reasons = append(reasons, e.Reason)
				}
				v = step.Write.Volume
			}
			if v.Status.Phase != tc.phase || !slices.Equal(reasons, tc.reasons) || syncClaim != tc.syncClaim ||
				(v.Spec.ClaimRef == nil) != tc.unbound {
				t.Errorf("phase %s, events %v, claimRef %v, sync of the claim %v", v.Status.Phase, reasons,
					v.Spec.ClaimRef, syncClaim)
			}
		})
	}
	reserved := newVolume("v", "", "5Gi", own)
	if step, _ := NextForVolume(reserved, elsewhere); step.Write.Volume.Spec.ClaimRef.UID != "" ||
		step.Write.Volume.Spec.ClaimRef.Name != "data" {
		t.Error("a reservation by a user did not stay")
	}
}

func TestCapacityOfBoundClaimStays(t *testing.T) {
	t.Parallel()
	view := viewOf(newVolume("v", "fast", "5Gi"))
	claim, _, _ := settle(t, newClaim("data", "fast", "5Gi"), view)
	grown := view.volumes["v"].DeepCopy()
	grown.Spec.Capacity = newVolume("v", "", "9Gi").Spec.Capacity
	view.volumes["v"] = grown
	claim, writes, _ := settle(t, claim, view)
	if got := claim.Status.Capacity[corev1.ResourceStorage]; got.String() != "5Gi" || writes != 0 {
		t.Errorf("capacity %s after %d writes, want 5Gi as before", got.String(), writes)
	}
}

func TestDefaultClassPrefersNewest(t *testing.T) {
	t.Parallel()
	at := func(name string, age time.Duration) *storagev1.StorageClass {
		return newClass(name, "", storagev1.VolumeBindingImmediate, func(c *storagev1.StorageClass) {
			c.CreationTimestamp = metav1.NewTime(time.Unix(1e9, 0).Add(-age))
			c.Annotations = map[string]string{"storageclass.beta.kubernetes.io/is-default-class": "true"}
		})
	}
	list := []*storagev1.StorageClass{at("c", time.Hour), at("b", time.Minute), at("a", time.Minute)}
	if got := DefaultClass(list); got == nil || got.Name != "a" {
		t.Errorf("got %v, want the first by name of the newest", got)
	}
	if got := DefaultClass(nil); got != nil {
		t.Errorf("got %v without classes", got)
	}
}
