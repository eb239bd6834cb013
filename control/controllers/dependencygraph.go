package controllers

import (
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// dependencyGraph records owners and dependents as reported by the informers. It queues objects
// whose owners may be gone. It is safe for concurrent use.
type dependencyGraph struct {
	enqueue func(key string)

	mu           sync.Mutex
	objects      map[types.UID]graphObject
	dependentsOf map[types.UID]map[types.UID]bool // by owner UID, which may be unknown
}

// graphObject is the last observed state of an object.
type graphObject struct {
	uid             types.UID
	resource        gcResource
	namespace, name string
	version         string // resource version
	owners          []metav1.OwnerReference
	propagates      bool // a finalizer says what becomes of its dependents
	deleting        bool
	foreground      bool // foreground deletion in progress
	orphaning       bool // orphan deletion in progress
}

// String returns "resource namespace/name" for logs and errors.
func (o graphObject) String() string {
	if o.namespace == "" {
		return o.resource.Resource + " " + o.name
	}
	return o.resource.Resource + " " + o.namespace + "/" + o.name
}

// blocksOwnerDeletion reports whether the object blocks the foreground deletion of the owner.
func (o graphObject) blocksOwnerDeletion(owner types.UID) bool {
	return slices.ContainsFunc(o.owners, func(ref metav1.OwnerReference) bool {
		return ref.UID == owner && ref.BlockOwnerDeletion != nil && *ref.BlockOwnerDeletion
	})
}

// canOwn reports whether the object's scope allows it to own the other one.
func (o graphObject) canOwn(other graphObject) bool {
	return !o.resource.namespaced || o.namespace == other.namespace
}

func newDependencyGraph(enqueue func(string)) *dependencyGraph {
	return &dependencyGraph{enqueue: enqueue, objects: map[types.UID]graphObject{},
		dependentsOf: map[types.UID]map[types.UID]bool{}}
}

// eventHandler updates the graph with the objects of one resource, which may be complete objects or
// metadata.
func (g *dependencyGraph) eventHandler(resource gcResource) cache.ResourceEventHandlerFuncs {
	update := func(obj any) {
		if m, ok := obj.(metav1.Object); ok {
			g.update(newGraphObject(resource, m))
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: update,
		UpdateFunc: func(old, obj any) {
			oldObj, _ := old.(metav1.Object)
			if newObj, ok := obj.(metav1.Object); ok && oldObj != nil && oldObj.GetUID() != newObj.GetUID() {
				g.remove(oldObj.GetUID())
			}
			update(obj)
		},
		DeleteFunc: func(obj any) {
			obj = lastKnown(obj)
			if m, ok := obj.(metav1.Object); ok {
				g.remove(m.GetUID())
			}
		},
	}
}

func newGraphObject(resource gcResource, m metav1.Object) graphObject {
	deleting := m.GetDeletionTimestamp() != nil
	foreground := slices.Contains(m.GetFinalizers(), metav1.FinalizerDeleteDependents)
	orphaning := slices.Contains(m.GetFinalizers(), metav1.FinalizerOrphanDependents)
	return graphObject{
		uid: m.GetUID(), resource: resource, namespace: m.GetNamespace(), name: m.GetName(),
		version:    m.GetResourceVersion(),
		owners:     m.GetOwnerReferences(),
		propagates: foreground || orphaning,
		deleting:   deleting,
		foreground: deleting && foreground,
		orphaning:  deleting && orphaning,
	}
}

func (g *dependencyGraph) get(uid types.UID) (graphObject, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	o, ok := g.objects[uid]
	return o, ok
}

// dependents returns the objects that refer to the owner, unordered.
func (g *dependencyGraph) dependents(owner types.UID) []graphObject {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make([]graphObject, 0, len(g.dependentsOf[owner]))
	for uid := range g.dependentsOf[owner] {
		out = append(out, g.objects[uid])
	}
	return out
}

// blockedOn reports whether the foreground deletion of uid waits, directly or transitively, for the
// deletion of other. An object is always blocked on itself.
func (g *dependencyGraph) blockedOn(uid, other types.UID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	seen, next := map[types.UID]bool{}, []types.UID{uid}
	for len(next) > 0 {
		current := next[len(next)-1]
		next = next[:len(next)-1]
		switch {
		case current == other:
			return true
		case seen[current] || !g.objects[current].foreground:
			continue
		}
		seen[current] = true
		for dependent := range g.dependentsOf[current] {
			if g.objects[dependent].blocksOwnerDeletion(current) {
				next = append(next, dependent)
			}
		}
	}
	return false
}

// update adds or replaces an object.
func (g *dependencyGraph) update(o graphObject) {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.objects[o.uid]
	g.objects[o.uid] = o
	g.unlink(before)
	for _, ref := range o.owners {
		if g.dependentsOf[ref.UID] == nil {
			g.dependentsOf[ref.UID] = map[types.UID]bool{}
		}
		g.dependentsOf[ref.UID][o.uid] = true
	}
	g.enqueueAffected(o, before)
}

// enqueueAffected queues the objects that the change affects.
func (g *dependencyGraph) enqueueAffected(o, before graphObject) {
	if o.orphaning {
		g.enqueue(orphanPrefix + string(o.uid))
	}
	if o.foreground {
		g.enqueue(collectPrefix + string(o.uid))
		for uid := range g.dependentsOf[o.uid] {
			g.enqueue(collectPrefix + string(uid))
		}
	}
	for _, ref := range o.owners {
		if owner, known := g.objects[ref.UID]; !known || owner.foreground || !owner.canOwn(o) {
			g.enqueue(collectPrefix + string(o.uid))
		}
	}
	for _, ref := range before.owners { // the former owner may have waited for this object
		if g.objects[ref.UID].foreground {
			g.enqueue(collectPrefix + string(ref.UID))
		}
	}
}

// enqueueOwnedBy queues the objects that have an owner of a kind.
func (g *dependencyGraph) enqueueOwnedBy(kind schema.GroupKind) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for uid, o := range g.objects {
		if slices.ContainsFunc(o.owners, func(ref metav1.OwnerReference) bool {
			return schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).GroupKind() == kind
		}) {
			g.enqueue(collectPrefix + string(uid))
		}
	}
}

// removeResource removes all objects of a resource. See remove.
func (g *dependencyGraph) removeResource(of schema.GroupResource) {
	var all []types.UID
	g.mu.Lock()
	for uid, o := range g.objects {
		if o.resource.GroupResource() == of {
			all = append(all, uid)
		}
	}
	g.mu.Unlock()
	for _, uid := range all {
		g.remove(uid)
	}
}

// remove deletes an object from the graph and queues its dependents, which may have no owner left,
// and its owners, which may have waited for it.
func (g *dependencyGraph) remove(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	o, known := g.objects[uid]
	if !known {
		return
	}
	delete(g.objects, uid)
	g.unlink(o)
	for dependent := range g.dependentsOf[uid] {
		g.enqueue(collectPrefix + string(dependent))
	}
	for _, ref := range o.owners {
		if g.objects[ref.UID].foreground {
			g.enqueue(collectPrefix + string(ref.UID))
		}
	}
}

func (g *dependencyGraph) unlink(o graphObject) {
	for _, ref := range o.owners {
		delete(g.dependentsOf[ref.UID], o.uid)
		if len(g.dependentsOf[ref.UID]) == 0 {
			delete(g.dependentsOf, ref.UID)
		}
	}
}
