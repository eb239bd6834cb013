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
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"berth/control/registry"
	"berth/control/scheme"
)

// keyPrefix is where all objects are in the store, as with kube-apiserver.
const keyPrefix = "/registry"

// storageFactory says for each resource where and how its objects are kept. All of
// them share one connection to etcd: the library's own factory would make one per
// resource.
type storageFactory struct {
	client    *etcdclient.Client
	compactor interface {
		etcd3.Compactor
		Stop()
	}
	scheme       *scheme.Set
	kinds        []*registry.Kind
	transformers encryptionconfig.StaticTransformers
}

func newStorageFactory(client *etcdclient.Client, set *scheme.Set, table []*registry.Kind, sealed encryptionconfig.StaticTransformers, compactEvery time.Duration) *storageFactory {
	// The library asks this of each client that stores are made with, but ours know
	// no endpoints (see ownWatcher). Without the answer there is no WatchList.
	feature.DefaultFeatureSupportChecker.CheckClient(client.Ctx(), client, storage.RequestWatchProgress)
	return &storageFactory{
		client: client, scheme: set, kinds: table, transformers: sealed,
		compactor: etcd3.NewCompactor(client.Client, compactEvery, clock.RealClock{}, nil),
	}
}

// GetRESTOptions answers for one resource.
func (w *storageFactory) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	config := storagebackend.NewDefaultConfig(keyPrefix, w.scheme.StorageCodec)
	config.EncodeVersioner = w.scheme.StorageVersioner
	config.Transformer = w.transformers.TransformerForResource(resource)
	options := generic.RESTOptions{
		StorageConfig: config.ForResource(resource), Decorator: w.newStorage,
		EnableGarbageCollection: true, DeleteCollectionWorkers: 1, ResourcePrefix: resource.Resource,
	}
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

// newStorage makes the plain storage of a resource.
func (w *storageFactory) newStorage(config *storagebackend.ConfigForResource, prefix string, _ func(runtime.Object) (string, error),
	newFunc, newListFunc func() runtime.Object, _ storage.AttrFunc, _ storage.IndexerFuncs, _ *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	client, watcher := w.dedicatedWatcher()
	versioner := storage.APIObjectVersioner{}
	s, err := etcd3.New(client, w.compactor, config.Codec, newFunc, newListFunc, config.Prefix, prefix, config.GroupResource,
		config.Transformer, config.LeaseManagerConfig, etcd3.NewDefaultDecoder(config.Codec, versioner), versioner)
	if err != nil {
		return nil, nil, errors.Join(err, watcher.Close())
	}
	return bookmarkingStorage{s}, sync.OnceFunc(func() {
		s.Close()
		_ = watcher.Close() // its streams end; there is nothing to lose
	}), nil
}

// bookmarkingStorage gives bookmarks, as the store tells how far it has come, to watches that
// ask for them: the library does it from its cache only. A watch of what never changes
// could not resume once the store forgets its past.
type bookmarkingStorage struct{ storage.Interface }

// Watch begins a watch.
func (b bookmarkingStorage) Watch(ctx context.Context, key string, o storage.ListOptions) (watch.Interface, error) {
	o.ProgressNotify = o.ProgressNotify || o.Predicate.AllowWatchBookmarks
	return b.Interface.Watch(ctx, key, o)
}

// dedicatedWatcher is the shared client with watches on streams of their own. A cache
// asks on its stream how far it has come, and etcd answers only when every watch
// of the stream has come that far: on one stream for all, each cache would wait
// for all others.
func (w *storageFactory) dedicatedWatcher() (*etcdclient.Client, clientv3.Watcher) {
	own := clientv3.NewCtxClient(w.client.Ctx())
	own.KV, own.Lease, own.Maintenance = w.client.KV, w.client.Lease, w.client.Maintenance
	own.Watcher = clientv3.NewWatcher(w.client.Client)
	client := &etcdclient.Client{Client: own}
	client.Kubernetes = client
	return client, own.Watcher
}

// newCachedStorage makes a storage that holds the whole resource in memory too.
func (w *storageFactory) newCachedStorage(config *storagebackend.ConfigForResource, prefix string, keyFunc func(runtime.Object) (string, error),
	newFunc, newListFunc func() runtime.Object, attributes storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers,
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

// close ends what the warehouse itself runs; the stores are ended by the
// server that serves them.
func (w *storageFactory) close() error {
	w.compactor.Stop()
	return w.client.Close()
}
