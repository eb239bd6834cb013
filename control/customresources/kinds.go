package customresources

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"
)

// kind is a kind of custom resources.
type kind struct {
	// resource has the preferred served version.
	resource   schema.GroupVersionResource
	name       string
	namespaced bool
}

func (k kind) apiResource() metav1.APIResource {
	return metav1.APIResource{Name: k.resource.Resource, Kind: k.name, Group: k.resource.Group,
		Version: k.resource.Version, Namespaced: k.namespaced}
}

// Objects is the metadata of the objects of one resource in the store.
type Objects struct {
	storage.Interface

	// Prefix is the key of the objects. It ends with a slash.
	Prefix string
}

// MetadataStore opens the metadata of objects without their schemas.
type MetadataStore interface {
	// Metadata returns the objects of a resource, which it decodes with MetadataCodec.
	Metadata(resource schema.GroupResource) (Objects, error)
	// Count returns the number of stored objects of a resource, in a namespace or, without one, in all.
	Count(ctx context.Context, resource schema.GroupResource, namespace string) (int64, error)
}

// follower gets the kinds that are served.
type follower struct {
	added   func(metav1.APIResource, cache.SharedIndexInformer)
	removed func(metav1.APIResource)
}

// Kinds are the kinds of all definitions. It watches their objects while there is a follower, so that
// a definition needs no restart of a controller.
type Kinds struct {
	definitions *definitions
	store       MetadataStore
	log         *slog.Logger
	known       chan struct{} // closed when byUID has the kinds of the existing definitions

	mu        sync.Mutex
	followers []*follower
	byUID     map[types.UID]*watchedKind
}

// watchedKind is a served kind. Without followers, informer and stop are nil.
type watchedKind struct {
	kind

	informer cache.SharedIndexInformer
	stop     func() // waits until the informer has stopped
}

func newKinds(from *definitions, in MetadataStore, log *slog.Logger) *Kinds {
	return &Kinds{definitions: from, store: in, log: log, known: make(chan struct{}),
		byUID: map[types.UID]*watchedKind{}}
}

// Definitions returns the shared informer of the definitions. They have no schemas.
func (k *Kinds) Definitions() cache.SharedIndexInformer { return k.definitions.Informer() }

// Count returns the number of objects of a custom resource in a namespace. It reports false if there
// is no definition of the resource.
func (k *Kinds) Count(ctx context.Context, resource schema.GroupResource, namespace string) (int64, bool, error) {
	if _, err := k.definitions.Lister().Get(resource.String()); err != nil {
		return 0, false, nil //nolint:nilerr // no definition
	}
	n, err := k.store.Count(ctx, resource, namespace)
	if err != nil {
		return 0, true, fmt.Errorf("count %s: %w", resource, err)
	}
	return n, true, nil
}

// Follow calls added for all kinds, now and later, and removed when a kind is no longer served, until
// stop is called. added gets an informer of PartialObjectMetadata with the fields of MetadataCodec. It has
// stopped when removed is called. The calls of all followers are serialized.
func (k *Kinds) Follow(ctx context.Context, added func(metav1.APIResource, cache.SharedIndexInformer),
	removed func(metav1.APIResource)) (stop func()) {
	select {
	case <-k.known:
	case <-ctx.Done():
		return func() {}
	}
	f := &follower{added, removed}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.followers = append(k.followers, f)
	for _, one := range k.byUID {
		k.start(one)
		if one.informer != nil {
			added(one.apiResource(), one.informer)
		}
	}
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.followers = slices.DeleteFunc(k.followers, func(g *follower) bool { return g == f })
		if len(k.followers) > 0 {
			return
		}
		for _, one := range k.byUID {
			one.end()
		}
	}
}

// run follows the definitions until ctx is done, and stops the informers then.
func (k *Kinds) run(ctx context.Context) {
	registration, err := k.definitions.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: k.update, UpdateFunc: func(_, obj any) { k.update(obj) },
		DeleteFunc: func(obj any) {
			if crd := definitionOf(obj); crd != nil {
				k.mu.Lock()
				defer k.mu.Unlock()
				k.remove(crd.UID)
			}
		},
	})
	if err != nil || !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return // the server stops
	}
	close(k.known)
	<-ctx.Done()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, one := range k.byUID {
		one.end()
	}
	clear(k.byUID)
}

// update adds the kind of a definition, replaces it if it has changed, or removes it.
func (k *Kinds) update(obj any) {
	crd := definitionOf(obj)
	if crd == nil {
		return
	}
	current, served := kindOf(crd)
	k.mu.Lock()
	defer k.mu.Unlock()
	if one := k.byUID[crd.UID]; one != nil {
		if served && one.kind == current {
			return
		}
		k.remove(crd.UID)
	}
	if !served {
		return
	}
	one := &watchedKind{kind: current}
	k.byUID[crd.UID] = one
	if len(k.followers) == 0 {
		return
	}
	if k.start(one); one.informer == nil {
		return
	}
	for _, f := range k.followers {
		f.added(one.apiResource(), one.informer)
	}
}

// kindOf returns the kind of a definition. It reports false if it is not served.
func kindOf(crd *apiextensionsv1.CustomResourceDefinition) (kind, bool) {
	served := ""
	for _, v := range crd.Spec.Versions {
		if v.Served && (served == "" || version.CompareKubeAwareVersionStrings(v.Name, served) > 0) {
			served = v.Name
		}
	}
	names := crd.Status.AcceptedNames
	established := slices.ContainsFunc(crd.Status.Conditions,
		func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
			return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
		})
	return kind{
		resource: schema.GroupVersionResource{Group: crd.Spec.Group, Version: served, Resource: names.Plural},
		name:     names.Kind, namespaced: crd.Spec.Scope == apiextensionsv1.NamespaceScoped,
	}, established && served != ""
}

// remove stops the informer of a kind, which may be unknown.
func (k *Kinds) remove(uid types.UID) {
	one := k.byUID[uid]
	if one == nil {
		return
	}
	delete(k.byUID, uid)
	one.end()
	for _, f := range k.followers {
		f.removed(one.apiResource())
	}
}

// start starts the informer of a kind unless it is running.
func (k *Kinds) start(one *watchedKind) {
	if one.informer != nil {
		return
	}
	objects, err := k.store.Metadata(one.resource.GroupResource())
	if err != nil {
		k.log.Error("custom resource not watched", "resource", one.resource.GroupResource(), "err", err)
		return
	}
	one.informer = cache.NewSharedIndexInformerWithOptions(objects.listWatch(), &metav1.PartialObjectMetadata{},
		cache.SharedIndexInformerOptions{ObjectDescription: "metadata of " + one.resource.GroupResource().String()})
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

// listWatch adapts the objects to an informer.
func (o Objects) listWatch() cache.ListerWatcher {
	all := func(in metav1.ListOptions) storage.ListOptions {
		return storage.ListOptions{
			ResourceVersion: in.ResourceVersion, ResourceVersionMatch: in.ResourceVersionMatch,
			SendInitialEvents: in.SendInitialEvents, Recursive: true,
			Predicate: storage.SelectionPredicate{
				Label: labels.Everything(), Field: fields.Everything(), AllowWatchBookmarks: in.AllowWatchBookmarks,
			},
		}
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, in metav1.ListOptions) (runtime.Object, error) {
			out := &metav1.PartialObjectMetadataList{}
			return out, o.GetList(ctx, o.Prefix, all(in), out)
		},
		WatchFuncWithContext: func(ctx context.Context, in metav1.ListOptions) (watch.Interface, error) {
			return o.Watch(ctx, o.Prefix, all(in))
		},
	}
}
