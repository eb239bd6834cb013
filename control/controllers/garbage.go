package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
)

// What the collector's keys ask for; the rest of a key is a UID.
const (
	collectPrefix = "judge "
	orphanPrefix  = "orphan "
)

// garbageCollector deletes what belongs to owners of which none is left, and does what
// the deletion of an owner has promised: foreground (dependents first) or orphan
// (dependents stay, without this owner).
type garbageCollector struct {
	Config

	graph   *dependencyGraph
	kinds   map[schema.GroupKind]gcResource
	enqueue func(key string)
}

// gcResource is where the objects of a kind are.
type gcResource struct {
	schema.GroupVersionResource

	namespaced bool
}

func newGarbageCollectorController(c Config) ([]*controller, error) {
	g := &garbageCollector{Config: c, kinds: map[schema.GroupKind]gcResource{}}
	w := c.newController(g.sync)
	w.workers = 8
	g.enqueue = w.queue.Add
	g.graph = newDependencyGraph(g.enqueue)
	var factory metadatainformer.SharedInformerFactory
	w.prepare = func(ctx context.Context) error {
		// An attempt fails while it asks what kinds there are, before it watches one.
		factory = metadatainformer.NewSharedInformerFactory(c.Metadata, 0)
		return g.watchAll(ctx, factory, w)
	}
	w.background = func(ctx context.Context) {
		<-ctx.Done()
		factory.Shutdown()
	}
	return []*controller{w}, nil
}

// watchAll finds all kinds that the server has and follows their objects.
func (g *garbageCollector) watchAll(ctx context.Context, factory metadatainformer.SharedInformerFactory, w *controller) error {
	lists, err := g.Client.Discovery().ServerPreferredResources()
	if err != nil {
		return fmt.Errorf("discover what there is: %w", err)
	}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return fmt.Errorf("discover what there is: %w", err)
		}
		for _, r := range list.APIResources {
			if !collectable(r) {
				continue
			}
			res := gcResource{gv.WithResource(r.Name), r.Namespaced}
			g.kinds[schema.GroupKind{Group: gv.Group, Kind: r.Kind}] = res
			informer, err := g.informer(factory, res.GroupVersionResource)
			if err != nil {
				return fmt.Errorf("watch %s: %w", r.Name, err)
			}
			if err := w.addEventHandler(informer, g.graph.eventHandler(res)); err != nil {
				return fmt.Errorf("%s: %w", r.Name, err)
			}
		}
	}
	factory.Start(ctx.Done())
	g.StartInformers()
	return nil
}

// sharedInformers are the kinds that other parts watch with all that is in them. The
// graph is told by the same watch: a second one, of the metadata alone, would
// take more than it spares.
var sharedInformers = map[schema.GroupResource]bool{
	{Resource: "configmaps"}:             true,
	{Resource: "endpoints"}:              true,
	{Resource: "limitranges"}:            true,
	{Resource: "namespaces"}:             true,
	{Resource: "nodes"}:                  true,
	{Resource: "persistentvolumeclaims"}: true,
	{Resource: "persistentvolumes"}:      true,
	{Resource: "pods"}:                   true,
	{Resource: "replicationcontrollers"}: true,
	{Resource: "resourcequotas"}:         true,
	{Resource: "secrets"}:                true,
	{Resource: "serviceaccounts"}:        true,
	{Resource: "services"}:               true,

	{Group: "apps", Resource: "replicasets"}:                               true,
	{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}: true,
	{Group: "coordination.k8s.io", Resource: "leases"}:                     true,
	{Group: "discovery.k8s.io", Resource: "endpointslices"}:                true,
	{Group: "node.k8s.io", Resource: "runtimeclasses"}:                     true,
	{Group: "policy", Resource: "poddisruptionbudgets"}:                    true,
	{Group: "rbac.authorization.k8s.io", Resource: "clusterrolebindings"}:  true,
	{Group: "rbac.authorization.k8s.io", Resource: "clusterroles"}:         true,
	{Group: "rbac.authorization.k8s.io", Resource: "rolebindings"}:         true,
	{Group: "rbac.authorization.k8s.io", Resource: "roles"}:                true,
	{Group: "scheduling.k8s.io", Resource: "priorityclasses"}:              true,
}

