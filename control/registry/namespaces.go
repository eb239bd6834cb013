package registry

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/util/dryrun"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// Namespaces is the store of namespaces. A namespace is deleted in two steps:
//
//	Active ──delete──► Terminating ──finalize (namespace is empty)──► removed
//
// Delete only marks it. The owner of the spec finalizer "kubernetes" deletes the contents, and then
// removes the finalizer through the finalize subresource.
//
// Namespaces lists the supported verbs explicitly instead of embedding the store: deletecollection
// would remove namespaces without their contents.
type Namespaces struct{ store *Store }

var (
	_ rest.Lister               = (*Namespaces)(nil)
	_ rest.Watcher              = (*Namespaces)(nil)
	_ rest.CreaterUpdater       = (*Namespaces)(nil)
	_ rest.Patcher              = (*Namespaces)(nil)
	_ rest.GracefulDeleter      = (*Namespaces)(nil)
	_ rest.Scoper               = (*Namespaces)(nil)
	_ rest.SingularNameProvider = (*Namespaces)(nil)
	_ rest.ShortNamesProvider   = (*Namespaces)(nil)
	_ rest.CategoriesProvider   = (*Namespaces)(nil)
	_ rest.ResetFieldsStrategy  = (*Namespaces)(nil)
	_ rest.StorageWithReadiness = (*Namespaces)(nil)
)

// NewNamespaces creates the store with status and finalize.
func NewNamespaces(kind *Kind, storeOptions StoreOptions) (*Store, map[string]rest.Storage, error) {
	main, err := NewStoreWithStrategy(kind, storeOptions, namespaceStrategy{NewStrategy(kind, storeOptions.Typer)})
	if err != nil {
		return nil, nil, err
	}
	main.ShouldDeleteDuringUpdate = func(ctx context.Context, key string, obj, existing runtime.Object) bool {
		n := MustCast[*corev1.Namespace](obj)
		return len(n.Spec.Finalizers) == 0 && len(n.Finalizers) == 0 && n.DeletionTimestamp != nil
	}
	return main, map[string]rest.Storage{
		"namespaces":          &Namespaces{main},
		"namespaces/status":   NewStatus(main, storeOptions),
		"namespaces/finalize": NewSubresource(main, namespaceFinalizeStrategy{NewStrategy(kind, storeOptions.Typer)}),
	}, nil
}

type namespaceStrategy struct{ Strategy }

// PrepareForCreate sets the finalizer and the phase.
func (r namespaceStrategy) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	r.Strategy.PrepareForCreate(ctx, obj)
	n := MustCast[*corev1.Namespace](obj)
	n.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
	if !slices.Contains(n.Spec.Finalizers, corev1.FinalizerKubernetes) {
		n.Spec.Finalizers = append(n.Spec.Finalizers, corev1.FinalizerKubernetes)
	}
	setNameLabel(n)
}

// PrepareForUpdate keeps the finalizers, which only the finalize subresource changes.
func (r namespaceStrategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	r.Strategy.PrepareForUpdate(ctx, obj, old)
	n := MustCast[*corev1.Namespace](obj)
	n.Spec.Finalizers = MustCast[*corev1.Namespace](old).Spec.Finalizers
	setNameLabel(n)
}

// setNameLabel sets the label kubernetes.io/metadata.name, by which selectors can select a
// namespace.
func setNameLabel(n *corev1.Namespace) {
	if n.Name == "" {
		return
	}
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	n.Labels[corev1.LabelMetadataName] = n.Name
}

type namespaceFinalizeStrategy struct{ Strategy }

// PrepareForUpdate keeps everything except the spec finalizers.
func (namespaceFinalizeStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	n := MustCast[*corev1.Namespace](obj)
	finalizers := n.Spec.Finalizers
	MustCast[*corev1.Namespace](old).DeepCopyInto(n)
	n.Spec.Finalizers = finalizers
}

// ValidateUpdate accepts all changes.
func (namespaceFinalizeStrategy) ValidateUpdate(context.Context, runtime.Object, runtime.Object) field.ErrorList {
	return nil
}

// GetResetFields returns the fields that server-side apply ignores here.
func (r namespaceFinalizeStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(r.Kind.GroupVersion.String()): fieldpath.NewSet(fieldpath.MakePathOrDie("status")),
	}
}

// New returns an empty namespace.
func (n *Namespaces) New() runtime.Object { return n.store.New() }

// NewList returns an empty list.
func (n *Namespaces) NewList() runtime.Object { return n.store.NewList() }

// Destroy destroys the store.
func (n *Namespaces) Destroy() { n.store.Destroy() }

// ReadinessCheck checks whether the storage is ready.
func (n *Namespaces) ReadinessCheck() error { return n.store.ReadinessCheck() }

// StorageVersion returns the version of stored objects.
func (n *Namespaces) StorageVersion() runtime.GroupVersioner { return n.store.StorageVersion() }

// NamespaceScoped returns false.
func (n *Namespaces) NamespaceScoped() bool { return n.store.NamespaceScoped() }

// GetSingularName returns the singular name.
func (n *Namespaces) GetSingularName() string { return n.store.GetSingularName() }

// ShortNames returns the short names for kubectl.
func (n *Namespaces) ShortNames() []string { return n.store.ShortNames() }

// Categories returns the categories for kubectl.
func (n *Namespaces) Categories() []string { return n.store.Categories() }

