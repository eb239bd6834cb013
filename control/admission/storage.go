package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	storagehelpers "k8s.io/component-helpers/storage/volume"

	"berth/control/volumes"
)

// defaultStorageClass sets the class of claims without one.
type defaultStorageClass struct {
	*admission.Handler

	classes storagelisters.StorageClassLister
}

func newDefaultStorageClass(c Config) (admission.Interface, error) {
	classes := c.Informers.Storage().V1().StorageClasses()
	p := &defaultStorageClass{admission.NewHandler(admission.Create), classes.Lister()}
	p.SetReadyFunc(classes.Informer().HasSynced)
	return p, nil
}

// Admit sets the default class, if there is one.
func (d *defaultStorageClass) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	claim, ok := a.GetObject().(*corev1.PersistentVolumeClaim)
	if !ok || a.GetSubresource() != "" || storagehelpers.PersistentVolumeClaimHasClass(claim) {
		return nil
	}
	if !d.WaitForReady() {
		return admission.NewForbidden(a, errors.New("not yet ready to handle request"))
	}
	all, err := d.classes.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list storage classes: %w", err)
	}
	if class := volumes.DefaultClass(all); class != nil {
		claim.Spec.StorageClassName = &class.Name
	}
	return nil
}

// storageProtection sets the finalizers with which the protection controllers keep claims and volumes that
// are in use.
type storageProtection struct{ *admission.Handler }

func newStorageProtection(Config) (admission.Interface, error) {
	return &storageProtection{admission.NewHandler(admission.Create)}, nil
}

// Admit adds the finalizer.
func (*storageProtection) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetSubresource() != "" {
		return nil
	}
	add := func(obj metav1.Object, finalizer string) {
		if !slices.Contains(obj.GetFinalizers(), finalizer) {
			obj.SetFinalizers(append(obj.GetFinalizers(), finalizer))
		}
	}
	switch obj := a.GetObject().(type) {
	case *corev1.PersistentVolumeClaim:
		add(obj, "kubernetes.io/pvc-protection")
	case *corev1.PersistentVolume:
		add(obj, "kubernetes.io/pv-protection")
	case *storagev1.VolumeAttributesClass:
		add(obj, "kubernetes.io/vac-protection")
	}
	return nil
}

// claimResize rejects the expansion of claims whose class does not allow it.
type claimResize struct {
	*admission.Handler

	classes storagelisters.StorageClassLister
}

func newClaimResize(c Config) (admission.Interface, error) {
	classes := c.Informers.Storage().V1().StorageClasses()
	p := &claimResize{admission.NewHandler(admission.Update), classes.Lister()}
	p.SetReadyFunc(classes.Informer().HasSynced)
	return p, nil
}

// Validate compares the requested sizes.
func (r *claimResize) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	claim, ok := a.GetObject().(*corev1.PersistentVolumeClaim)
	old, okOld := a.GetOldObject().(*corev1.PersistentVolumeClaim)
	if !ok || !okOld || a.GetSubresource() != "" {
		return nil
	}
	size, before := claim.Spec.Resources.Requests[corev1.ResourceStorage],
		old.Spec.Resources.Requests[corev1.ResourceStorage]
	if size.Cmp(before) <= 0 {
		return nil
	}
	if old.Status.Phase != corev1.ClaimBound {
		return admission.NewForbidden(a, errors.New("only bound persistent volume claims can be expanded"))
	}
	if !r.WaitForReady() {
		return admission.NewForbidden(a, errors.New("not yet ready to handle request"))
	}
	if !r.expandable(claim) {
		return admission.NewForbidden(a, errors.New("only dynamically provisioned pvc can be resized and the "+
			"storageclass that provisions the pvc must support resize"))
	}
	return nil
}

// expandable reports whether the class of a claim allows expansion.
func (r *claimResize) expandable(claim *corev1.PersistentVolumeClaim) bool {
	class, err := r.classes.Get(storagehelpers.GetPersistentVolumeClaimClass(claim))
	return err == nil && class.AllowVolumeExpansion != nil && *class.AllowVolumeExpansion
}
