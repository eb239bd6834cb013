package customresources

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
	"weak"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	informers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	listers "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/tools/cache"
)

// fetchTimeout limits a read of a definition from the store.
const fetchTimeout = 10 * time.Second

// store reads a complete definition, in the internal version.
type store interface {
	Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error)
}

// createStrategy is the library's strategy for new definitions, which have an empty list of conditions
// instead of null: kubectl wait fails if it reads a definition before its first condition is set.
type createStrategy struct{ rest.RESTCreateStrategy }

// PrepareForCreate sets the status of a new definition.
func (s createStrategy) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	s.RESTCreateStrategy.PrepareForCreate(ctx, obj)
	if crd, ok := obj.(*apiextensions.CustomResourceDefinition); ok {
		crd.Status.Conditions = []apiextensions.CustomResourceDefinitionCondition{}
	}
}

// definitions holds the definitions without their schemas. Complete returns a definition with its
// schemas, which it reads from the store unless something else still uses them.
type definitions struct {
	informers.CustomResourceDefinitionInformer

	store store

	mu      sync.Mutex
	schemas map[types.UID]schemas
}

// schemas are the schemas of a definition. They remain available while they are used elsewhere.
type schemas struct {
	generation int64
	byVersion  map[string]weak.Pointer[apiextensionsv1.CustomResourceValidation]
}

// newDefinitions returns definitions based on an informer that has not been started.
func newDefinitions(informer informers.CustomResourceDefinitionInformer, from store) (*definitions, error) {
	d := &definitions{CustomResourceDefinitionInformer: informer, store: from, schemas: map[types.UID]schemas{}}
	if err := informer.Informer().SetTransform(withoutSchemas); err != nil {
		return nil, fmt.Errorf("set transform: %w", err)
	}
	_, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) {
		if crd := definitionOf(obj); crd != nil {
			d.mu.Lock()
			defer d.mu.Unlock()
			delete(d.schemas, crd.UID)
		}
	}})
	return d, err //nolint:wrapcheck // does not fail: the informer has not stopped
}

// definitionOf returns the definition of an event, or nil.
func definitionOf(obj any) *apiextensionsv1.CustomResourceDefinition {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	crd, _ := obj.(*apiextensionsv1.CustomResourceDefinition)
	return crd
}

// withoutSchemas removes what makes a definition large: the schemas, and the annotation in which
// kubectl apply stores it a second time. The argument is not changed.
func withoutSchemas(obj any) (any, error) {
	crd, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return obj, nil
	}
	out := *crd
	out.ManagedFields, out.Annotations = nil, nil
	if approved, ok := crd.Annotations[apiextensionsv1.KubeAPIApprovedAnnotation]; ok {
		out.Annotations = map[string]string{apiextensionsv1.KubeAPIApprovedAnnotation: approved}
	}
	out.Spec.Versions = slices.Clone(crd.Spec.Versions)
	for i := range out.Spec.Versions {
		out.Spec.Versions[i].Schema = nil
	}
	return &out, nil
}

// inUse reports whether the schemas of a definition are available without a read.
func (d *definitions) inUse(uid types.UID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	known, ok := d.schemas[uid]
	if !ok {
		return false
	}
	for _, pointer := range known.byVersion {
		if pointer.Value() == nil {
			return false
		}
	}
	return true
}

// complete returns a definition with its schemas. It may be newer than in the informer.
func (d *definitions) complete(name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	crd, err := d.Lister().Get(name)
	if err != nil {
		return nil, err //nolint:wrapcheck // callers check for NotFound
	}
	if out := d.withKnownSchemas(crd); out != nil {
		return out, nil
	}
	ctx, cancel := context.WithTimeout(genericapirequest.NewContext(), fetchTimeout)
	defer cancel()
	obj, err := d.store.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err //nolint:wrapcheck // callers check for NotFound
	}
	internal, ok := obj.(*apiextensions.CustomResourceDefinition)
	if !ok {
		return nil, fmt.Errorf("definition %s: unexpected type %T", name, obj)
	}
	out := &apiextensionsv1.CustomResourceDefinition{}
	if err := apiextensionsv1.Convert_apiextensions_CustomResourceDefinition_To_v1_CustomResourceDefinition(
		internal, out, nil); err != nil {
		return nil, fmt.Errorf("definition %s: %w", name, err)
	}
	if out.UID != crd.UID {
		return nil, apierrors.NewNotFound(apiextensionsv1.Resource("customresourcedefinitions"), name)
	}
	return d.remember(out), nil
}

