package tokens

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// BootstrapCache holds the secrets of all bootstrap tokens, so that a request with an unknown token costs no read of
// the store. A new token is unknown, and a deleted one known, until the watch event arrives.
type BootstrapCache struct {
	factory  informers.SharedInformerFactory
	informer cache.SharedIndexInformer
	secrets  corelisters.SecretNamespaceLister
}

// NewBootstrapCache returns an empty cache.
func NewBootstrapCache(client kubernetes.Interface) *BootstrapCache {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(BootstrapNamespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = "type=" + string(corev1.SecretTypeBootstrapToken)
		}))
	secrets := factory.Core().V1().Secrets()
	return &BootstrapCache{factory, secrets.Informer(), secrets.Lister().Secrets(BootstrapNamespace)}
}

// Start fills the cache and keeps it current until ctx is done. It returns when the cache is filled, or ctx is done.
func (c *BootstrapCache) Start(ctx context.Context) {
	c.factory.Start(ctx.Done())
	cache.WaitForCacheSync(ctx.Done(), c.informer.HasSynced)
}

// Shutdown waits until the work has ended, after the context of Start is done.
func (c *BootstrapCache) Shutdown() { c.factory.Shutdown() }

var errBootstrapCacheEmpty = errors.New("bootstrap tokens are not loaded yet")

// Get returns the secret of a token, or a NotFound error. The caller must not change it.
func (c *BootstrapCache) Get(id string) (*corev1.Secret, error) {
	if !c.informer.HasSynced() {
		return nil, errBootstrapCacheEmpty
	}
	return c.secrets.Get(BootstrapNamePrefix + id)
}
