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

// LiveGetter looks everything up in the store. It is for issuing, where a stale answer
// would bind a token to what is gone.
type LiveGetter struct{ Client kubernetes.Interface }

// ServiceAccount answers the account as it is stored now.
func (l LiveGetter) ServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	return l.Client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
}

// Pod answers the pod as it is stored now.
func (l LiveGetter) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return l.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
}

// Secret answers the secret as it is stored now.
func (l LiveGetter) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	return l.Client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
}

// Node answers the node as it is stored now.
func (l LiveGetter) Node(ctx context.Context, name string) (*corev1.Node, error) {
	return l.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
}

// CachedGetter looks in the caches first and asks the store only for what they do not
// have (yet); secrets are not cached. It is for verifying, at every request.
type CachedGetter struct {
	live     LiveGetter
	accounts corelisters.ServiceAccountLister
	pods     corelisters.PodLister
	nodes    corelisters.NodeLister
}

// NewCachedGetter reads from the factory's informers of service accounts, pods and
// nodes and falls back to the client.
func NewCachedGetter(f informers.SharedInformerFactory, client kubernetes.Interface) *CachedGetter {
	core := f.Core().V1()
	return &CachedGetter{LiveGetter{client}, core.ServiceAccounts().Lister(), core.Pods().Lister(), core.Nodes().Lister()}
}

// ServiceAccount answers the account of the cache, else of the store.
func (w *CachedGetter) ServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	got, err := w.accounts.ServiceAccounts(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return w.live.ServiceAccount(ctx, namespace, name)
	}
	return got, err
}

// Pod answers the pod of the cache, else of the store.
func (w *CachedGetter) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	got, err := w.pods.Pods(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return w.live.Pod(ctx, namespace, name)
	}
	return got, err
}

// Secret answers the secret of the store.
func (w *CachedGetter) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	return w.live.Secret(ctx, namespace, name)
}

// Node answers the node of the cache, else of the store.
func (w *CachedGetter) Node(ctx context.Context, name string) (*corev1.Node, error) {
	got, err := w.nodes.Get(name)
	if apierrors.IsNotFound(err) {
		return w.live.Node(ctx, name)
	}
	return got, err
}
