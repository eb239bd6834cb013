package registry

import (
	"context"
	"fmt"
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/control/printers"
)

// Kind defines one resource. A nil function does nothing.
//
// The functions receive the Go type of the kind. Default, Prepare and PrepareUpdate may change the
// object, for updates the new one. The others must not.
type Kind struct {
	GroupVersion schema.GroupVersion // of the API and of the stored objects
	// OtherVersions are further versions of the API. The scheme converts between them and GroupVersion.
	OtherVersions []schema.GroupVersion
	Resource      string // plural, lower case
	Singular      string
	ShortNames    []string
	InAllCategory bool // in "kubectl get all"
	ClusterScoped bool

	New     func() runtime.Object
	NewList func() runtime.Object

	// Status enables the status subresource. The main resource then ignores changes of the status,
	// and the subresource ignores all others.
	Status bool
	// StatusOnCreate accepts a status when the object is created (nodes).
	StatusOnCreate bool
	// Generation enables metadata.generation. It counts changes of fields other than metadata and
	// status, and of the metadata that GenerationMetadata returns.
	Generation         bool
	GenerationMetadata func(m metav1.Object) map[string]string
	// Scale enables the scale subresource.
	Scale *ScaleAccessor

	Default        func(obj runtime.Object)
	Prepare        func(ctx context.Context, obj runtime.Object)
	PrepareUpdate  func(ctx context.Context, obj, old runtime.Object)
	Validate       func(obj runtime.Object) field.ErrorList
	ValidateUpdate func(obj, old runtime.Object) field.ErrorList
	// PrepareStatus and ValidateStatus apply to the status subresource.
	PrepareStatus  func(ctx context.Context, obj, old runtime.Object)
	ValidateStatus func(obj, old runtime.Object) field.ErrorList
	// StatusSetsFinalizers is true if a write of the status may change finalizers, as upstream allows for
	// Services: their cloud controllers have no permission for more.
	StatusSetsFinalizers bool
	// Warnings returns warnings for the client.
	Warnings func(obj runtime.Object) []string
	// StoredOnlyWarning warns that the server does not act on objects of this kind.
	StoredOnlyWarning string

	// Columns are the columns of "kubectl get".
	Columns printers.Columns

	// Fields returns the values of the selectable fields besides metadata.name and
	// metadata.namespace. FieldNames lists all of them.
	Fields     func(obj runtime.Object) fields.Set
	FieldNames []string
	// IndexField is the field by which the watch cache dispatches watches and indexes lists.
	IndexField string

	// Cached enables the watch cache.
	Cached bool
	// TTL is the time after the last write when an object is deleted. 0 is never.
	TTL time.Duration
	// Prefix is the etcd key prefix. The default is the resource name, as in kube-apiserver.
	Prefix string
	// AllowCreateOnUpdate allows PUT to create the object.
	AllowCreateOnUpdate bool
	// RequireResourceVersion rejects PUT without metadata.resourceVersion.
	RequireResourceVersion bool
	// OrphanDependents is the default deletion propagation policy of the kind.
	OrphanDependents bool
}

// Namespaced returns the resources of the kinds that belong to a namespace.
func Namespaced(kinds []*Kind) (out []schema.GroupResource) {
	for _, k := range kinds {
		if !k.ClusterScoped {
			out = append(out, k.GroupResource())
		}
	}
	return out
}

// GroupResource returns the group and resource.
func (k *Kind) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: k.GroupVersion.Group, Resource: k.Resource}
}

// Name returns the kind, as in a manifest.
func (k *Kind) Name() string { return reflect.TypeOf(k.New()).Elem().Name() }

func fieldsFunc[T runtime.Object](f func(T) fields.Set) func(runtime.Object) fields.Set {
	return func(obj runtime.Object) fields.Set { return f(MustCast[T](obj)) }
}

// MustCast returns an object as the Go type of its kind. A mismatch is a bug in the table, which
// the caller cannot handle: it panics with both types, and the API server responds with an internal
// error to that request.
func MustCast[T runtime.Object](obj any) T {
	as, ok := obj.(T)
	if !ok {
		panic(fmt.Sprintf("got a %T, want a %v", obj, reflect.TypeFor[T]()))
	}
	return as
}
