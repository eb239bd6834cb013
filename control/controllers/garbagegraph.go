package controllers

import (
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// graph is who owns whom, as the watches tell it. It asks for the judgement of
// objects whose owners may have gone.
type graph struct {
	ask func(key string)

	mu      sync.Mutex
	objects map[types.UID]object
	owned   map[types.UID]map[types.UID]bool // by owner, which need not be known
}

// object is one object, as last seen.
type object struct {
	uid             types.UID
	of              location
	namespace, name string
	owners          []metav1.OwnerReference
	deleting        bool
	foreground      bool // deleting, once its dependents are gone
	orphaning       bool // deleting, once its dependents are free
}

// String is "resource namespace/name" for logs and errors.
func (o object) String() string {
	if o.namespace == "" {
		return o.of.Resource + " " + o.name
	}
	return o.of.Resource + " " + o.namespace + "/" + o.name
}

// holds reports whether an owner that goes after its dependents has to wait for
// the object.
func (o object) holds(owner types.UID) bool {
	return slices.ContainsFunc(o.owners, func(ref metav1.OwnerReference) bool {
		return ref.UID == owner && ref.BlockOwnerDeletion != nil && *ref.BlockOwnerDeletion
	})
}

// mayOwn reports whether the object is where an owner of the other can be.
func (o object) mayOwn(other object) bool {
	return !o.of.namespaced || o.namespace == other.namespace
}

func newGraph(ask func(string)) *graph {
	return &graph{ask: ask, objects: map[types.UID]object{}, owned: map[types.UID]map[types.UID]bool{}}
}

// follow is what takes one kind's objects in, whole or their metadata alone.
func (g *graph) follow(of location) cache.ResourceEventHandlerFuncs {
	see := func(obj any) {
		if m, ok := obj.(metav1.Object); ok {
			g.see(objectOf(of, m))
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: see,
		UpdateFunc: func(old, obj any) {
			was, _ := old.(metav1.Object)
			if is, ok := obj.(metav1.Object); ok && was != nil && was.GetUID() != is.GetUID() {
				g.forget(was.GetUID())
			}
			see(obj)
		},
		DeleteFunc: func(obj any) {
			if lost, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = lost.Obj
			}
			if m, ok := obj.(metav1.Object); ok {
				g.forget(m.GetUID())
			}
		},
	}
}

func objectOf(of location, m metav1.Object) object {
	deleting := m.GetDeletionTimestamp() != nil
	return object{
		uid: m.GetUID(), of: of, namespace: m.GetNamespace(), name: m.GetName(), owners: m.GetOwnerReferences(), deleting: deleting,
		foreground: deleting && slices.Contains(m.GetFinalizers(), metav1.FinalizerDeleteDependents),
		orphaning:  deleting && slices.Contains(m.GetFinalizers(), metav1.FinalizerOrphanDependents),
	}
}

func (g *graph) get(uid types.UID) (object, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	o, ok := g.objects[uid]
	return o, ok
}

// dependents are the objects that name the owner, in no order.
func (g *graph) dependents(owner types.UID) []object {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make([]object, 0, len(g.owned[owner]))
	for uid := range g.owned[owner] {
		out = append(out, g.objects[uid])
	}
	return out
}

// waits reports whether an object's end waits for that of another, over however
// many that hold each other. Of itself it is true.
func (g *graph) waits(uid, other types.UID) bool {
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
		for dependent := range g.owned[at] {
			if g.objects[dependent].holds(at) {
				next = append(next, dependent)
			}
		}
	}
	return false
}

// see takes in an object as it is now.
func (g *graph) see(o object) {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.objects[o.uid]
	g.objects[o.uid] = o
	g.unlink(before)
	for _, ref := range o.owners {
		if g.owned[ref.UID] == nil {
			g.owned[ref.UID] = map[types.UID]bool{}
		}
		g.owned[ref.UID][o.uid] = true
	}
	g.askFor(o, before)
}

// askFor asks what the change makes necessary.
func (g *graph) askFor(o, before object) {
	if o.orphaning {
		g.ask(askOrphan + string(o.uid))
	}
	if o.foreground {
		g.ask(askJudge + string(o.uid))
		for uid := range g.owned[o.uid] {
			g.ask(askJudge + string(uid))
		}
	}
	for _, ref := range o.owners {
		if owner, known := g.objects[ref.UID]; !known || owner.foreground || !owner.mayOwn(o) {
			g.ask(askJudge + string(o.uid))
		}
	}
	for _, ref := range before.owners { // an owner may have waited for this one to be freed
		if g.objects[ref.UID].foreground {
			g.ask(askJudge + string(ref.UID))
		}
	}
}

// forget drops an object: its dependents may have no owner now, and its owners
// may have waited for it.
func (g *graph) forget(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	o, known := g.objects[uid]
	if !known {
		return
	}
	delete(g.objects, uid)
	g.unlink(o)
	for dependent := range g.owned[uid] {
		g.ask(askJudge + string(dependent))
	}
	for _, ref := range o.owners {
		if g.objects[ref.UID].foreground {
			g.ask(askJudge + string(ref.UID))
		}
	}
}

func (g *graph) unlink(o object) {
	for _, ref := range o.owners {
		delete(g.owned[ref.UID], o.uid)
		if len(g.owned[ref.UID]) == 0 {
			delete(g.owned, ref.UID)
		}
	}
}
