package localvolumes

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"berth/internal/localvolumes"
)

func claim(change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data", UID: "u1", Annotations: map[string]string{
			"volume.kubernetes.io/storage-provisioner": localvolumes.DriverName,
			"volume.kubernetes.io/selected-node":       "n1",
		}},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To(ClassName), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func TestRequestFor(t *testing.T) {
	r, ready, err := RequestFor(claim(), Class(true))
	if err != nil || !ready || r != (Request{"pvc-u1", "n1", 1 << 30}) {
		t.Errorf("%+v %v %v", r, ready, err)
	}
	waits := claim(func(c *corev1.PersistentVolumeClaim) { c.Annotations = nil })
	if _, ready, err := RequestFor(waits, Class(true)); ready || err != nil {
		t.Errorf("without a node: %v %v", ready, err)
	}
	immediate := Class(true)
	immediate.VolumeBindingMode = ptr.To(storagev1.VolumeBindingImmediate)
	if r, ready, err := RequestFor(waits, immediate); !ready || err != nil || r.Node != "" {
		t.Errorf("immediate: %+v %v %v", r, ready, err)
	}
	for field, change := range map[string]func(*corev1.PersistentVolumeClaim, *storagev1.StorageClass){
		"spec.volumeMode": func(c *corev1.PersistentVolumeClaim, _ *storagev1.StorageClass) {
			c.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
		},
		"spec.accessModes": func(c *corev1.PersistentVolumeClaim, _ *storagev1.StorageClass) {
			c.Spec.AccessModes = append(c.Spec.AccessModes, corev1.ReadWriteMany)
		},
		"spec.dataSource": func(c *corev1.PersistentVolumeClaim, _ *storagev1.StorageClass) {
			c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "a"}
		},
		"spec.selector": func(c *corev1.PersistentVolumeClaim, _ *storagev1.StorageClass) {
			c.Spec.Selector = &metav1.LabelSelector{}
		},
		"spec.volumeAttributesClassName": func(c *corev1.PersistentVolumeClaim, _ *storagev1.StorageClass) {
			c.Spec.VolumeAttributesClassName = ptr.To("gold")
		},
		`no parameter "type"`: func(_ *corev1.PersistentVolumeClaim, s *storagev1.StorageClass) {
			s.Parameters = map[string]string{"type": "ssd"}
		},
		"parameters[csi.storage.k8s.io/fstype]": func(_ *corev1.PersistentVolumeClaim, s *storagev1.StorageClass) {
			s.Parameters = map[string]string{"csi.storage.k8s.io/fstype": "xfs"}
		},
		"allowedTopologies": func(_ *corev1.PersistentVolumeClaim, s *storagev1.StorageClass) {
			s.AllowedTopologies = []corev1.TopologySelectorTerm{{}}
		},
	} {
		c, s := claim(), Class(true)
		change(c, s)
		if _, _, err := RequestFor(c, s); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: got error %v", field, err)
		}
	}
}

func TestVolumeIsOnItsNode(t *testing.T) {
	v := Volume(claim(), Class(true), "n1", 1<<30)
	if NodeOf(v) != "n1" || !Provides(v) || v.Spec.ClaimRef.UID != "u1" || v.Spec.CSI.VolumeHandle != v.Name {
		t.Errorf("%+v", v)
	}
	v.Spec.NodeAffinity = nil
	if NodeOf(v) != "" {
		t.Error("volume without affinity has a node")
	}
}

