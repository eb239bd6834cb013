package control

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"berth/control/registry"
	"berth/control/tokens"
)

// storeGetter reads objects directly from the store. This is several times cheaper than a loopback
// request.
type storeGetter struct{ a *Assembly }

var _ tokens.ObjectGetter = storeGetter{}

func (a *Assembly) storeGetter() storeGetter { return storeGetter{a} }

func get[T runtime.Object](ctx context.Context, s storeGetter, resource, namespace, name string) (T, error) {
	obj, err := s.a.Store("", resource).Get(genericapirequest.WithNamespace(ctx, namespace), name, &metav1.GetOptions{})
	if err != nil {
		var none T
		return none, err
	}
	return registry.MustCast[T](obj), nil
}

// ServiceAccount returns the stored service account.
func (s storeGetter) ServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	return get[*corev1.ServiceAccount](ctx, s, "serviceaccounts", namespace, name)
}

// Pod returns the stored pod.
func (s storeGetter) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return get[*corev1.Pod](ctx, s, "pods", namespace, name)
}

// Secret returns the stored secret.
func (s storeGetter) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	return get[*corev1.Secret](ctx, s, "secrets", namespace, name)
}

// Node returns the stored node.
func (s storeGetter) Node(ctx context.Context, name string) (*corev1.Node, error) {
	return get[*corev1.Node](ctx, s, "nodes", "", name)
}
