package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/tools/cache"

	"berth/workloads"
)

// objectType reads and writes the objects of one type for the reconciler.
type objectType struct {
	goType   reflect.Type
	zero     runtime.Object // of the type
	informer cache.SharedIndexInformer
	// ignoreOwnedAdds is set if an added object that has a controller does not queue it.
	ignoreOwnedAdds bool

	create func(ctx context.Context, obj workloads.Object) (workloads.Object, error)
	update func(ctx context.Context, obj workloads.Object) (workloads.Object, error)
	patch  func(ctx context.Context, base workloads.Object, body []byte) (workloads.Object, error)
	remove func(ctx context.Context, obj workloads.Object, propagation metav1.DeletionPropagation) error
	get    func(ctx context.Context, namespace, name string) (workloads.Object, error)
}

// typedClient has the methods of client-go's typed clients that the reconciler needs.
type typedClient[T workloads.Object] interface {
	Create(ctx context.Context, obj T, options metav1.CreateOptions) (T, error)
	Update(ctx context.Context, obj T, options metav1.UpdateOptions) (T, error)
	Patch(ctx context.Context, name string, patchType types.PatchType, body []byte, options metav1.PatchOptions,
		subresources ...string) (T, error)
	Delete(ctx context.Context, name string, options metav1.DeleteOptions) error
	Get(ctx context.Context, name string, options metav1.GetOptions) (T, error)
}

// newObjectType returns the type of an informer. client returns the typed client of a namespace, for example
// Client.CoreV1().Pods.
func newObjectType[T workloads.Object, C typedClient[T]](informer cache.SharedIndexInformer,
	client func(namespace string) C) *objectType {
	return &objectType{
		goType: reflect.TypeFor[T](), zero: newOf[T](), informer: informer,
		create: func(ctx context.Context, obj workloads.Object) (workloads.Object, error) {
			return client(obj.GetNamespace()).Create(ctx, mustBe[T](obj), metav1.CreateOptions{})
		},
		update: func(ctx context.Context, obj workloads.Object) (workloads.Object, error) {
			return client(obj.GetNamespace()).Update(ctx, mustBe[T](obj), metav1.UpdateOptions{})
		},
		patch: func(ctx context.Context, base workloads.Object, body []byte) (workloads.Object, error) {
			return client(base.GetNamespace()).Patch(ctx, base.GetName(), types.StrategicMergePatchType, body,
				metav1.PatchOptions{})
		},
		remove: func(ctx context.Context, obj workloads.Object, propagation metav1.DeletionPropagation) error {
			uid := obj.GetUID()
			options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
			if propagation != "" {
				options.PropagationPolicy = &propagation
			}
			return client(obj.GetNamespace()).Delete(ctx, obj.GetName(), options)
		},
		get: func(ctx context.Context, namespace, name string) (workloads.Object, error) {
			return client(namespace).Get(ctx, name, metav1.GetOptions{})
		},
	}
}

// newOf returns a new object of a type, which is a pointer to a struct.
func newOf[T workloads.Object]() runtime.Object {
	out, _ := reflect.TypeAssert[runtime.Object](reflect.New(reflect.TypeFor[T]().Elem()))
	return out
}

// newRevisionType returns the type of ControllerRevisions. A revision that is created under a controller by others is
// left alone until something else changes, as by the controllers of Kubernetes. The conformance tests rely on it.
func newRevisionType(c Config) *objectType {
	t := newObjectType[*appsv1.ControllerRevision](c.Informers.Apps().V1().ControllerRevisions().Informer(),
		c.Client.AppsV1().ControllerRevisions)
	t.ignoreOwnedAdds = true
	return t
}

// mustBe returns an object as its type. The reconciler finds the objectType by the type of the object.
func mustBe[T workloads.Object](obj workloads.Object) T {
	as, ok := obj.(T)
	if !ok {
		panic(fmt.Sprintf("got a %T, want a %v", obj, reflect.TypeFor[T]()))
	}
	return as
}