func TestNextReclaim(t *testing.T) {
	now := metav1.Now()
	for name, c := range map[string]struct {
		change func(*corev1.PersistentVolume)
		want   Reclaim
	}{
		"bound":    {func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeBound }, Reclaim{}},
		"released": {func(*corev1.PersistentVolume) {}, Reclaim{true, true, true}},
		"released, kept": {func(v *corev1.PersistentVolume) {
			v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		}, Reclaim{}},
		"deleted while bound": {func(v *corev1.PersistentVolume) {
			v.Status.Phase, v.DeletionTimestamp = corev1.VolumeBound, &now
			v.Finalizers = append(v.Finalizers, pvProtection)
		}, Reclaim{}},
		"deleted while bound, without protection": {func(v *corev1.PersistentVolume) {
			v.Status.Phase, v.DeletionTimestamp = corev1.VolumeBound, &now
		}, Reclaim{}},
		"of an administrator": {func(v *corev1.PersistentVolume) { v.Annotations = nil }, Reclaim{}},
		"deleted and released": {func(v *corev1.PersistentVolume) { v.DeletionTimestamp = &now },
			Reclaim{DeleteVolume: true, RemoveFinalizer: true}},
		"deleted, kept": {func(v *corev1.PersistentVolume) {
			v.DeletionTimestamp, v.Spec.PersistentVolumeReclaimPolicy = &now, corev1.PersistentVolumeReclaimRetain
		}, Reclaim{RemoveFinalizer: true}},
		"deleted, done": {func(v *corev1.PersistentVolume) { v.DeletionTimestamp, v.Finalizers = &now, nil }, Reclaim{}},
	} {
		v := Volume(claim(), Class(true), "n1", 1<<30)
		v.Status.Phase = corev1.VolumeReleased
		c.change(v)
		if got := NextReclaim(v); got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}

func TestGrowthOf(t *testing.T) {
	size := func(text string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(text)}
	}
	for name, c := range map[string]struct {
		requested, has, volume string
		change                 func(*corev1.PersistentVolumeClaim, *storagev1.StorageClass)
		want                   Growth
		needed                 bool
	}{
		"same":             {"1Gi", "1Gi", "1Gi", nil, Growth{}, false},
		"larger":           {"2Gi", "1Gi", "1Gi", nil, Growth{2 << 30, true}, true},
		"status is behind": {"2Gi", "1Gi", "2Gi", nil, Growth{2 << 30, false}, true},
		"not bound": {"2Gi", "1Gi", "1Gi", func(c *corev1.PersistentVolumeClaim, _ *storagev1.StorageClass) {
			c.Status.Phase = corev1.ClaimPending
		}, Growth{}, false},
		"of another claim": {"2Gi", "1Gi", "1Gi", func(c *corev1.PersistentVolumeClaim, _ *storagev1.StorageClass) {
			c.UID = "u2"
		}, Growth{}, false},
		"class forbids it": {"2Gi", "1Gi", "1Gi", func(_ *corev1.PersistentVolumeClaim, s *storagev1.StorageClass) {
			s.AllowVolumeExpansion = nil
		}, Growth{}, false},
	} {
		of, class := claim(), Class(true)
		v := Volume(of, class, "n1", 1)
		of.Spec.Resources.Requests, of.Status.Capacity, v.Spec.Capacity = size(c.requested), size(c.has), size(c.volume)
		of.Status.Phase = corev1.ClaimBound
		if c.change != nil {
			c.change(of, class)
		}
		if got, needed := GrowthOf(of, v, class); got != c.want || needed != c.needed {
			t.Errorf("%s: got %+v %v", name, got, needed)
		}
	}
}

func TestUnreferencedVolumesWithDataAreKept(t *testing.T) {
	known := map[string]bool{"pvc-a": true}
	for v, want := range map[localvolumes.Volume]bool{
		{Name: "pvc-a"}: false, {Name: "pvc-b"}: true, {Name: "pvc-b", Used: true}: false, {Name: "by-hand"}: false,
	} {
		if got := Unreferenced(v, known); got != want {
			t.Errorf("%+v: got %v", v, got)
		}
	}
}

func TestCapacityChanged(t *testing.T) {
	for _, c := range []struct {
		published, now int64
		want           bool
	}{
		{10 << 30, 10 << 30, false}, {10 << 30, 10<<30 - 50<<20, false}, {10 << 30, 9 << 30, true},
		{1 << 40, 1<<40 - 5<<30, false}, {1 << 20, 0, true}, {0, 1 << 20, true}, {0, 0, false},
	} {
		if got := CapacityChanged(c.published, c.now); got != c.want {
			t.Errorf("%d to %d: got %v", c.published, c.now, got)
		}
	}
}
