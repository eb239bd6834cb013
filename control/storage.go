package control

import (
	"context"
	"errors"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	etcdclient "go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"berth/control/registry"
	"berth/control/scheme"
)

// keyPrefix is the etcd key prefix of all objects, as in kube-apiserver.
const keyPrefix = "/registry"

// storageFactory returns the storage options of each resource. All resources share one etcd client:
// the library's own factory creates one per resource.
type storageFactory struct {
	client    *etcdclient.Client
	compactor interface {
		etcd3.Compactor
		Stop()
	}
	scheme       *scheme.Set
	kinds        []*registry.Kind
	transformers value.ResourceTransformers
}

func newStorageFactory(
	client *etcdclient.Client,
	set *scheme.Set,
	table []*registry.Kind,
	transformers value.ResourceTransformers,
	compactEvery time.Duration,
) *storageFactory {
	// The library checks this feature for the client of each store. Ours have no endpoints (see
	// dedicatedWatcher), so it is checked here. Without it there is no WatchList.
	feature.DefaultFeatureSupportChecker.CheckClient(client.Ctx(), client, storage.RequestWatchProgress)
	return &storageFactory{
		client: client, scheme: set, kinds: table, transformers: transformers,
		compactor: etcd3.NewCompactor(client.Client, compactEvery, clock.RealClock{}, nil),
	}
}

// GetRESTOptions returns the storage options of a resource.
func (w *storageFactory) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	config := storagebackend.NewDefaultConfig(keyPrefix, w.scheme.StorageCodec)
	config.EncodeVersioner = w.scheme.StorageVersioner
	options := w.restOptions(config, resource, resource.Resource, w.newStorage)
	if kind := registry.Find(w.kinds, resource.Group, resource.Resource); kind != nil {
		if kind.Prefix != "" {
			options.ResourcePrefix = kind.Prefix
		}
		if kind.Cached {
			options.Decorator = w.newCachedStorage
		}
	}
	return options, nil
}

// restOptions returns the storage options of a resource with a prefix of its keys.
func (w *storageFactory) restOptions(config *storagebackend.Config, resource schema.GroupResource, prefix string,
	decorator generic.StorageDecorator) generic.RESTOptions {
	config.Transformer = w.transformers.TransformerForResource(resource)
	return generic.RESTOptions{
		StorageConfig: config.ForResource(resource), Decorator: decorator, EnableGarbageCollection: true,
		DeleteCollectionWorkers: 1, ResourcePrefix: prefix,
	}
}

// newStorage creates the uncached storage of a resource, with a watch stream of its own.
func (w *storageFactory) newStorage(
	config *storagebackend.ConfigForResource,
	prefix string,
	_ func(runtime.Object) (string, error),
	newFunc, newListFunc func() runtime.Object,
	_ storage.AttrFunc,
	_ storage.IndexerFuncs,
	_ *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	client, watcher := w.dedicatedWatcher()
	s, err := w.openStorage(client, config, prefix, newFunc, newListFunc)
	if err != nil {
		return nil, nil, errors.Join(err, watcher.Close())
	}
	return bookmarkingStorage{s}, sync.OnceFunc(func() {
		s.Close()
		_ = watcher.Close() // Open watches end. Nothing is lost.
	}), nil
}

// closableStorage is a storage of package etcd3.
type closableStorage interface {
	storage.Interface
	Close()
}

// openStorage creates the uncached storage of a resource with a client.
func (w *storageFactory) openStorage(
	client *etcdclient.Client,
	config *storagebackend.ConfigForResource,
	prefix string,
	newFunc, newListFunc func() runtime.Object,
) (closableStorage, error) {
	versioner := storage.APIObjectVersioner{}
	return etcd3.New(
		client,
		w.compactor,
		config.Codec,
		newFunc,
		newListFunc,
		config.Prefix,
		prefix,
		config.GroupResource,
		config.Transformer,
		config.LeaseManagerConfig,
		etcd3.NewDefaultDecoder(config.Codec, versioner),
		versioner,
	)
}

// bookmarkingStorage sends bookmarks to watches that allow them, based on etcd's progress
// notifications. The library sends bookmarks only from its watch cache. Without them, a watch
// without events could not resume after a compaction.
type bookmarkingStorage struct{ storage.Interface }

// Watch starts a watch.
func (b bookmarkingStorage) Watch(ctx context.Context, key string, o storage.ListOptions) (watch.Interface, error) {
	o.ProgressNotify = o.ProgressNotify || o.Predicate.AllowWatchBookmarks
	return b.Interface.Watch(ctx, key, o)
}

// dedicatedWatcher returns the shared client with a watch stream of its own. A watch cache requests
// progress on its stream, and etcd responds only when all watches of that stream have caught up: on
// a shared stream each cache would wait for all others.
func (w *storageFactory) dedicatedWatcher() (*etcdclient.Client, clientv3.Watcher) {
	own := clientv3.NewCtxClient(w.client.Ctx())
	own.KV, own.Lease, own.Maintenance = w.client.KV, w.client.Lease, w.client.Maintenance
	own.Watcher = clientv3.NewWatcher(w.client.Client)
	client := &etcdclient.Client{Client: own}
	client.Kubernetes = client
	return client, own.Watcher
}

// newCachedStorage creates a storage with a watch cache.
func (w *storageFactory) newCachedStorage(
	config *storagebackend.ConfigForResource,
	prefix string,
	keyFunc func(runtime.Object) (string, error),
	newFunc, newListFunc func() runtime.Object,
	attributes storage.AttrFunc,
	triggers storage.IndexerFuncs,
	indexers *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	plain, destroy, err := w.newStorage(config, prefix, keyFunc, newFunc, newListFunc, attributes, triggers, indexers)
	if err != nil {
		return nil, nil, err
	}
	c, err := cacher.NewCacherFromConfig(cacher.Config{
		Storage: plain, Versioner: storage.APIObjectVersioner{}, GroupResource: config.GroupResource,
		EventsHistoryWindow: config.EventsHistoryWindow, ResourcePrefix: prefix, KeyFunc: keyFunc,
		NewFunc: newFunc, NewListFunc: newListFunc, GetAttrsFunc: attributes,
		IndexerFuncs: triggers, Indexers: indexers, Codec: config.Codec,
	})
	if err != nil {
		destroy()
		return nil, nil, err
	}
	delegator := cacher.NewCacheDelegator(c, plain)
	return delegator, sync.OnceFunc(func() {
		delegator.Stop()
		c.Stop()
		destroy()
	}), nil
}

// close stops the compactor and closes the client. The API server destroys the stores.
func (w *storageFactory) close() error {
	w.compactor.Stop()
	return w.client.Close()
}
