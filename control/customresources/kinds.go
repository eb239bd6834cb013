package customresources

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

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

	"berth/control/dynamickinds"
)

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

// Kinds are the kinds of all definitions. It watches their objects while there is a follower, so that
// a definition needs no restart of a controller.
type Kinds struct {
	definitions *definitions
	store       MetadataStore
	set         *dynamickinds.Set[types.UID] // by definition
	known       chan struct{}                // closed when set has the kinds of the existing definitions
}

func newKinds(from *definitions, in MetadataStore, log *slog.Logger) *Kinds {
	open := func(r metav1.APIResource) (cache.SharedIndexInformer, error) {
		of := schema.GroupResource{Group: r.Group, Resource: r.Name}
		objects, err := in.Metadata(of)
		if err != nil {
			return nil, err
		}
		return cache.NewSharedIndexInformerWithOptions(objects.listWatch(), &metav1.PartialObjectMetadata{},
			cache.SharedIndexInformerOptions{ObjectDescription: "metadata of " + of.String()}), nil
	}
	return &Kinds{definitions: from, store: in, known: make(chan struct{}),
		set: dynamickinds.New[types.UID](open, func(err error) {
			log.Error("custom resource not watched", "err", err)
		})}
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

// Follow follows the kinds when those of the existing definitions are known, see dynamickinds.Set. The objects have the
// fields of MetadataCodec.
func (k *Kinds) Follow(ctx context.Context, added func(metav1.APIResource, cache.SharedIndexInformer),
	removed func(metav1.APIResource)) (stop func()) {
	select {
	case <-k.known:
	case <-ctx.Done():
		return func() {}
	}
	return k.set.Follow(added, removed)
}

// run follows the definitions until ctx is done, and stops the informers then.
func (k *Kinds) run(ctx context.Context) {
	registration, err := k.definitions.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: k.update, UpdateFunc: func(_, obj any) { k.update(obj) },
		DeleteFunc: func(obj any) {
			if crd := definitionOf(obj); crd != nil {
				k.set.Remove(crd.UID)
			}
		},
	})
	if err != nil || !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return // the server stops
	}
	close(k.known)
	<-ctx.Done()
	k.set.Close()
}

// update adds the kind of a definition, replaces it if it has changed, or removes it.
func (k *Kinds) update(obj any) {
	crd := definitionOf(obj)
	if crd == nil {
		return
	}
	if current, served := kindOf(crd); served {
		k.set.Put(crd.UID, current)
	} else {
		k.set.Remove(crd.UID)
	}
}

// kindOf returns the kind of a definition with the preferred served version. It reports false if it is not served.
func kindOf(crd *apiextensionsv1.CustomResourceDefinition) (metav1.APIResource, bool) {
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
	return metav1.APIResource{
		Group: crd.Spec.Group, Version: served, Name: names.Plural, Kind: names.Kind,
		Namespaced: crd.Spec.Scope == apiextensionsv1.NamespaceScoped,
	}, established && served != ""
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
