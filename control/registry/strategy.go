package registry

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// Strategy implements the strategy of a kind's main resource. Kinds with a package of their own
// embed it.
type Strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
	Kind *Kind
}

var (
	_ rest.RESTCreateStrategy              = Strategy{}
	_ rest.RESTUpdateStrategy              = Strategy{}
	_ rest.GarbageCollectionDeleteStrategy = Strategy{}
	_ rest.ResetFieldsStrategy             = Strategy{}
)

// NewStrategy returns the strategy of a kind.
func NewStrategy(kind *Kind, typer runtime.ObjectTyper) Strategy {
	return Strategy{ObjectTyper: typer, NameGenerator: names.SimpleNameGenerator, Kind: kind}
}

// NamespaceScoped reports whether objects have a namespace.
func (s Strategy) NamespaceScoped() bool { return !s.Kind.ClusterScoped }

// PrepareForCreate clears the status and sets the generation.
func (s Strategy) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	if s.Kind.Status && !s.Kind.StatusOnCreate {
		clearField(obj, "Status")
	}
	if s.Kind.Generation {
		setGeneration(obj, 1)
	}
	if s.Kind.Prepare != nil {
		s.Kind.Prepare(ctx, obj)
	}
}

// Validate validates a new object.
func (s Strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	if s.Kind.Validate == nil {
		return nil
	}
	return s.Kind.Validate(obj)
}

// WarningsOnCreate returns the warnings of the kind.
func (s Strategy) WarningsOnCreate(_ context.Context, obj runtime.Object) []string {
	var out []string
	if s.Kind.StoredOnlyWarning != "" {
		out = append(out, s.Kind.StoredOnlyWarning)
	}
	if s.Kind.Warnings != nil {
		out = append(out, s.Kind.Warnings(obj)...)
	}
	return out
}

// Canonicalize does nothing.
func (s Strategy) Canonicalize(runtime.Object) {}

// AllowCreateOnUpdate reports whether PUT may create the object.
func (s Strategy) AllowCreateOnUpdate(context.Context) bool { return s.Kind.AllowCreateOnUpdate }

// AllowUnconditionalUpdate reports whether PUT may omit the resource version.
func (s Strategy) AllowUnconditionalUpdate(context.Context) bool {
	return !s.Kind.RequireResourceVersion
}

// PrepareForUpdate keeps the status and updates the generation.
func (s Strategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	if s.Kind.Status {
		copyField(obj, old, "Status")
	}
	if s.Kind.PrepareUpdate != nil {
		s.Kind.PrepareUpdate(ctx, obj, old)
	}
	if s.Kind.Generation && s.Kind.generationChanged(obj, old) {
		setGeneration(obj, generation(old)+1)
	}
}

// ValidateUpdate validates an update. Without ValidateUpdate of the kind it validates the new
// object.
func (s Strategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	switch {
	case s.Kind.ValidateUpdate != nil:
		return s.Kind.ValidateUpdate(obj, old)
	case s.Kind.Validate != nil:
		return s.Kind.Validate(obj)
	}
	return nil
}

// WarningsOnUpdate returns the same warnings as WarningsOnCreate.
func (s Strategy) WarningsOnUpdate(ctx context.Context, obj, _ runtime.Object) []string {
	return s.WarningsOnCreate(ctx, obj)
}

// DefaultGarbageCollectionPolicy returns the propagation policy of a delete without one.
func (s Strategy) DefaultGarbageCollectionPolicy(context.Context) rest.GarbageCollectionPolicy {
	if s.Kind.OrphanDependents {
		return rest.OrphanDependents
	}
	return rest.DeleteDependents
}

// GetResetFields returns the fields that server-side apply ignores here.
func (s Strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	if !s.Kind.Status {
		return nil
	}
	return s.Kind.inAllVersions(fieldpath.NewSet(fieldpath.MakePathOrDie("status")))
}

// StatusStrategy is the strategy of the status subresource.
type StatusStrategy struct{ Strategy }

// PrepareForUpdate keeps everything except the status, labels and annotations.
func (s StatusStrategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	copyFieldsExcept(obj, old, "Status")
	next, err := meta.Accessor(obj)
	if err != nil {
		return
	}
	last, err := meta.Accessor(old)
	if err != nil {
		return
	}
	next.SetDeletionTimestamp(nil)
	next.SetOwnerReferences(last.GetOwnerReferences())
	if !s.Kind.StatusSetsFinalizers {
		next.SetFinalizers(last.GetFinalizers())
	}
	if s.Kind.PrepareStatus != nil {
		s.Kind.PrepareStatus(ctx, obj, old)
	}
}

// ValidateUpdate validates the new status.
func (s StatusStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	if s.Kind.ValidateStatus == nil {
		return nil
	}
	return s.Kind.ValidateStatus(obj, old)
}

// WarningsOnUpdate returns no warnings.
func (s StatusStrategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

// GetResetFields returns the fields that server-side apply to the status ignores.
func (s StatusStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	set := fieldpath.NewSet(
		fieldpath.MakePathOrDie("spec"),
		fieldpath.MakePathOrDie("metadata", "deletionTimestamp"),
		fieldpath.MakePathOrDie("metadata", "ownerReferences"),
	)
	if !s.Kind.StatusSetsFinalizers {
		set.Insert(fieldpath.MakePathOrDie("metadata", "finalizers"))
	}
	return s.Kind.inAllVersions(set)
}

// inAllVersions returns a set of fields for each version of the kind.
func (k *Kind) inAllVersions(set *fieldpath.Set) map[fieldpath.APIVersion]*fieldpath.Set {
	out := map[fieldpath.APIVersion]*fieldpath.Set{fieldpath.APIVersion(k.GroupVersion.String()): set}
	for _, v := range k.OtherVersions {
		out[fieldpath.APIVersion(v.String())] = set
	}
	return out
}
