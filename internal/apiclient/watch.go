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

// WatchOptions configures Watch. OnReplace, OnUpdate and OnDelete are called by one goroutine, one
// after another, and must not block for long.
type WatchOptions struct {
	Resource
	Namespace     string                 // empty: all namespaces, or a cluster-scoped resource
	FieldSelector fields.Selector        // nil: everything
	Transform     func(runtime.Object)   // removes unneeded fields; may be nil
	OnReplace     func([]runtime.Object) // the complete list, initially and after a gap
	OnUpdate      func(runtime.Object)   // added or modified
	OnDelete      func(runtime.Object)   // the last state of a deleted object
	OnError       func(error)            // the read failed and is retried; may be nil
}

// ByName selects an object by its name. Nodes are authorized to read the Secrets and ConfigMaps of
// their pods by name.
func ByName(name string) fields.Selector {
	return fields.OneTermEqualSelector(metav1.ObjectNameField, name)
}

// Retry intervals: short at first, because authorization may be granted a moment later, and never so
// long that the recovery of a server is missed.
const (
	minRetryInterval = 50 * time.Millisecond
	maxRetryInterval = 5 * time.Second
)

// Watch reports the objects and their changes until ctx ends.
func (c *Client) Watch(ctx context.Context, f WatchOptions) {
	quiet := klog.Logger{}
	r := cache.NewReflectorWithOptions(c.listWatch(f), f.one(), &storeAdapter{f}, cache.ReflectorOptions{
		Name: f.Name, Logger: &quiet,
		Backoff: &wait.Backoff{Duration: minRetryInterval, Factor: 2, Jitter: 0.5, Steps: 8, Cap: maxRetryInterval},
	})
	r.RunWithContext(klog.NewContext(ctx, quiet)) // OnError reports failures
}

// listWatch lists and watches the resource. Reflectors retry some failures silently, and they are
// reported here.
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
			err := rest.Get().
				NamespaceIfScoped(f.Namespace, f.Namespace != "").
				Resource(f.Name).
				VersionedParams(&o, c.parameters).
				Timeout(requestTimeout).
				Do(ctx).
				Into(list)
			f.failed(ctx, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			choose(&o)
			o.Watch = true
			w, err := rest.Get().
				NamespaceIfScoped(f.Namespace, f.Namespace != "").
				Resource(f.Name).
				VersionedParams(&o, c.parameters).
				Watch(ctx)
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

// storeAdapter passes the changes that a reflector makes to its store to the callbacks.
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

// trim removes what no reader of the agent needs. Managed fields are often the largest part of an
// object.
func (t *storeAdapter) trim(o runtime.Object) {
	if m, err := meta.Accessor(o); err == nil {
		m.SetManagedFields(nil)
	}
	if t.f.Transform != nil {
		t.f.Transform(o)
	}
}
