package controllers

import (
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// dependencyGraph is who owns whom, as the watches tell it. It asks for the judgement of
// objects whose owners may have gone.
type dependencyGraph struct {
	enqueue func(key string)

	mu           sync.Mutex
	objects      map[types.UID]graphObject
	dependentsOf map[types.UID]map[types.UID]bool // by owner, which need not be known
}

// graphObject is one object, as last seen.
type graphObject struct {
	uid             types.UID
	resource        gcResource
	namespace, name string
	owners          []metav1.OwnerReference
	deleting        bool
	foreground      bool // deleting, once its dependents are gone
	orphaning       bool // deleting, once its dependents are free
}

// String is "resource namespace/name" for logs and errors.
func (o graphObject) String() string {
	if o.namespace == "" {
		return o.resource.Resource + " " + o.name
	}
	return o.resource.Resource + " " + o.namespace + "/" + o.name
}

// blocksOwnerDeletion reports whether an owner that goes after its dependents has to wait for
// the object.
func (o graphObject) blocksOwnerDeletion(owner types.UID) bool {
	return slices.ContainsFunc(o.owners, func(ref metav1.OwnerReference) bool {
		return ref.UID == owner && ref.BlockOwnerDeletion != nil && *ref.BlockOwnerDeletion
	})
}

// canOwn reports whether the object is where an owner of the other can be.
func (o graphObject) canOwn(other graphObject) bool {
	return !o.resource.namespaced || o.namespace == other.namespace
}

func newDependencyGraph(ask func(string)) *dependencyGraph {
	return &dependencyGraph{enqueue: ask, objects: map[types.UID]graphObject{}, dependentsOf: map[types.UID]map[types.UID]bool{}}
}

// eventHandler is what takes one kind's objects in, whole or their metadata alone.
func (g *dependencyGraph) eventHandler(of gcResource) cache.ResourceEventHandlerFuncs {
	see := func(obj any) {
		if m, ok := obj.(metav1.Object); ok {
			g.update(newGraphObject(of, m))
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: see,
		UpdateFunc: func(old, obj any) {
			was, _ := old.(metav1.Object)
			if is, ok := obj.(metav1.Object); ok && was != nil && was.GetUID() != is.GetUID() {
				g.remove(was.GetUID())
			}
			see(obj)
		},
		DeleteFunc: func(obj any) {
			if lost, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = lost.Obj
			}
			if m, ok := obj.(metav1.Object); ok {
				g.remove(m.GetUID())
			}
		},
	}
}

func newGraphObject(of gcResource, m metav1.Object) graphObject {
	deleting := m.GetDeletionTimestamp() != nil
	return graphObject{
		uid: m.GetUID(), resource: of, namespace: m.GetNamespace(), name: m.GetName(), owners: m.GetOwnerReferences(), deleting: deleting,
		foreground: deleting && slices.Contains(m.GetFinalizers(), metav1.FinalizerDeleteDependents),
		orphaning:  deleting && slices.Contains(m.GetFinalizers(), metav1.FinalizerOrphanDependents),
	}
}

func (g *dependencyGraph) get(uid types.UID) (graphObject, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	o, ok := g.objects[uid]
	return o, ok
}

// dependents are the objects that name the owner, in no order.
func (g *dependencyGraph) dependents(owner types.UID) []graphObject {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make([]graphObject, 0, len(g.dependentsOf[owner]))
	for uid := range g.dependentsOf[owner] {
		out = append(out, g.objects[uid])
	}
	return out
}

// blockedOn reports whether an object's end waits for that of another, over however
// many that hold each other. Of itself it is true.
func (g *dependencyGraph) blockedOn(uid, other types.UID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	seen, next := map[types.UID]bool{}, []types.UID{uid}
	for len(next) > 0 {
		at := next[len(next)-1]
		next = next[:len(next)-1]
		switch {
		case at == other:
			return true
		case seen[at] || !g.objects[at].foreground:
			continue
		}
		seen[at] = true
		for dependent := range g.dependentsOf[at] {
			if g.objects[dependent].blocksOwnerDeletion(at) {
				next = append(next, dependent)
			}
		}
	}
	return false
}

// update takes in an object as it is now.
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

// enqueueAffected asks what the change makes necessary.
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
	for _, ref := range before.owners { // an owner may have waited for this one to be freed
		if g.objects[ref.UID].foreground {
			g.enqueue(collectPrefix + string(ref.UID))
		}
	}
}

// remove drops an object: its dependents may have no owner now, and its owners
// may have waited for it.
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