// informer is the watch of a kind: the one that others have, or one of metadata.
func (g *garbageCollector) informer(factory metadatainformer.SharedInformerFactory, of schema.GroupVersionResource) (cache.SharedIndexInformer, error) {
	if sharedInformers[of.GroupResource()] {
		shared, err := g.Informers.ForResource(of)
		if err != nil {
			return nil, err
		}
		return shared.Informer(), nil
	}
	informer := factory.ForResource(of).Informer()
	return informer, informer.SetTransform(trimMetadata)
}

// collectable leaves out what lives shortly and has no owners: there is much of
// it, and its time ends it.
func collectable(r metav1.APIResource) bool {
	if r.Name == "events" {
		return false
	}
	for _, verb := range []string{"list", "watch", "get", "delete"} {
		if !slices.Contains(r.Verbs, verb) {
			return false
		}
	}
	return true
}

// trimMetadata keeps what the graph is made from.
func trimMetadata(obj any) (any, error) {
	m, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return obj, nil
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion,
		OwnerReferences: m.OwnerReferences, Finalizers: m.Finalizers, DeletionTimestamp: m.DeletionTimestamp,
	}}, nil
}

func (g *garbageCollector) sync(ctx context.Context, key string) (time.Duration, error) {
	if uid, ok := strings.CutPrefix(key, orphanPrefix); ok {
		return 0, g.orphanDependents(ctx, types.UID(uid))
	}
	return 0, g.collect(ctx, types.UID(strings.TrimPrefix(key, collectPrefix)))
}

// client is the client for where an object is.
func (g *garbageCollector) client(o graphObject) metadata.ResourceInterface {
	if o.resource.namespaced {
		return g.Metadata.Resource(o.resource.GroupVersionResource).Namespace(o.namespace)
	}
	return g.Metadata.Resource(o.resource.GroupVersionResource)
}

