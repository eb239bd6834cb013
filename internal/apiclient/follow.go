package apiclient

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// WatchOptions is what Follow follows, and who hears of it. All, Put and Drop are
// called by one goroutine, one after the other, and must not block for long.
type WatchOptions struct {
	Resource
	Namespace     string                 // empty: all, or none for what has no namespace
	FieldSelector fields.Selector        // nil: everything
	Transform     func(runtime.Object)   // takes out what nobody needs before it is kept; nil: nothing
	OnReplace     func([]runtime.Object) // everything that there is: at first, and after a gap
	OnUpdate      func(runtime.Object)   // new or changed
	OnDelete      func(runtime.Object)   // deleted; as it was last
	OnError       func(error)            // it cannot be read now and is tried again; what was told stays. nil: nobody
}

// ByName selects an object by its name, which is how a node may read the Secrets
// and ConfigMaps of its pods.
func ByName(name string) fields.Selector {
	return fields.OneTermEqualSelector(metav1.ObjectNameField, name)
}

// Waits between tries: soon at first, for what is not allowed yet may be a moment
// later, and never so long that a server that came back is not noticed.
const (
	retryFirst = 50 * time.Millisecond
	retryLast  = 5 * time.Second
)

// Watch tells what there is and how it changes until ctx ends.
func (c *Client) Watch(ctx context.Context, f WatchOptions) {
	quiet := klog.Logger{}
	r := cache.NewReflectorWithOptions(c.listWatch(f), f.one(), &storeAdapter{f}, cache.ReflectorOptions{
		Name: f.Name, Logger: &quiet,
		Backoff: &wait.Backoff{Duration: retryFirst, Factor: 2, Jitter: 0.5, Steps: 8, Cap: retryLast},
	})
	r.RunWithContext(klog.NewContext(ctx, quiet)) // Failed tells what goes wrong
}

// listWatch asks for what is followed. A reflector tries some failures again
// without a word, so they are told here.
func (c *Client) listWatch(f WatchOptions) *cache.ListWatch {
	rest := c.groups[f.Group]
	choose := func(o *metav1.ListOptions) {
		if f.FieldSelector != nil {
			o.FieldSelector = f.FieldSelector.String()
		}
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			choose(&o)
			list := f.list()
			err := rest.Get().NamespaceIfScoped(f.Namespace, f.Namespace != "").Resource(f.Name).VersionedParams(&o, c.parameters).
				Timeout(requestBound).Do(ctx).Into(list)
			f.failed(ctx, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			choose(&o)
			o.Watch = true
			w, err := rest.Get().NamespaceIfScoped(f.Namespace, f.Namespace != "").Resource(f.Name).VersionedParams(&o, c.parameters).Watch(ctx)
			f.failed(ctx, err)
			return w, err
		},
	}
}

func (f WatchOptions) failed(ctx context.Context, err error) {
	if f.OnError != nil && err != nil && ctx.Err() == nil {
		f.OnError(fmt.Errorf("read %s: %w", f.Name, err))
	}
}

// storeAdapter passes on what a reflector puts into its store.
type storeAdapter struct{ f WatchOptions }

func (t *storeAdapter) Add(obj any) error    { return t.put(obj) }
func (t *storeAdapter) Update(obj any) error { return t.put(obj) }
func (t *storeAdapter) Resync() error        { return nil }

func (t *storeAdapter) put(obj any) error {
	if o, ok := obj.(runtime.Object); ok {
		t.trim(o)
		t.f.OnUpdate(o)
	}
	return nil
}

func (t *storeAdapter) Delete(obj any) error {
	if o, ok := obj.(runtime.Object); ok {
		t.f.OnDelete(o)
	}
	return nil
}

func (t *storeAdapter) Replace(list []any, _ string) error {
	all := make([]runtime.Object, 0, len(list))
	for _, obj := range list {
		if o, ok := obj.(runtime.Object); ok {
			t.trim(o)
			all = append(all, o)
		}
	}
	t.f.OnReplace(all)
	return nil
}

func (t *storeAdapter) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		if o, ok := obj.(runtime.Object); ok {
			t.trim(o)
		}
		return obj, nil
	}
}

// trim takes out what no reader of the agent needs; the field managers are often
// the biggest part of an object.
func (t *storeAdapter) trim(o runtime.Object) {
	if m, err := meta.Accessor(o); err == nil {
		m.SetManagedFields(nil)
	}
	if t.f.Transform != nil {
		t.f.Transform(o)
	}
}
