package tokens

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// LiveGetter reads all objects from the API server. It is used to issue tokens, because a stale
// cache could bind a token to a deleted object.
type LiveGetter struct{ Client kubernetes.Interface }

// ServiceAccount reads the service account from the API server.
func (l LiveGetter) ServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	return l.Client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
}

// Pod reads the pod from the API server.
func (l LiveGetter) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return l.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
}

// Secret reads the secret from the API server.
func (l LiveGetter) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	return l.Client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
}

// Node reads the node from the API server.
func (l LiveGetter) Node(ctx context.Context, name string) (*corev1.Node, error) {
	return l.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
}

// CachedGetter reads from caches and falls back to the API server for missing objects. Secrets are
// not cached. It is used to verify tokens, at each request.
type CachedGetter struct {
	live     LiveGetter
	accounts corelisters.ServiceAccountLister
	pods     corelisters.PodLister
	nodes    corelisters.NodeLister
}

// NewCachedGetter uses the factory's informers of service accounts, pods and nodes.
func NewCachedGetter(f informers.SharedInformerFactory, client kubernetes.Interface) *CachedGetter {
	core := f.Core().V1()
	return &CachedGetter{LiveGetter{client}, core.ServiceAccounts().Lister(), core.Pods().Lister(),
		core.Nodes().Lister()}
}

// ServiceAccount returns the service account from the cache or the API server.
func (w *CachedGetter) ServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	got, err := w.accounts.ServiceAccounts(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return w.live.ServiceAccount(ctx, namespace, name)
	}
	return got, err
}

// Pod returns the pod from the cache or the API server.
func (w *CachedGetter) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	got, err := w.pods.Pods(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return w.live.Pod(ctx, namespace, name)
	}
	return got, err
}

// Secret reads the secret from the API server.
func (w *CachedGetter) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	return w.live.Secret(ctx, namespace, name)
}

// Node returns the node from the cache or the API server.
func (w *CachedGetter) Node(ctx context.Context, name string) (*corev1.Node, error) {
	got, err := w.nodes.Get(name)
	if apierrors.IsNotFound(err) {
		return w.live.Node(ctx, name)
	}
	return got, err
}
