package registry

import (
	"context"
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/control/printers"
)

// Kind is one row of the table. A function that is nil does nothing.
//
// The functions get the row's own Go type; Default, Prepare and PrepareUpdate
// may change the object (the first of two for an update), the others must not.
type Kind struct {
	GroupVersion  schema.GroupVersion // of the API, and of the store
	Resource      string              // plural, lower case
	Singular      string
	ShortNames    []string // short names
	InAllCategory bool     // part of "kubectl get all"
	ClusterScoped bool     // not in a namespace

	New     func() runtime.Object
	NewList func() runtime.Object

	// Status makes a status subresource. Through the object itself the status
	// cannot be written then, and through the subresource nothing but it.
	Status bool
	// StatusOnCreate lets a client that makes the object give it a status (nodes).
	StatusOnCreate bool
	// Generation counts the changes of all but metadata and status in
	// metadata.generation; of metadata it counts what Counted answers, too.
	Generation         bool
	GenerationMetadata func(m metav1.Object) map[string]string
	// Scale makes a scale subresource.
	Scale *ScaleAccessor

	Default        func(obj runtime.Object)
	Prepare        func(ctx context.Context, obj runtime.Object)
	PrepareUpdate  func(ctx context.Context, obj, old runtime.Object)
	Validate       func(obj runtime.Object) field.ErrorList
	ValidateUpdate func(obj, old runtime.Object) field.ErrorList
	// PrepareStatus and ValidateStatus see a write to the status subresource.
	PrepareStatus  func(ctx context.Context, obj, old runtime.Object)
	ValidateStatus func(obj, old runtime.Object) field.ErrorList
	// Warnings returns what the client should know though nothing is wrong.
	Warnings func(obj runtime.Object) []string
	// StoredOnlyWarning says, in the words of a warning, that the kind is stored only.
	StoredOnlyWarning string

	// Columns make the table that kubectl prints.
	Columns printers.Columns

	// Fields are the fields that a selector may name, besides metadata.name and
	// metadata.namespace, with the object's values. Names lists them all.
	Fields     func(obj runtime.Object) fields.Set
	FieldNames []string
	// IndexField is the one field by which watches are dispatched and lists are
	// looked up without a scan.
	IndexField string

	// Cached keeps the whole resource in memory, which makes watches and lists
	// cheap.
	Cached bool
	// TTL removes an object by itself, counted from its last write; 0 is never.
	TTL time.Duration
	// Prefix is the place in the store; by default the resource's own name, in
	// the manner of kube-apiserver.
	Prefix string
	// AllowCreateOnUpdate lets a PUT make the object.
	AllowCreateOnUpdate bool
	// RequireResourceVersion refuses a PUT without metadata.resourceVersion.
	RequireResourceVersion bool
	// OrphanDependents leaves the dependents alone when a delete says nothing of them.
	OrphanDependents bool
}

// GroupResource names the kind's resource.
func (k *Kind) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: k.GroupVersion.Group, Resource: k.Resource}
}

// Name is the kind as it stands in a manifest.
func (k *Kind) Name() string { return reflect.TypeOf(k.New()).Elem().Name() }

func fieldsFunc[T runtime.Object](f func(T) fields.Set) func(runtime.Object) fields.Set {
	return func(obj runtime.Object) fields.Set { return f(MustCast[T](obj)) }
}
