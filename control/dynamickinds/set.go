package dynamickinds

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// Set is a set of kinds, each under a key.
type Set[K comparable] struct {
	open   func(metav1.APIResource) (cache.SharedIndexInformer, error)
	failed func(error)

	mu        sync.Mutex
	followers []*follower
	kinds     map[K]*kind
}

// follower gets the kinds.
type follower struct {
	added   func(metav1.APIResource, cache.SharedIndexInformer)
	removed func(metav1.APIResource)
}

// kind is a kind of the set. Without followers, informer and stop are nil.
type kind struct {
	resource metav1.APIResource
	informer cache.SharedIndexInformer
	stop     func() // waits until the informer has stopped
}

// New returns an empty set. open creates an informer of the metadata of the objects of a kind. A kind whose informer
// cannot be created is not followed; failed gets the error.
func New[K comparable](open func(metav1.APIResource) (cache.SharedIndexInformer, error), failed func(error)) *Set[K] {
	return &Set[K]{open: open, failed: failed, kinds: map[K]*kind{}}
}

// Follow calls added for all kinds, now and later, and removed when a kind is no longer in the set, until stop is
// called. The objects of a removed kind may still exist. added gets an informer of PartialObjectMetadata, which has
// stopped when removed is called. The calls of all followers are serialized.
func (s *Set[K]) Follow(added func(metav1.APIResource, cache.SharedIndexInformer),
	removed func(metav1.APIResource)) (stop func()) {
	f := &follower{added, removed}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.followers = append(s.followers, f)
	for _, one := range s.kinds {
		if s.start(one) {
			added(one.resource, one.informer)
		}
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.followers = slices.DeleteFunc(s.followers, func(g *follower) bool { return g == f })
		if len(s.followers) > 0 {
			return
		}
		for _, one := range s.kinds {
			one.end()
		}
	}
}

// Put adds a kind, or replaces the one of the same key if it differs.
func (s *Set[K]) Put(key K, resource metav1.APIResource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(key, resource)
}

// Remove removes a kind, which may be unknown.
func (s *Set[K]) Remove(key K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(key)
}

// Replace replaces all kinds.
func (s *Set[K]) Replace(kinds map[K]metav1.APIResource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range maps.Clone(s.kinds) {
		if _, kept := kinds[key]; !kept {
			s.remove(key)
		}
	}
	for key, resource := range kinds {
		s.put(key, resource)
	}
}

// Close stops all informers and empties the set. Followers are not told.
func (s *Set[K]) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.kinds {
		one.end()
	}
	clear(s.kinds)
}

func (s *Set[K]) put(key K, resource metav1.APIResource) {
	if one := s.kinds[key]; one != nil {
		if same(one.resource, resource) {
			return
		}
		s.remove(key)
	}
	one := &kind{resource: resource}
	s.kinds[key] = one
	if len(s.followers) == 0 || !s.start(one) {
		return
	}
	for _, f := range s.followers {
		f.added(resource, one.informer)
	}
}

func (s *Set[K]) remove(key K) {
	one := s.kinds[key]
	if one == nil {
		return
	}
	delete(s.kinds, key)
	if one.informer == nil {
		return // no follower has it
	}
	one.end()
	for _, f := range s.followers {
		f.removed(one.resource)
	}
}

func same(a, b metav1.APIResource) bool {
	return a.Group == b.Group && a.Version == b.Version && a.Name == b.Name && a.Kind == b.Kind &&
		a.Namespaced == b.Namespaced
}

// start starts the informer of a kind unless it is running. It reports whether it runs.
func (s *Set[K]) start(one *kind) bool {
	if one.informer != nil {
		return true
	}
	informer, err := s.open(one.resource)
	if err != nil {
		s.failed(fmt.Errorf("watch %s.%s: %w", one.resource.Name, one.resource.Group, err))
		return false
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { // stop ends it
		defer close(stopped)
		informer.RunWithContext(ctx)
	}()
	one.informer, one.stop = informer, func() {
		cancel()
		<-stopped
	}
	return true
}

// end stops the informer if it is running.
func (k *kind) end() {
	if k.informer != nil {
		k.stop()
		k.informer, k.stop = nil, nil
	}
}

// TrimMetadata is the transformation of an informer that keeps only the metadata that followers use.
func TrimMetadata(obj any) (any, error) {
	m, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return obj, nil
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion,
		OwnerReferences: m.OwnerReferences, Finalizers: m.Finalizers, DeletionTimestamp: m.DeletionTimestamp,
	}}, nil
}
