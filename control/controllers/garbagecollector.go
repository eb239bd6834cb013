package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/utils/lru"
)

const (
	// gcWorkers is the number of objects that are processed at once, as upstream.
	gcWorkers = 20
	// absentOwners is how many owners are remembered as absent: the dependents of a deleted owner are usually
	// processed one after another.
	absentOwners = 500
	// maxOrphanPatches is the number of dependents that are orphaned at once, of all owners together.
	maxOrphanPatches = 20
)

// Prefixes of queue keys. The rest of a key is a UID.
const (
	collectPrefix = "collect "
	orphanPrefix  = "orphan "
)

// garbageCollector deletes objects without a remaining owner. It also completes foreground deletion
// (dependents first) and orphan deletion (dependents lose this owner reference).
type garbageCollector struct {
	Config

	graph   *dependencyGraph
	enqueue func(key string)

	mu    sync.Mutex
	kinds map[schema.GroupKind]gcResource
	// aggregated has the groups of extension API servers among kinds.
	aggregated map[string]bool

	// absent has owners that the API server did not know, as ownerKey. An object with that UID never appears again.
	absent *lru.Cache
	// orphanSlots has the capacity maxOrphanPatches.
	orphanSlots chan struct{}
}

// ownerKey is an owner as a dependent in a namespace refers to it.
type ownerKey struct{ namespace, apiVersion, kind, name, uid string }

// gcResource is the resource of a kind.
type gcResource struct {
	schema.GroupVersionResource

	namespaced bool
}

func newGarbageCollectorController(c Config) ([]*controller, error) {
	g := &garbageCollector{Config: c, kinds: map[schema.GroupKind]gcResource{}, aggregated: map[string]bool{},
		absent:      lru.New(absentOwners),
		orphanSlots: make(chan struct{}, maxOrphanPatches)}
	ctrl := c.newController(g.sync)
	ctrl.workers = gcWorkers
	g.enqueue = ctrl.queue.Add
	g.graph = newDependencyGraph(g.enqueue)
	var factory metadatainformer.SharedInformerFactory
	var unfollow func()
	ctrl.prepare = func(ctx context.Context) error {
		// A failed attempt fails in discovery, before any informer is registered.
		factory = metadatainformer.NewSharedInformerFactory(c.Metadata, 0)
		if err := g.watchAll(ctx, factory, ctrl); err != nil {
			return err
		}
		unfollowCustom := c.followCustomResources(ctx, g.addCustomResource, g.removeCustomResource)
		unfollowAggregated := g.followAggregatedKinds(ctx)
		unfollow = func() {
			unfollowAggregated()
			unfollowCustom()
		}
		return nil
	}
	ctrl.background = func(ctx context.Context) {
		<-ctx.Done()
		unfollow()
		factory.Shutdown()
	}
	return []*controller{ctrl}, nil
}

func (g *garbageCollector) sync(ctx context.Context, key string) (time.Duration, error) {
	if uid, ok := strings.CutPrefix(key, orphanPrefix); ok {
		return 0, g.orphanDependents(ctx, types.UID(uid))
	}
	return 0, g.collect(ctx, types.UID(strings.TrimPrefix(key, collectPrefix)))
}

// client returns the client for the object's resource and namespace.
func (g *garbageCollector) client(o graphObject) metadata.ResourceInterface {
	if o.resource.namespaced {
		return g.Metadata.Resource(o.resource.GroupVersionResource).Namespace(o.namespace)
	}
	return g.Metadata.Resource(o.resource.GroupVersionResource)
}

