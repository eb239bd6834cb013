package registry

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"berth/control/printers"
)

// StoreOptions holds what all stores of a server share.
type StoreOptions struct {
	Typer       runtime.ObjectTyper
	RESTOptions generic.RESTOptionsGetter
}

// Store is the main resource of a kind.
type Store struct {
	*genericregistry.Store
	Kind *Kind
}

// NewStore creates the store of a kind with the verbs get, list, watch, create, update, patch,
// delete and deletecollection.
func NewStore(kind *Kind, storeOptions StoreOptions) (*Store, error) {
	return NewStoreWithStrategy(kind, storeOptions, NewStrategy(kind, storeOptions.Typer))
}

// StoreStrategy is the strategy of a main resource.
type StoreStrategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
	rest.ResetFieldsStrategy
}

// NewStoreWithStrategy creates the store of a kind with another strategy than NewStrategy's.
func NewStoreWithStrategy(kind *Kind, storeOptions StoreOptions, strategy StoreStrategy) (*Store, error) {
	store := &genericregistry.Store{
		NewFunc:                   kind.New,
		NewListFunc:               kind.NewList,
		DefaultQualifiedResource:  kind.GroupResource(),
		SingularQualifiedResource: schema.GroupResource{Group: kind.GroupVersion.Group, Resource: kind.Singular},
		CreateStrategy:            strategy,
		UpdateStrategy:            strategy,
		DeleteStrategy:            strategy,
		ResetFieldsStrategy:       strategy,
		TableConvertor:            TableConvertor{kind.Columns},
	}
	if kind.TTL > 0 {
		store.TTLFunc = func(_ runtime.Object, _ uint64, _ bool) (uint64, error) {
			return uint64(kind.TTL.Seconds()), nil
		}
	}
	options := &generic.StoreOptions{RESTOptions: storeOptions.RESTOptions, AttrFunc: kind.attributes}
	if name := kind.IndexField; name != "" {
		value := func(obj runtime.Object) string { return kind.Fields(obj)[name] }
		options.TriggerFunc = storage.IndexerFuncs{name: value}
		options.Indexers = &cache.Indexers{storage.FieldIndex(name): func(obj any) ([]string, error) {
			return []string{value(MustCast[runtime.Object](obj))}, nil
		}}
	}
	if err := store.CompleteWithOptions(options); err != nil {
		return nil, fmt.Errorf("store for %s: %w", kind.GroupResource(), err)
	}
	return &Store{Store: store, Kind: kind}, nil
}

// attributes returns the labels and fields for selectors.
func (k *Kind) attributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, nil, err
	}
	set := fields.Set{}
	if k.Fields != nil {
		set = k.Fields(obj)
	}
	set["metadata.name"] = m.GetName()
	if !k.ClusterScoped {
		set["metadata.namespace"] = m.GetNamespace()
	}
	return m.GetLabels(), set, nil
}

// AddFieldLabels registers the selectable fields of the kind.
func (k *Kind) AddFieldLabels(s *runtime.Scheme) error {
	return s.AddFieldLabelConversionFunc(k.GroupVersion.WithKind(k.Name()), k.convertFieldLabel)
}

func (k *Kind) convertFieldLabel(label, value string) (string, string, error) {
	known := label == "metadata.name" || label == "metadata.namespace" && !k.ClusterScoped
	for _, name := range k.FieldNames {
		known = known || label == name
	}
	if !known {
		return "", "", fmt.Errorf("field label not supported: %s", label)
	}
	return label, value, nil
}

// ShortNames returns the short names for kubectl.
func (s *Store) ShortNames() []string { return s.Kind.ShortNames }

// Categories returns the categories for kubectl.
func (s *Store) Categories() []string {
	if s.Kind.InAllCategory {
		return []string{"all"}
	}
	return nil
}

// StatusStore implements the status subresource, and other subresources that update the whole
// object.
type StatusStore struct {
	store *genericregistry.Store
}

// NewStatus creates the status subresource with the strategy of the kind.
func NewStatus(main *Store, storeOptions StoreOptions) *StatusStore {
	return NewSubresource(main, StatusStrategy{NewStrategy(main.Kind, storeOptions.Typer)})
}

// SubresourceStrategy is the strategy of a subresource.
type SubresourceStrategy interface {
	rest.RESTUpdateStrategy
	rest.ResetFieldsStrategy
}

// NewSubresource creates a subresource that updates the object with another strategy.
func NewSubresource(main *Store, strategy SubresourceStrategy) *StatusStore {
	store := *main.Store
	store.UpdateStrategy = strategy
	store.ResetFieldsStrategy = strategy
	return &StatusStore{store: &store}
}

var (
	_ rest.Patcher             = (*StatusStore)(nil)
	_ rest.ResetFieldsStrategy = (*StatusStore)(nil)
	_ rest.TableConvertor      = (*StatusStore)(nil)
)

// New returns an empty object.
func (s *StatusStore) New() runtime.Object { return s.store.New() }

// Destroy does nothing: the main resource owns the storage.
func (s *StatusStore) Destroy() {}

// Get returns the whole object.
func (s *StatusStore) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return s.store.Get(ctx, name, options)
}

// Update updates the object. It never creates one.
func (s *StatusStore) Update(
	ctx context.Context,
	name string,
	info rest.UpdatedObjectInfo,
	create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc,
	_ bool,
	options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	return s.store.Update(ctx, name, info, create, update, false, options)
}

// GetResetFields returns the fields that server-side apply ignores here.
func (s *StatusStore) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return s.store.GetResetFields()
}

// ConvertToTable returns the table for kubectl.
func (s *StatusStore) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return s.store.ConvertToTable(ctx, obj, options)
}

// TableConvertor converts objects to tables with the columns of a kind.
type TableConvertor struct{ Columns printers.Columns }

// ConvertToTable converts an object or a list.
func (p TableConvertor) ConvertToTable(_ context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	o, ok := options.(*metav1.TableOptions)
	return p.Columns.Table(obj, time.Now(), !ok || !o.NoHeaders)
}
