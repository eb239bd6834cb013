package reviews

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Storage is the REST storage of one kind of review. T is a pointer to its type.
type Storage[T runtime.Object] struct {
	Kind       string // as in manifests
	Namespaced bool
	NewObject  func() T
	// Evaluate sets the status of the review, which it may modify.
	Evaluate func(ctx context.Context, review T) error
}

var (
	_ rest.Creater              = (*Storage[runtime.Object])(nil)
	_ rest.Scoper               = (*Storage[runtime.Object])(nil)
	_ rest.SingularNameProvider = (*Storage[runtime.Object])(nil)
)

// New returns an empty review.
func (r *Storage[T]) New() runtime.Object { return r.NewObject() }

// Destroy does nothing.
func (r *Storage[T]) Destroy() {}

// NamespaceScoped reports whether the review is namespaced.
func (r *Storage[T]) NamespaceScoped() bool { return r.Namespaced }

// GetSingularName returns the kind in lower case.
func (r *Storage[T]) GetSingularName() string { return strings.ToLower(r.Kind) }

// Create evaluates the review.
func (r *Storage[T]) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc,
	_ *metav1.CreateOptions) (runtime.Object, error) {
	if validate != nil {
		if err := validate(ctx, obj.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	review, ok := obj.DeepCopyObject().(T)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a %s: %T", r.Kind, obj))
	}
	if err := r.Evaluate(ctx, review); err != nil {
		return nil, err
	}
	return review, nil
}

// RequestUser returns the user of the request.
func RequestUser(ctx context.Context) (user.Info, error) {
	u, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewBadRequest("no user present on request")
	}
	return u, nil
}