// remember records the schemas of a complete definition. Of a generation that is known already, it
// returns the definition with the known schemas, so that all users share them.
func (d *definitions) remember(
	crd *apiextensionsv1.CustomResourceDefinition,
) *apiextensionsv1.CustomResourceDefinition {
	if out := d.withKnownSchemas(crd); out != nil {
		return out
	}
	byVersion := map[string]weak.Pointer[apiextensionsv1.CustomResourceValidation]{}
	for _, v := range crd.Spec.Versions {
		if v.Schema != nil {
			byVersion[v.Name] = weak.Make(v.Schema)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.schemas[crd.UID] = schemas{crd.Generation, byVersion}
	return crd
}

// withKnownSchemas returns a copy of a definition with the known schemas of its generation, or nil.
func (d *definitions) withKnownSchemas(
	crd *apiextensionsv1.CustomResourceDefinition,
) *apiextensionsv1.CustomResourceDefinition {
	d.mu.Lock()
	known, ok := d.schemas[crd.UID]
	d.mu.Unlock()
	if !ok || known.generation != crd.Generation {
		return nil
	}
	out := *crd
	out.Spec.Versions = slices.Clone(crd.Spec.Versions)
	for i := range out.Spec.Versions {
		v := &out.Spec.Versions[i]
		if pointer, has := known.byVersion[v.Name]; has {
			if v.Schema = pointer.Value(); v.Schema == nil {
				return nil
			}
		}
	}
	return &out
}

// established returns the definitions that are served, without their schemas.
func (d *definitions) established() []*apiextensionsv1.CustomResourceDefinition {
	all, _ := d.Lister().List(labels.Everything()) // does not fail
	return slices.DeleteFunc(all, func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		return !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established)
	})
}

// serving returns the definitions for the library's handler of custom resources: its lister returns
// complete definitions, and its events have them if the handler may have created a storage from them.
// keep reports whether the storage of a definition is still needed.
func (d *definitions) serving(keep func(types.UID) bool) *servingDefinitions {
	return &servingDefinitions{definitions: d, keep: keep}
}

type servingDefinitions struct {
	*definitions

	keep    func(types.UID) bool
	handler cache.ResourceEventHandler
}

var _ informers.CustomResourceDefinitionInformer = (*servingDefinitions)(nil)

// Informer returns the informer for the handler's events.
func (s *servingDefinitions) Informer() cache.SharedIndexInformer {
	return servingInformer{s.definitions.Informer(), s}
}

// Lister returns the lister of complete definitions.
func (s *servingDefinitions) Lister() listers.CustomResourceDefinitionLister { return servingLister{s} }

type servingLister struct{ of *servingDefinitions }

// Get returns a complete definition.
func (l servingLister) Get(name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	return l.of.complete(name)
}

// List returns the definitions, without schemas, whose storage is needed. The handler compares only
// the UIDs with those of its storages. The objects of a deleted definition are deleted through its
// storage, without a request.
func (l servingLister) List(selector labels.Selector) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	all, err := l.of.definitions.Lister().List(selector)
	return slices.DeleteFunc(all, func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		return crd.DeletionTimestamp == nil && !l.of.keep(crd.UID)
	}), err
}

type servingInformer struct {
	cache.SharedIndexInformer

	of *servingDefinitions
}

// AddEventHandler registers the handler of custom resources.
func (i servingInformer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	i.of.handler = h
	//nolint:wrapcheck // only adapts events
	return i.SharedIndexInformer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { h.OnAdd(i.of.forHandler(obj), false) },
		UpdateFunc: func(old, obj any) { h.OnUpdate(old, i.of.forHandler(obj)) },
		DeleteFunc: h.OnDelete,
	})
}

// forHandler completes the definition of an event. The handler compares it with the one it has created
// a storage from, if it has: that one uses its schemas, so they are available.
func (s *servingDefinitions) forHandler(obj any) any {
	crd := definitionOf(obj)
	if crd == nil || !s.inUse(crd.UID) {
		return obj
	}
	out, err := s.complete(crd.Name)
	if err != nil {
		return obj // Differs from the handler's. It drops the storage and creates another on request.
	}
	return out
}

// dropUnneeded makes the handler drop the storages that keep rejects.
func (s *servingDefinitions) dropUnneeded() { s.handler.OnDelete(nil) }