// collect deletes an object that has no remaining owner.
func (g *garbageCollector) collect(ctx context.Context, uid types.UID) error {
	o, known := g.graph.get(uid)
	if !known || o.deleting && !o.foreground {
		return nil // nothing more to do for an object that is being deleted
	}
	if done, err := g.collectObserved(ctx, o); done || err != nil {
		return err
	}
	live, err := g.client(o).Get(ctx, o.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && live.UID != uid {
		g.graph.remove(uid)
		return nil
	}
	if err != nil {
		return fmt.Errorf("get %s: %w", o, err)
	}
	if live.DeletionTimestamp != nil {
		if slices.Contains(live.Finalizers, metav1.FinalizerDeleteDependents) {
			return g.finishForeground(ctx, o, live)
		}
		return nil
	}
	if len(live.OwnerReferences) == 0 {
		return nil
	}
	present, absent, waiting, err := g.classifyOwners(ctx, o, live.OwnerReferences)
	switch {
	case err != nil:
		return err
	case len(present) > 0 && len(absent)+len(waiting) > 0:
		return g.setOwners(ctx, o, live, present)
	case len(present) > 0:
		return nil
	}
	policy := metav1.DeletePropagationBackground
	switch {
	case slices.Contains(live.Finalizers, metav1.FinalizerOrphanDependents):
		policy = metav1.DeletePropagationOrphan
	case slices.Contains(live.Finalizers, metav1.FinalizerDeleteDependents), len(waiting) > 0 &&
		len(g.graph.dependents(uid)) > 0:
		policy = metav1.DeletePropagationForeground
	}
	return g.delete(ctx, o, policy, live.ResourceVersion)
}

// collectObserved deletes an object whose owners are all absent, in the version that the graph knows. Most dependents
// of a deleted owner need no read by this. It reports false if the object needs one: it has changed since, has another
// owner, or a finalizer that decides about its own dependents.
func (g *garbageCollector) collectObserved(ctx context.Context, o graphObject) (done bool, err error) {
	if o.version == "" || o.deleting || o.propagates || len(o.owners) == 0 {
		return false, nil
	}
	present, _, waiting, err := g.classifyOwners(ctx, o, o.owners)
	if err != nil || len(present)+len(waiting) > 0 {
		return false, err
	}
	err = g.delete(ctx, o, metav1.DeletePropagationBackground, o.version)
	if apierrors.IsConflict(err) {
		return false, nil
	}
	return err == nil, err
}

// delete deletes an object in a version. It is no error if the object is gone.
func (g *garbageCollector) delete(ctx context.Context, o graphObject, policy metav1.DeletionPropagation,
	version string) error {
	err := g.client(o).Delete(ctx, o.name, metav1.DeleteOptions{
		PropagationPolicy: &policy, Preconditions: &metav1.Preconditions{UID: &o.uid, ResourceVersion: &version},
	})
	if ignoreNotFound(err) != nil {
		return fmt.Errorf("delete %s: %w", o, err)
	}
	g.Log.Info("object without owners deleted", "object", o.String(), "policy", policy)
	return nil
}

// classifyOwners splits the owners into existing ones, absent ones, and ones that wait for the
// deletion of their dependents. An owner in another namespace does not count. It asks the
// API server whether such an owner exists in the object's own namespace.
func (g *garbageCollector) classifyOwners(ctx context.Context, o graphObject,
	owners []metav1.OwnerReference) (present, absent, waiting []metav1.OwnerReference, err error) {
	for _, ref := range owners {
		if owner, known := g.graph.get(ref.UID); known && owner.canOwn(o) {
			if owner.foreground {
				waiting = append(waiting, ref)
			} else {
				present = append(present, ref)
			}
			continue
		}
		exists, err := g.ownerExists(ctx, o, ref)
		if err != nil {
			return nil, nil, nil, err
		}
		if exists {
			present = append(present, ref)
		} else {
			absent = append(absent, ref)
		}
	}
	return present, absent, waiting, nil
}

// ownerExists asks the API server for an owner that the graph does not know. It returns true for an
// unknown kind and for a kind that cannot own the object, so that a mistaken reference never causes a
// deletion.
func (g *garbageCollector) ownerExists(ctx context.Context, o graphObject, ref metav1.OwnerReference) (bool, error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return true, nil //nolint:nilerr // unknown owner
	}
	of, known := g.resourceOf(schema.GroupKind{Group: gv.Group, Kind: ref.Kind})
	if !known || of.namespaced && !o.resource.namespaced {
		return true, nil
	}
	key := ownerKey{o.namespace, ref.APIVersion, ref.Kind, ref.Name, string(ref.UID)}
	if _, absent := g.absent.Get(key); absent {
		return false, nil
	}
	owner, err := g.client(graphObject{resource: of, namespace: o.namespace}).Get(ctx, ref.Name, metav1.GetOptions{})
	if ignoreNotFound(err) != nil || g.notServed(gv.Group, err) {
		return false, fmt.Errorf("get owner %s %s of %s: %w", ref.Kind, ref.Name, o, err)
	}
	exists := err == nil && owner.UID == ref.UID
	if !exists {
		g.absent.Add(key, nil)
	}
	return exists, nil
}