// collect looks whether an object has an owner left.
func (g *garbageCollector) collect(ctx context.Context, uid types.UID) error {
	o, known := g.graph.get(uid)
	if !known {
		return nil
	}
	live, err := g.client(o).Get(ctx, o.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && live.UID != uid {
		g.graph.remove(uid)
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at %s: %w", o, err)
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
	there, gone, waiting, err := g.classifyOwners(ctx, o, live.OwnerReferences)
	switch {
	case err != nil:
		return err
	case len(there) > 0 && len(gone)+len(waiting) > 0:
		return g.setOwners(ctx, o, live, there)
	case len(there) > 0:
		return nil
	}
	policy := metav1.DeletePropagationBackground
	switch {
	case slices.Contains(live.Finalizers, metav1.FinalizerOrphanDependents):
		policy = metav1.DeletePropagationOrphan
	case slices.Contains(live.Finalizers, metav1.FinalizerDeleteDependents), len(waiting) > 0 && len(g.graph.dependents(uid)) > 0:
		policy = metav1.DeletePropagationForeground
	}
	err = g.client(o).Delete(ctx, o.name, metav1.DeleteOptions{
		PropagationPolicy: &policy, Preconditions: &metav1.Preconditions{UID: &live.UID, ResourceVersion: &live.ResourceVersion},
	})
	if ignoreNotFound(err) != nil {
		return fmt.Errorf("delete %s: %w", o, err)
	}
	g.Log.Info("object without owners is deleted", "object", o.String(), "policy", policy)
	return nil
}

// classifyOwners parts the owners into those that are there, those that are gone, and
// those that wait for their dependents to go first. One in another namespace owns
// nothing here: whether there is such an owner in the object's own, the server says.
func (g *garbageCollector) classifyOwners(ctx context.Context, o graphObject, owners []metav1.OwnerReference) (there, gone, waiting []metav1.OwnerReference, err error) {
	for _, ref := range owners {
		if owner, known := g.graph.get(ref.UID); known && owner.canOwn(o) {
			if owner.foreground {
				waiting = append(waiting, ref)
			} else {
				there = append(there, ref)
			}
			continue
		}
		exists, err := g.ownerExists(ctx, o, ref)
		if err != nil {
			return nil, nil, nil, err
		}
		if exists {
			there = append(there, ref)
		} else {
			gone = append(gone, ref)
		}
	}
	return there, gone, waiting, nil
}

// ownerExists asks the server for an owner that the graph does not know. Of an owner
// of a kind that nobody knows, or that cannot own the object, it is not said
// that it is gone: nothing is deleted for what may be a mistake.
func (g *garbageCollector) ownerExists(ctx context.Context, o graphObject, ref metav1.OwnerReference) (bool, error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return true, nil //nolint:nilerr // see above
	}
	of, known := g.kinds[schema.GroupKind{Group: gv.Group, Kind: ref.Kind}]
	if !known || of.namespaced && !o.resource.namespaced {
		return true, nil
	}
	owner, err := g.client(graphObject{resource: of, namespace: o.namespace}).Get(ctx, ref.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for owner %s %s of %s: %w", ref.Kind, ref.Name, o, err)
	}
	return owner.UID == ref.UID, nil
}

// finishForeground lets an owner go once no dependent holds it, and sees to it
// that the dependents go. One whose own end waits for that of the owner holds
// nothing: of owners in a circle the last that is asked to go goes first.
func (g *garbageCollector) finishForeground(ctx context.Context, o graphObject, live *metav1.PartialObjectMetadata) error {
	holding := false
	for _, d := range g.graph.dependents(o.uid) {
		holding = holding || d.blocksOwnerDeletion(o.uid) && !g.graph.blockedOn(d.uid, o.uid)
		if !d.deleting {
			g.enqueue(collectPrefix + string(d.uid))
		}
	}
	if holding {
		return nil // the end of each of them tells again
	}
	return g.removeFinalizer(ctx, o, live, metav1.FinalizerDeleteDependents)
}

// orphanDependents takes the owner from its dependents and lets it go.
func (g *garbageCollector) orphanDependents(ctx context.Context, uid types.UID) error {
	o, known := g.graph.get(uid)
	if !known {
		return nil
	}
	for _, d := range g.graph.dependents(uid) {
		live, err := g.client(d).Get(ctx, d.name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && live.UID != d.uid {
			continue
		}
		if err != nil {
			return fmt.Errorf("look at %s: %w", d, err)
		}
		kept := slices.DeleteFunc(slices.Clone(live.OwnerReferences), func(r metav1.OwnerReference) bool { return r.UID == uid })
		if len(kept) == len(live.OwnerReferences) {
			continue
		}
		if err := g.setOwners(ctx, d, live, kept); err != nil {
			return err
		}
	}
	live, err := g.client(o).Get(ctx, o.name, metav1.GetOptions{})
	if err != nil || live.UID != uid {
		return ignoreNotFound(err)
	}
	return g.removeFinalizer(ctx, o, live, metav1.FinalizerOrphanDependents)
}

func (g *garbageCollector) removeFinalizer(ctx context.Context, o graphObject, live *metav1.PartialObjectMetadata, name string) error {
	kept := slices.DeleteFunc(slices.Clone(live.Finalizers), func(f string) bool { return f == name })
	if len(kept) == len(live.Finalizers) {
		return nil
	}
	return g.patch(ctx, o, live, map[string]any{"finalizers": kept})
}

func (g *garbageCollector) setOwners(ctx context.Context, o graphObject, live *metav1.PartialObjectMetadata, kept []metav1.OwnerReference) error {
	return g.patch(ctx, o, live, map[string]any{"ownerReferences": kept})
}

// patch changes metadata of an object that nobody has changed since.
func (g *garbageCollector) patch(ctx context.Context, o graphObject, live *metav1.PartialObjectMetadata, change map[string]any) error {
	change["uid"], change["resourceVersion"] = live.UID, live.ResourceVersion
	body, err := json.Marshal(map[string]any{"metadata": change})
	if err != nil {
		return fmt.Errorf("change %s: %w", o, err)
	}
	if _, err := g.client(o).Patch(ctx, o.name, types.MergePatchType, body, metav1.PatchOptions{}); ignoreNotFound(err) != nil {
		return fmt.Errorf("change %s: %w", o, err)
	}
	return nil
}
