package aggregation

import (
	"context"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
)

// follower gets the kinds of extension API servers.
type follower struct {
	added   func(metav1.APIResource, cache.SharedIndexInformer)
	removed func(metav1.APIResource)
}

// Kinds are the kinds of extension API servers. It watches their objects while there is a follower.
type Kinds struct {
	client metadata.Interface

	mu        sync.Mutex
	followers []*follower
	watched   map[schema.GroupResource]*watchedKind
}

// watchedKind is a kind. Without followers, informer and stop are nil.
type watchedKind struct {
	resource metav1.APIResource
	informer cache.SharedIndexInformer
	stop     func() // waits until the informer has stopped
}

func newKinds(client metadata.Interface) *Kinds {
	return &Kinds{client: client, watched: map[schema.GroupResource]*watchedKind{}}
}

// Follow calls added for all kinds, now and later, and removed when a kind is no longer served, until stop is called.
// The objects of a removed kind may still exist. added gets an informer of PartialObjectMetadata, which has stopped
// when removed is called. The calls of all followers are serialized.
func (k *Kinds) Follow(_ context.Context, added func(metav1.APIResource, cache.SharedIndexInformer),
	removed func(metav1.APIResource)) (stop func()) {
	f := &follower{added, removed}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.followers = append(k.followers, f)
	for _, one := range k.watched {
		k.start(one)
		added(one.resource, one.informer)
	}
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.followers = slices.DeleteFunc(k.followers, func(g *follower) bool { return g == f })
		if len(k.followers) > 0 {
			return
		}
		for _, one := range k.watched {
			one.end()
		}
	}
}

// set replaces the kinds.
func (k *Kinds) set(kinds map[schema.GroupResource]metav1.APIResource) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for of, one := range k.watched {
		if current, served := kinds[of]; served && sameKind(current, one.resource) {
			continue
		}
		delete(k.watched, of)
		one.end()
		for _, f := range k.followers {
			f.removed(one.resource)
		}
	}
	for of, resource := range kinds {
		if k.watched[of] != nil {
			continue
		}
		one := &watchedKind{resource: resource}
		k.watched[of] = one
		if len(k.followers) == 0 {
			continue
		}
		k.start(one)
		for _, f := range k.followers {
			f.added(resource, one.informer)
		}
	}
}

func sameKind(a, b metav1.APIResource) bool {
	return a.Kind == b.Kind && a.Version == b.Version && a.Namespaced == b.Namespaced
}

// start starts the informer of a kind unless it is running.
func (k *Kinds) start(one *watchedKind) {
	if one.informer != nil {
		return
	}
	r := one.resource
	one.informer = metadatainformer.NewFilteredMetadataInformer(k.client,
		schema.GroupVersionResource{Group: r.Group, Version: r.Version, Resource: r.Name}, metav1.NamespaceAll, 0,
		cache.Indexers{}, nil).Informer()
	_ = one.informer.SetTransform(ownershipOnly) // fails only after the start
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { // stop ends it
		defer close(stopped)
		one.informer.RunWithContext(ctx)
	}()
	one.stop = func() {
		cancel()
		<-stopped
	}
}

// end stops the informer if it is running.
func (w *watchedKind) end() {
	if w.informer != nil {
		w.stop()
		w.informer, w.stop = nil, nil
	}
}

// close stops all informers.
func (k *Kinds) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, one := range k.watched {
		one.end()
	}
	clear(k.watched)
}

// ownershipOnly keeps the metadata that followers use.
func ownershipOnly(obj any) (any, error) {
	m, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return obj, nil
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion,
		OwnerReferences: m.OwnerReferences, Finalizers: m.Finalizers, DeletionTimestamp: m.DeletionTimestamp,
	}}, nil
}
