package aggregation

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"berth/control/dynamickinds"
)

func newKinds(client metadata.Interface) *dynamickinds.Set[schema.GroupResource] {
	return dynamickinds.New[schema.GroupResource](func(r metav1.APIResource) (cache.SharedIndexInformer, error) {
		informer := metadatainformer.NewFilteredMetadataInformer(client,
			schema.GroupVersionResource{Group: r.Group, Version: r.Version, Resource: r.Name}, metav1.NamespaceAll, 0,
			cache.Indexers{}, nil).Informer()
		return informer, informer.SetTransform(dynamickinds.TrimMetadata)
	}, func(error) {}) // a new informer takes a transformation
}

// Follow follows the kinds of extension API servers, see dynamickinds.Set.
func (s *Server) Follow(_ context.Context, added func(metav1.APIResource, cache.SharedIndexInformer),
	removed func(metav1.APIResource)) (stop func()) {
	return s.kinds.Follow(added, removed)
}
