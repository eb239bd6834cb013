package volumes

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// fixedView is a view of objects that do not change.
type fixedView struct {
	volumes map[string]*corev1.PersistentVolume
	classes map[string]*storagev1.StorageClass
	waiting []string
}

func (f fixedView) Volume(name string) *corev1.PersistentVolume { return f.volumes[name] }
func (f fixedView) Volumes() []*corev1.PersistentVolume {
	return slices.Collect(maps.Values(f.volumes))
}
func (f fixedView) Class(name string) *storagev1.StorageClass { return f.classes[name] }
func (f fixedView) Classes() []*storagev1.StorageClass        { return slices.Collect(maps.Values(f.classes)) }

func (f fixedView) WaitingPods(*corev1.PersistentVolumeClaim) []string { return f.waiting }

func viewOf(objects ...metav1.Object) fixedView {
	f := fixedView{map[string]*corev1.PersistentVolume{}, map[string]*storagev1.StorageClass{}, nil}
	for _, obj := range objects {
		switch o := obj.(type) {
		case *corev1.PersistentVolume:
			f.volumes[o.Name] = o
		case *storagev1.StorageClass:
			f.classes[o.Name] = o
		}
	}
	return f
}

func newClaim(name, class, size string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	mode := corev1.PersistentVolumeFilesystem
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &class,
			VolumeMode: &mode,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceStorage: resource.MustParse(size)}},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func newVolume(name, class, size string, change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	mode := corev1.PersistentVolumeFilesystem
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: class,
			VolumeMode: &mode, Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: "/data/" + name}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
	}
	for _, f := range change {
		f(v)
	}
	return v
}

func newClass(name, provisioner string, mode storagev1.VolumeBindingMode, change ...func(*storagev1.StorageClass),
) *storagev1.StorageClass {
	c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name},
		Provisioner: cmp.Or(provisioner, "kubernetes.io/no-provisioner"), VolumeBindingMode: &mode}
	for _, f := range change {
		f(c)
	}
	return c
}

// boundTo sets the claimRef of a volume.
func boundTo(claim, uid string) func(*corev1.PersistentVolume) {
	return func(v *corev1.PersistentVolume) {
		v.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1",
			Namespace: "default", Name: claim, UID: types.UID(uid)}
	}
}
