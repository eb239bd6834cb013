package control

import (
	"context"
	"maps"
	"path"
	"slices"
	"sync"

	etcdclient "go.etcd.io/etcd/client/v3/kubernetes"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"

	"berth/control/customresources"
	"berth/control/fairness"
)

// definitionOptions returns the storage options of CustomResourceDefinitions, which are stored as in
// kube-apiserver. They have no watch cache: it would keep all schemas in memory.
type definitionOptions struct{ *storageFactory }

// GetRESTOptions returns the storage options of a resource.
func (d definitionOptions) GetRESTOptions(
	resource schema.GroupResource,
	_ runtime.Object,
) (generic.RESTOptions, error) {
	// The older version is smaller, because the versions of a definition share what they have in common.
	config := storagebackend.NewDefaultConfig(keyPrefix,
		apiextensionsserver.Codecs.LegacyCodec(v1beta1.SchemeGroupVersion, apiextensionsv1.SchemeGroupVersion))
	config.EncodeVersioner = runtime.NewMultiGroupVersioner(v1beta1.SchemeGroupVersion,
		schema.GroupKind{Group: v1beta1.GroupName})
	return d.restOptions(config, resource, groupedPrefix(resource), d.newStorage), nil
}

// objectOptions returns the storage options of custom resources.
type objectOptions struct {
	*storageFactory

	mu sync.Mutex
	// opened has the open storages by their destroy function. The library does not destroy those that are
	// open when the server stops.
	opened map[*factory.DestroyFunc]fairness.Resource
}

// GetRESTOptions returns the storage options of a resource.
func (o *objectOptions) GetRESTOptions(
	resource schema.GroupResource,
	_ runtime.Object,
) (generic.RESTOptions, error) {
	config := storagebackend.NewDefaultConfig(keyPrefix, unstructured.UnstructuredJSONScheme)
	return o.restOptions(config, resource, groupedPrefix(resource), o.newObjectStorage), nil
}

// groupedPrefix returns the prefix of keys that kube-apiserver has for these resources: with the group.
func groupedPrefix(resource schema.GroupResource) string {
	return resource.Group + "/" + resource.Resource
}

// newObjectStorage creates a storage with a watch cache that close destroys at the latest.
func (o *objectOptions) newObjectStorage(
	config *storagebackend.ConfigForResource,
	prefix string,
	keyFunc func(runtime.Object) (string, error),
	newFunc, newListFunc func() runtime.Object,
	attributes storage.AttrFunc,
	triggers storage.IndexerFuncs,
	indexers *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	out, destroy, err := o.newCachedStorage(config, prefix, keyFunc, newFunc, newListFunc, attributes, triggers,
		indexers)
	if err != nil {
		return nil, nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	key := &destroy
	o.opened[key] = fairness.Resource{GroupResource: config.GroupResource, Stats: out.Stats}
	return out, func() {
		destroy()
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.opened, key)
	}, nil
}

// close destroys the storages that are open.
func (o *objectOptions) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for destroy := range o.opened {
		(*destroy)()
	}
	clear(o.opened)
}

// counted returns the custom resources with open storages.
func (o *objectOptions) counted() []fairness.Resource {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Values(o.opened))
}

// customMetadata reads the metadata of custom resources from the store.
type customMetadata struct{ *storageFactory }

var _ customresources.MetadataStore = customMetadata{}

// Metadata returns the objects of a resource. All resources share one watch stream, and a storage
// without a watch has nothing to release.
func (m customMetadata) Metadata(resource schema.GroupResource) (customresources.Objects, error) {
	config := storagebackend.NewDefaultConfig(keyPrefix, customresources.MetadataCodec{})
	config.Transformer = m.transformers.TransformerForResource(resource)
	prefix := "/" + groupedPrefix(resource)
	objects, err := m.openStorage(m.client, config.ForResource(resource), prefix,
		func() runtime.Object { return &metav1.PartialObjectMetadata{} },
		func() runtime.Object { return &metav1.PartialObjectMetadataList{} })
	return customresources.Objects{Interface: objects, Prefix: prefix + "/"}, err
}

// Count returns the number of stored objects of a resource.
func (m customMetadata) Count(ctx context.Context, resource schema.GroupResource, namespace string) (int64, error) {
	prefix := path.Join(keyPrefix, groupedPrefix(resource), namespace) + "/"
	return m.client.Kubernetes.Count(ctx, prefix, etcdclient.CountOptions{})
}

// installCustomResources serves CustomResourceDefinitions and the resources that they define.
func (s *Server) installCustomResources(config *genericapiserver.Config) (err error) {
	objects := &objectOptions{storageFactory: s.storageFactory, opened: map[*factory.DestroyFunc]fairness.Resource{}}
	s.customObjects = objects
	s.generic.RegisterDestroyFunc(objects.close)
	s.customResources, err = customresources.Install(s.generic, customresources.Config{
		Generic: config, Definitions: definitionOptions{s.storageFactory}, Objects: objects,
		Metadata: customMetadata{s.storageFactory}, Services: s.serviceResolver(),
		WebhookAuthentication: s.webhookAuthentication(),
		BuiltIn:               s.isBuiltIn, Admission: config.AdmissionControl, Log: s.Log,
	})
	return err
}
