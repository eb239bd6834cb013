package fairness

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fieldManager is upstream's field manager of the default objects.
const fieldManager = "api-priority-and-fairness-config-producer-v1"

// operations are the operations on one of the two kinds.
type operations[T metav1.Object] struct {
	kind   string
	list   func() ([]T, error) // the objects must not be changed
	create func(ctx context.Context, obj T, o metav1.CreateOptions) (T, error)
	update func(ctx context.Context, obj T, o metav1.UpdateOptions) (T, error)
	remove func(ctx context.Context, name string, o metav1.DeleteOptions) error

	clone    func(T) T
	sameSpec func(want, have T) bool
	setSpec  func(obj, want T)
}

// ensure creates, updates and deletes objects, see Ensurer.
func (o *operations[T]) ensure(ctx context.Context, mandatory, suggested []T, log *slog.Logger) error {
	existing, err := o.list()
	if err != nil {
		return fmt.Errorf("list %s objects: %w", o.kind, err)
	}
	stored, wanted := map[string]T{}, map[string]bool{}
	for _, have := range existing {
		stored[have.GetName()] = have
	}
	var errs []error
	store := func(want T, always bool) {
		wanted[want.GetName()] = true
		have, found := stored[want.GetName()]
		if !found {
			errs = append(errs, o.createMissing(ctx, want, log))
			return
		}
		if next, changed := o.updated(want, have, always); changed {
			_, err := o.update(ctx, next, metav1.UpdateOptions{FieldManager: fieldManager})
			errs = append(errs, o.outcome("updated", next.GetName(), err, log))
		}
	}
	for _, want := range mandatory {
		store(want, true)
	}
	for _, want := range suggested {
		store(want, false)
	}
	for _, have := range existing {
		if auto, known := autoUpdate(have); !wanted[have.GetName()] && known && auto {
			uid, version := have.GetUID(), have.GetResourceVersion()
			err := o.remove(ctx, have.GetName(), metav1.DeleteOptions{
				Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}})
			errs = append(errs, o.outcome("deleted", have.GetName(), err, log))
		}
	}
	return errors.Join(errs...)
}

func (o *operations[T]) createMissing(ctx context.Context, want T, log *slog.Logger) error {
	_, err := o.create(ctx, o.clone(want), metav1.CreateOptions{FieldManager: fieldManager})
	return o.outcome("created", want.GetName(), err, log)
}

// outcome logs a change. It ignores errors after which another server has changed the object: the next pass
// sees that.
func (o *operations[T]) outcome(action, name string, err error, log *slog.Logger) error {
	switch {
	case err == nil:
		log.Debug("default object changed", "action", action, "kind", o.kind, "name", name)
		return nil
	case apierrors.IsAlreadyExists(err), apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil
	}
	return fmt.Errorf("%s %s not %s: %w", o.kind, name, action, err)
}

// updated returns what replaces an existing object, and false if it is up to date. With always, the object
// gets the wanted spec even if its annotation forbids that.
func (o *operations[T]) updated(want, have T, always bool) (T, bool) {
	auto, known := autoUpdate(have)
	// Without the annotation, an object whose spec was never changed is updated.
	desired := always || known && auto || !known && have.GetGeneration() == 1
	newSpec := desired && !o.sameSpec(want, have)
	if !newSpec && known && auto == desired {
		return have, false
	}
	next := o.clone(have)
	annotations := next.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[flowcontrolv1.AutoUpdateAnnotationKey] = strconv.FormatBool(desired)
	next.SetAnnotations(annotations)
	if newSpec {
		o.setSpec(next, want)
	}
	return next, true
}

// autoUpdate returns the value of the annotation, and false if there is none or it is no boolean.
func autoUpdate(obj metav1.Object) (value, known bool) {
	value, err := strconv.ParseBool(obj.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey])
	return value, err == nil
}
