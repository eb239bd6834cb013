package services

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Store holds the Services and EndpointSlices that a node knows. It is safe for concurrent use. The
// zero value is not ready; see NewStore.
type Store struct {
	mu            sync.RWMutex
	services      map[Name]*Service
	slices        map[SliceKey]*Slice
	byService     map[Name][]*Slice // sorted by name
	namespaces    map[string]int    // number of Services
	synced        [2]bool           // Services, EndpointSlices
	subscriptions map[*Subscription]struct{}
	version       atomic.Uint64 // changes while the lock is held
}

// NewStore returns an empty store that is not synced.
func NewStore() *Store {
	return &Store{
		services: map[Name]*Service{}, slices: map[SliceKey]*Slice{}, byService: map[Name][]*Slice{},
		namespaces: map[string]int{}, subscriptions: map[*Subscription]struct{}{},
	}
}

// Synced reports whether both Services and EndpointSlices were replaced at least once. Before that,
// a Service that is missing may exist.
func (s *Store) Synced() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.synced[0] && s.synced[1]
}

// Version changes with every change of the store. What a reader got in several calls is one state of
// the store if the version was the same before the first call and after the last one.
func (s *Store) Version() uint64 { return s.version.Load() }

// View calls read with the state of the store. The store does not change meanwhile, so read must be short,
// and it must not call methods of the store and its subscriptions other than those of the View.
func (s *Store) View(read func(View)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	read(View{s})
}

// View is the state of a store during a call of Store.View.
type View struct{ s *Store }

// Service is like Store.Service.
func (v View) Service(name Name) (*Service, []*Slice) { return v.s.services[name], v.s.byService[name] }

// HasNamespace is like Store.HasNamespace.
func (v View) HasNamespace(namespace string) bool { return v.s.namespaces[namespace] > 0 }

// Synced is like Store.Synced.
func (v View) Synced() bool { return v.s.synced[0] && v.s.synced[1] }

// Pending returns what the next Take of the subscription would return. It must not be modified.
func (v View) Pending(sub *Subscription) map[Name]struct{} { return sub.pending }

// Service returns a Service and its EndpointSlices, sorted by name, or nil. The Service may be nil
// while it has EndpointSlices.
func (s *Store) Service(name Name) (*Service, []*Slice) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.services[name], s.byService[name]
}

// Names returns the names of all Services, sorted.
func (s *Store) Names() []Name {
	s.mu.RLock()
	names := slices.Collect(maps.Keys(s.services))
	s.mu.RUnlock()
	slices.SortFunc(names, Name.Compare)
	return names
}

// HasNamespace reports whether the namespace has a Service.
func (s *Store) HasNamespace(namespace string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.namespaces[namespace] > 0
}

// SetService adds or replaces a Service.
func (s *Store) SetService(svc *Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.services[svc.Name] == nil {
		s.namespaces[svc.Namespace]++
	}
	s.services[svc.Name] = svc
	s.changed(svc.Name)
}

// DeleteService removes a Service.
func (s *Store) DeleteService(name Name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.services[name]; ok {
		delete(s.services, name)
		if s.namespaces[name.Namespace]--; s.namespaces[name.Namespace] == 0 {
			delete(s.namespaces, name.Namespace)
		}
		s.changed(name)
	}
}

// ReplaceServices replaces all Services. Those that are equal do not count as changed.
func (s *Store) ReplaceServices(all []*Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.services
	s.services, s.namespaces = make(map[Name]*Service, len(all)), map[string]int{}
	for _, svc := range all {
		s.namespaces[svc.Namespace]++
		if same := old[svc.Name]; same != nil && reflect.DeepEqual(same, svc) {
			s.services[svc.Name] = same
			continue
		}
		s.services[svc.Name] = svc
		s.changed(svc.Name)
	}
	for name := range old {
		if s.services[name] == nil {
			s.changed(name)
		}
	}
	s.sync(0)
}

// SetSlice adds or replaces an EndpointSlice.
func (s *Store) SetSlice(slice *Slice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setSlice(slice)
}

func (s *Store) setSlice(slice *Slice) {
	if old := s.slices[slice.Key()]; old != nil && old.Service != slice.Service {
		s.deleteSlice(slice.Key())
	}
	s.slices[slice.Key()] = slice
	list := slices.Clone(s.byService[slice.Service]) // readers hold the old one
	at, found := slices.BinarySearchFunc(list, slice.Name, byName)
	if found {
		list[at] = slice
	} else {
		list = slices.Insert(list, at, slice)
	}
	s.byService[slice.Service] = list
	s.changed(slice.Service)
}

// DeleteSlice removes an EndpointSlice.
func (s *Store) DeleteSlice(key SliceKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deleteSlice(key)
}

func (s *Store) deleteSlice(key SliceKey) {
	old := s.slices[key]
	if old == nil {
		return
	}
	delete(s.slices, key)
	list := slices.Clone(s.byService[old.Service])
	if at, found := slices.BinarySearchFunc(list, old.Name, byName); found {
		list = slices.Delete(list, at, at+1)
	}
	if s.byService[old.Service] = list; len(list) == 0 {
		delete(s.byService, old.Service)
	}
	s.changed(old.Service)
}

// ReplaceSlices replaces all EndpointSlices. Those that are equal do not count as changed.
func (s *Store) ReplaceSlices(all []*Slice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	keep := make(map[SliceKey]bool, len(all))
	for _, slice := range all {
		keep[slice.Key()] = true
		if same := s.slices[slice.Key()]; same == nil || !reflect.DeepEqual(same, slice) {
			s.setSlice(slice)
		}
	}
	for key := range s.slices {
		if !keep[key] {
			s.deleteSlice(key)
		}
	}
	s.sync(1)
}

func byName(s *Slice, name string) int { return strings.Compare(s.Name, name) }

func (s *Store) sync(kind int) {
	s.synced[kind] = true
	s.version.Add(1)
	for sub := range s.subscriptions {
		sub.notify()
	}
}

// changed records a change for all subscriptions. The caller holds the lock.
func (s *Store) changed(name Name) {
	s.version.Add(1)
	for sub := range s.subscriptions {
		sub.pending[name] = struct{}{}
		sub.notify()
	}
}

// Subscription collects the names of changed Services for one consumer.
type Subscription struct {
	store   *Store
	pending map[Name]struct{}
	signal  chan struct{}
}

// Subscribe returns a subscription. All present Services count as changed.
func (s *Store) Subscribe() *Subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	sub := &Subscription{store: s, pending: map[Name]struct{}{}, signal: make(chan struct{}, 1)}
	for name := range s.services {
		sub.pending[name] = struct{}{}
	}
	for name := range s.byService {
		sub.pending[name] = struct{}{}
	}
	s.subscriptions[sub] = struct{}{}
	sub.notify()
	return sub
}

// Changed is signaled when something has changed, or has become synced, since the last Take.
func (sub *Subscription) Changed() <-chan struct{} { return sub.signal }

// Take returns the names of the Services that have changed, or whose EndpointSlices have, since the
// last call; nil if none has.
func (sub *Subscription) Take() map[Name]struct{} {
	sub.store.mu.Lock()
	defer sub.store.mu.Unlock()
	if len(sub.pending) == 0 {
		return nil
	}
	out := sub.pending
	sub.pending = map[Name]struct{}{}
	return out
}

// Close ends the subscription.
func (sub *Subscription) Close() {
	sub.store.mu.Lock()
	defer sub.store.mu.Unlock()
	delete(sub.store.subscriptions, sub)
}

func (sub *Subscription) notify() {
	select {
	case sub.signal <- struct{}{}:
	default:
	}
}
