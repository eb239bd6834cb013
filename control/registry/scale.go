package registry

import (
	"context"
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"berth/control/printers"
)

// ScaleAccessor accesses the number of replicas of a kind.
type ScaleAccessor struct {
	// Get returns the desired and the current number of replicas, and the pod selector.
	Get func(obj runtime.Object) (want, have int32, selector *metav1.LabelSelector)
	// SetReplicas sets the desired number of replicas.
	SetReplicas func(obj runtime.Object, want int32)
}

// ScaleStore implements the scale subresource of a kind.
type ScaleStore struct{ main *Store }

// NewScale creates the scale subresource of a store.
func NewScale(main *Store) *ScaleStore { return &ScaleStore{main} }

var (
	_ rest.Patcher                  = (*ScaleStore)(nil)
	_ rest.GroupVersionKindProvider = (*ScaleStore)(nil)
	_ rest.TableConvertor           = (*ScaleStore)(nil)
)

// GroupVersionKind returns autoscaling/v1 Scale, which belongs to another group than the resource.
func (s *ScaleStore) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return autoscalingv1.SchemeGroupVersion.WithKind("Scale")
}

// New returns an empty scale.
func (s *ScaleStore) New() runtime.Object { return &autoscalingv1.Scale{} }

// Destroy does nothing: the main resource owns the storage.
func (s *ScaleStore) Destroy() {}

// Get returns the scale of an object.
func (s *ScaleStore) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	obj, err := s.main.Get(ctx, name, options)
	if err != nil {
		return nil, err
	}
	return s.toScale(obj)
}

// Update sets the desired number of replicas.
func (s *ScaleStore) Update(
	ctx context.Context,
	name string,
	info rest.UpdatedObjectInfo,
	create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc,
	_ bool,
	options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	obj, _, err := s.main.Update(ctx, name, &scaleUpdate{s, name, info, update},
		rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, options)
	if err != nil {
		return nil, false, err
	}
	scale, err := s.toScale(obj)
	return scale, false, err
}

// ConvertToTable returns the table for kubectl.
func (s *ScaleStore) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return TableConvertor{
		printers.ColumnsFor(s.GroupVersionKind(schema.GroupVersion{}).GroupKind()),
	}.ConvertToTable(
		ctx,
		obj,
		options,
	)
}

func (s *ScaleStore) toScale(obj runtime.Object) (*autoscalingv1.Scale, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	want, have, selector := s.main.Kind.Scale.Get(obj)
	text, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return nil, fmt.Errorf("selector of %s %s: %w", s.main.Kind.Singular, m.GetName(), err)
	}
	return &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{
			Name: m.GetName(), Namespace: m.GetNamespace(), UID: m.GetUID(),
			ResourceVersion: m.GetResourceVersion(), CreationTimestamp: m.GetCreationTimestamp(),
		},
		Spec:   autoscalingv1.ScaleSpec{Replicas: want},
		Status: autoscalingv1.ScaleStatus{Replicas: have, Selector: text.String()},
	}, nil
}

// scaleUpdate converts an update of a scale to an update of the object.
type scaleUpdate struct {
	store  *ScaleStore
	name   string
	info   rest.UpdatedObjectInfo
	update rest.ValidateObjectUpdateFunc
}

// Preconditions returns the preconditions of the request.
func (o *scaleUpdate) Preconditions() *metav1.Preconditions { return o.info.Preconditions() }

// UpdatedObject returns the object with the desired number of replicas.
func (o *scaleUpdate) UpdatedObject(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	old, err := o.store.toScale(obj)
	if err != nil {
		return nil, err
	}
	if old.UID == "" {
		return nil, apierrors.NewNotFound(o.store.main.Kind.GroupResource(), o.name)
	}
	next := obj.DeepCopyObject()
	owners, err := o.managedFields(next)
	if err != nil {
		return nil, err
	}
	if old.ManagedFields, err = owners.ToSubresource(); err != nil {
		return nil, fmt.Errorf("managed fields of the scale of %s %s: %w", o.store.main.Kind.Singular, o.name, err)
	}
	changed, err := o.info.UpdatedObject(ctx, old.DeepCopy())
	if err != nil {
		return nil, err
	}
	scale, ok := changed.(*autoscalingv1.Scale)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("expected a Scale, got %T", changed))
	}
	if scale.Spec.Replicas < 0 {
		return nil, apierrors.NewInvalid(
			autoscalingv1.SchemeGroupVersion.WithKind("Scale").GroupKind(),
			o.name,
			field.ErrorList{
				field.Invalid(field.NewPath("spec", "replicas"), scale.Spec.Replicas,
					"must be greater than or equal to 0")},
		)
	}
	if scale.ResourceVersion != "" && scale.ResourceVersion != old.ResourceVersion {
		return nil, apierrors.NewConflict(o.store.main.Kind.GroupResource(), o.name,
			fmt.Errorf("the object has been modified; please apply your changes to the latest version and try again"))
	}
	if err := o.update(ctx, scale, old); err != nil {
		return nil, err
	}
	o.store.main.Kind.Scale.SetReplicas(next, scale.Spec.Replicas)
	entries, err := owners.ToParent(scale.ManagedFields)
	if err != nil {
		return nil, fmt.Errorf("managed fields of %s %s: %w", o.store.main.Kind.Singular, o.name, err)
	}
	m, err := meta.Accessor(next)
	if err != nil {
		return nil, err
	}
	m.SetManagedFields(entries)
	return next, nil
}

// managedFields maps the owner of the replicas field between the object and its scale.
func (o *scaleUpdate) managedFields(obj runtime.Object) (*managedfields.ScaleHandler, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	version := o.store.main.Kind.GroupVersion
	return managedfields.NewScaleHandler(m.GetManagedFields(), version, managedfields.ResourcePathMappings{
		version.String(): fieldpath.MakePathOrDie("spec", "replicas"),
	}), nil
}