// finishForeground removes the foregroundDeletion finalizer once no dependent blocks the owner, and
// queues the dependents for deletion. A dependent whose own deletion waits for this owner does not
// block, which resolves cycles of owners.
func (g *garbageCollector) finishForeground(ctx context.Context, o graphObject,
	live *metav1.PartialObjectMetadata) error {
	blocked := false
	for _, d := range g.graph.dependents(o.uid) {
		blocked = blocked || d.blocksOwnerDeletion(o.uid) && !g.graph.blockedOn(d.uid, o.uid)
		if !d.deleting {
			g.enqueue(collectPrefix + string(d.uid))
		}
	}
	if blocked {
		return nil // the deletion of each dependent queues the owner again
	}
	return g.removeFinalizer(ctx, o, live, metav1.FinalizerDeleteDependents)
}

// orphanDependents removes the owner from its dependents and then its orphan finalizer.
func (g *garbageCollector) orphanDependents(ctx context.Context, uid types.UID) error {
	o, known := g.graph.get(uid)
	if !known {
		return nil
	}
	dependents := g.graph.dependents(uid)
	if err := inParallel(len(dependents), func(i int) error {
		g.orphanSlots <- struct{}{}
		defer func() { <-g.orphanSlots }()
		return g.orphan(ctx, uid, dependents[i])
	}); err != nil {
		return err
	}
	live, err := g.client(o).Get(ctx, o.name, metav1.GetOptions{})
	if err != nil || live.UID != uid {
		return ignoreNotFound(err)
	}
	return g.removeFinalizer(ctx, o, live, metav1.FinalizerOrphanDependents)
}

// orphan removes an owner from one dependent. The patch names only that owner and applies only to the object with the
// UID of the dependent, so that the dependent need not be read and concurrent changes are kept.
func (g *garbageCollector) orphan(ctx context.Context, owner types.UID, d graphObject) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": d.uid, "ownerReferences": []any{map[string]any{"$patch": "delete", "uid": owner}},
	}})
	if err != nil {
		return fmt.Errorf("patch %s: %w", d, err)
	}
	_, err = g.client(d).Patch(ctx, d.name, types.StrategicMergePatchType, body, metav1.PatchOptions{})
	switch {
	case apierrors.IsConflict(err), apierrors.IsInvalid(err), apierrors.IsUnsupportedMediaType(err):
		// Another object has the name, or the resource has no strategic merge patch.
		return g.orphanLive(ctx, owner, d)
	case ignoreNotFound(err) != nil:
		return fmt.Errorf("patch %s: %w", d, err)
	}
	return nil
}

// orphanLive removes an owner from one dependent as the API server has it.
func (g *garbageCollector) orphanLive(ctx context.Context, owner types.UID, d graphObject) error {
	live, err := g.client(d).Get(ctx, d.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && live.UID != d.uid:
		return nil
	case err != nil:
		return fmt.Errorf("get %s: %w", d, err)
	}
	owners := slices.DeleteFunc(slices.Clone(live.OwnerReferences), func(r metav1.OwnerReference) bool {
		return r.UID == owner
	})
	if len(owners) == len(live.OwnerReferences) {
		return nil
	}
	return g.setOwners(ctx, d, live, owners)
}

func (g *garbageCollector) removeFinalizer(ctx context.Context, o graphObject, live *metav1.PartialObjectMetadata,
	name string) error {
	finalizers := slices.DeleteFunc(slices.Clone(live.Finalizers), func(f string) bool { return f == name })
	if len(finalizers) == len(live.Finalizers) {
		return nil
	}
	return g.patch(ctx, o, live, map[string]any{"finalizers": finalizers})
}

func (g *garbageCollector) setOwners(ctx context.Context, o graphObject, live *metav1.PartialObjectMetadata,
	owners []metav1.OwnerReference) error {
	return g.patch(ctx, o, live, map[string]any{"ownerReferences": owners})
}

// patch changes the metadata of the object unless it was changed since it was read.
func (g *garbageCollector) patch(ctx context.Context, o graphObject, live *metav1.PartialObjectMetadata,
	change map[string]any) error {
	change["uid"], change["resourceVersion"] = live.UID, live.ResourceVersion
	body, err := json.Marshal(map[string]any{"metadata": change})
	if err != nil {
		return fmt.Errorf("patch %s: %w", o, err)
	}
	if _, err := g.client(o).Patch(ctx, o.name, types.MergePatchType, body,
		metav1.PatchOptions{}); ignoreNotFound(err) != nil {
		return fmt.Errorf("patch %s: %w", o, err)
	}
	return nil
}