// patchBody returns the strategic merge patch of a write. The patch applies only to the object with the UID of the
// base and, with IfUnchanged, to its resource version. Elements of lists such as owner references and finalizers are
// changed one by one, so that concurrent changes of other elements are kept.
func patchBody(w workloads.Write) ([]byte, error) {
	before, err := json.Marshal(w.Base)
	if err != nil {
		return nil, fmt.Errorf("encode patch: %w", err)
	}
	after, err := json.Marshal(w.Object)
	if err != nil {
		return nil, fmt.Errorf("encode patch: %w", err)
	}
	body, err := strategicpatch.CreateTwoWayMergePatch(before, after, w.Base)
	if err != nil {
		return nil, fmt.Errorf("create patch: %w", err)
	}
	var patch map[string]any
	if err := json.Unmarshal(body, &patch); err != nil {
		return nil, fmt.Errorf("decode patch: %w", err)
	}
	metadata, ok := patch["metadata"].(map[string]any)
	if !ok {
		metadata = map[string]any{}
		patch["metadata"] = metadata
	}
	metadata["uid"] = w.Base.GetUID()
	if w.IfUnchanged {
		metadata["resourceVersion"] = w.Base.GetResourceVersion()
	}
	if body, err = json.Marshal(patch); err != nil {
		return nil, fmt.Errorf("encode patch: %w", err)
	}
	return body, nil
}

// stored returns the object in the informer with the given key, or nil.
func (r *objectType) stored(key string) workloads.Object {
	obj, found, err := r.informer.GetIndexer().GetByKey(key)
	if err != nil || !found {
		return nil
	}
	out, _ := obj.(workloads.Object) // nil for another type
	return out
}

// indexByController adds the index that childrenOf uses. It is idempotent.
func indexByController(informer cache.SharedIndexInformer) error {
	return addIndex(informer, controllerIndex, controllerKeys)
}

// controllerKeys returns the keys of an object in controllerIndex.
func controllerKeys(obj any) ([]string, error) {
	m, ok := obj.(metav1.Object)
	if !ok {
		return nil, nil
	}
	if ref := metav1.GetControllerOfNoCopy(m); ref != nil {
		return []string{string(ref.UID)}, nil
	}
	return []string{orphanKey(m.GetNamespace())}, nil
}

// childrenOf returns the objects of an informer that the owner controls. The informer must be indexed.
func childrenOf[T workloads.Object](informer cache.SharedIndexInformer, owner workloads.Object) []T {
	return byIndex[T](informer, controllerIndex, string(owner.GetUID()))
}

// childrenAndOrphansOf returns the objects of an informer that the owner controls, followed by those of its
// namespace that have no controller. The informer must be indexed.
func childrenAndOrphansOf[T workloads.Object](informer cache.SharedIndexInformer, owner workloads.Object) []T {
	return slices.Concat(byIndex[T](informer, controllerIndex, string(owner.GetUID())),
		byIndex[T](informer, controllerIndex, orphanKey(owner.GetNamespace())))
}

func byIndex[T workloads.Object](informer cache.SharedIndexInformer, index, key string) []T {
	list, err := informer.GetIndexer().ByIndex(index, key)
	if err != nil {
		return nil // the index exists
	}
	out := make([]T, 0, len(list))
	for _, obj := range list {
		if o, ok := obj.(T); ok {
			out = append(out, o)
		}
	}
	return out
}

// namespaced returns the objects of an informer in a namespace.
func namespaced[T workloads.Object](informer cache.SharedIndexInformer, namespace string) []T {
	return byIndex[T](informer, cache.NamespaceIndex, namespace)
}

// controllerIn returns the object in the informer that controls a child, if it is of the given kind.
func controllerIn[T workloads.Object](informer cache.SharedIndexInformer, kind string,
	child metav1.Object) (controller T, found bool) {
	ref := metav1.GetControllerOfNoCopy(child)
	if ref == nil || ref.Kind != kind {
		return controller, false
	}
	obj, exists, err := informer.GetIndexer().GetByKey(child.GetNamespace() + "/" + ref.Name)
	if err != nil || !exists {
		return controller, false
	}
	controller, found = obj.(T)
	return controller, found && controller.GetUID() == ref.UID
}