// GetResetFields returns the fields that server-side apply ignores here.
func (n *Namespaces) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return n.store.GetResetFields()
}

// ConvertToTable returns the table for kubectl.
func (n *Namespaces) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return n.store.ConvertToTable(ctx, obj, options)
}

// Get returns a namespace.
func (n *Namespaces) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return n.store.Get(ctx, name, options)
}

// List returns namespaces.
func (n *Namespaces) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	return n.store.List(ctx, options)
}

// Watch watches namespaces.
func (n *Namespaces) Watch(ctx context.Context, options *internalversion.ListOptions) (watch.Interface, error) {
	return n.store.Watch(ctx, options)
}

// Create creates a namespace.
func (n *Namespaces) Create(
	ctx context.Context,
	obj runtime.Object,
	validate rest.ValidateObjectFunc,
	options *metav1.CreateOptions,
) (runtime.Object, error) {
	return n.store.Create(ctx, obj, validate, options)
}

// Update updates a namespace.
func (n *Namespaces) Update(
	ctx context.Context,
	name string,
	info rest.UpdatedObjectInfo,
	create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc,
	force bool,
	options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	return n.store.Update(ctx, name, info, create, update, force, options)
}

// Delete marks a namespace as terminating, or removes it if it has no finalizers left.
func (n *Namespaces) Delete(
	ctx context.Context,
	name string,
	validate rest.ValidateObjectFunc,
	options *metav1.DeleteOptions,
) (runtime.Object, bool, error) {
	obj, err := n.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, false, err
	}
	namespace := MustCast[*corev1.Namespace](obj)
	if options == nil {
		options = metav1.NewDeleteOptions(0)
	}
	if options.Preconditions == nil {
		options.Preconditions = &metav1.Preconditions{}
	}
	if options.Preconditions.UID == nil {
		options.Preconditions.UID = &namespace.UID
	} else if *options.Preconditions.UID != namespace.UID {
		return nil, false, apierrors.NewConflict(n.store.Kind.GroupResource(), name,
			fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v",
				*options.Preconditions.UID,
				namespace.UID))
	}
	if version := options.Preconditions.ResourceVersion; version != nil && *version != namespace.ResourceVersion {
		return nil, false, apierrors.NewConflict(
			n.store.Kind.GroupResource(),
			name,
			fmt.Errorf(
				"Precondition failed: ResourceVersion in precondition: %v, ResourceVersion in object meta: %v",
				*version,
				namespace.ResourceVersion,
			),
		)
	}
	if namespace.DeletionTimestamp.IsZero() || namespace.Status.Phase != corev1.NamespaceTerminating {
		out, err := n.markTerminating(ctx, name, validate, options)
		return out, false, err
	}
	if len(namespace.Spec.Finalizers) != 0 {
		return namespace, false, nil
	}
	return n.store.Delete(ctx, name, validate, options)
}

// markTerminating sets the deletion timestamp and the phase.
func (n *Namespaces) markTerminating(
	ctx context.Context,
	name string,
	validate rest.ValidateObjectFunc,
	options *metav1.DeleteOptions,
) (runtime.Object, error) {
	key, err := n.store.KeyFunc(ctx, name)
	if err != nil {
		return nil, err
	}
	out := n.store.NewFunc()
	change := storage.SimpleUpdate(func(existing runtime.Object) (runtime.Object, error) {
		if err := validate(ctx, existing); err != nil {
			return nil, err
		}
		namespace := MustCast[*corev1.Namespace](existing)
		if namespace.DeletionTimestamp.IsZero() {
			now := metav1.Now()
			namespace.DeletionTimestamp = &now
		}
		namespace.Status.Phase = corev1.NamespaceTerminating
		namespace.Finalizers = withOrphanFinalizer(namespace.Finalizers, options)
		return namespace, nil
	})
	preconditions := &storage.Preconditions{
		UID:             options.Preconditions.UID,
		ResourceVersion: options.Preconditions.ResourceVersion,
	}
	err = n.store.Storage.GuaranteedUpdate(
		ctx,
		key,
		out,
		false,
		preconditions,
		change,
		dryrun.IsDryRun(options.DryRun),
		nil,
	)
	if err != nil {
		err = storeerr.InterpretUpdateError(err, n.store.Kind.GroupResource(), name)
		if _, ok := err.(*apierrors.StatusError); !ok { //nolint:errorlint // the library returns the type itself
			err = apierrors.NewInternalError(err)
		}
		return nil, err
	}
	return out, nil
}

// withOrphanFinalizer adds or removes the orphan finalizer according to the delete options.
func withOrphanFinalizer(finalizers []string, options *metav1.DeleteOptions) []string {
	//nolint:staticcheck // older clients still send it
	orphanDependents := options.OrphanDependents != nil && *options.OrphanDependents
	orphan := orphanDependents ||
		options.PropagationPolicy != nil && *options.PropagationPolicy == metav1.DeletePropagationOrphan
	hasFinalizer := slices.Contains(finalizers, metav1.FinalizerOrphanDependents)
	switch {
	case orphan && !hasFinalizer:
		return append(slices.Clone(finalizers), metav1.FinalizerOrphanDependents)
	case !orphan && hasFinalizer && options.PropagationPolicy != nil:
		return slices.DeleteFunc(
			slices.Clone(finalizers),
			func(f string) bool { return f == metav1.FinalizerOrphanDependents },
		)
	}
	return finalizers
}
