package controllers

import (
	"context"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

// CustomResources are the kinds that CustomResourceDefinitions define. They may change at any time.
// It is implemented by customresources.Kinds.
type CustomResources interface {
	FollowedKinds

	// Definitions returns the shared informer of the definitions.
	Definitions() cache.SharedIndexInformer
	// Count returns the number of objects of a resource in a namespace. It reports false for a resource
	// that has no definition.
	Count(ctx context.Context, of schema.GroupResource, namespace string) (n int64, known bool, err error)
}

// AggregatedKinds are the kinds of extension API servers. They may change at any time, and their objects survive that.
// It is implemented by aggregation.Server.
type AggregatedKinds interface {
	FollowedKinds

	// APIServices returns the shared informer of APIServices.
	APIServices() cache.SharedIndexInformer
}

// FollowedKinds are kinds that may change at any time.
type FollowedKinds interface {
	// Follow calls added for all kinds, now and later, with an informer of the metadata of their objects,
	// and removed when a kind is no longer served, until stop is called. It returns when added has been
	// called for the existing kinds.
	Follow(ctx context.Context, added func(metav1.APIResource, cache.SharedIndexInformer),
		removed func(metav1.APIResource)) (stop func())
}

// followCustomResources adds an event handler to each kind of custom resources, see followKinds.
func (c Config) followCustomResources(ctx context.Context,
	handler func(metav1.APIResource) cache.ResourceEventHandler, removed func(metav1.APIResource)) (stop func()) {
	if c.CustomResources == nil {
		return func() {}
	}
	return followKinds(ctx, c.CustomResources, handler, removed)
}

// followKinds adds an event handler to each kind. removed is called when a kind is no longer served. stop removes the
// handlers.
func followKinds(ctx context.Context, kinds FollowedKinds,
	handler func(metav1.APIResource) cache.ResourceEventHandler, removed func(metav1.APIResource)) (stop func()) {
	var (
		mu         sync.Mutex
		unregister = map[schema.GroupResource]func(){}
	)
	unfollow := kinds.Follow(ctx, func(of metav1.APIResource, informer cache.SharedIndexInformer) {
		registration, err := informer.AddEventHandler(handler(of))
		if err != nil {
			return // the server stops
		}
		mu.Lock()
		defer mu.Unlock()
		unregister[schema.GroupResource{Group: of.Group, Resource: of.Name}] = func() {
			_ = informer.RemoveEventHandler(registration) // fails only if the informer is stopped
		}
	}, func(of metav1.APIResource) {
		mu.Lock()
		delete(unregister, schema.GroupResource{Group: of.Group, Resource: of.Name})
		mu.Unlock()
		removed(of)
	})
	return func() {
		unfollow()
		mu.Lock()
		defer mu.Unlock()
		for _, one := range unregister {
			one()
		}
	}
}
