package control

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
)

// follower maintains a copy of the objects of a kind in a namespace with a list and a watch. It resumes
// an interrupted watch immediately, and lists again only if the resource version has expired.
type follower struct {
	objects dynamic.ResourceInterface
	mu      sync.Mutex
	values  map[string]string
	resumed int // watches resumed without a list
	listed  int
}

// follow starts a follower. The test's Cleanup stops it.
func follow(t *testing.T, objects dynamic.ResourceInterface) *follower {
	f := &follower{objects: objects}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var done sync.WaitGroup
	done.Go(func() { f.run(ctx) })
	t.Cleanup(func() { cancel(); done.Wait() })
	return f
}

func (f *follower) run(ctx context.Context) {
	version := ""
	for ctx.Err() == nil {
		if version == "" {
			version = f.list(ctx)
		} else {
			version = f.watch(ctx, version)
		}
		_ = pause(ctx) // the loop condition checks ctx
	}
}

// list replaces the copy and returns the resource version to watch from.
func (f *follower) list(ctx context.Context) string {
	list, err := f.objects.List(ctx, metav1.ListOptions{})
	if err != nil {
		return ""
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listed++
	f.values = map[string]string{}
	for i := range list.Items {
		f.values[list.Items[i].GetName()] = valueOf(&list.Items[i])
	}
	return list.GetResourceVersion()
}

// watch applies events until the watch ends and returns the resource version to resume from.
func (f *follower) watch(ctx context.Context, version string) string {
	w, err := f.objects.Watch(ctx, metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true})
	if err != nil {
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			return ""
		}
		return version
	}
	defer w.Stop()
	f.mu.Lock()
	f.resumed++
	f.mu.Unlock()
	for e := range w.ResultChan() {
		if e.Type == watch.Error {
			if status, ok := apierrors.FromObject(e.Object).(apierrors.APIStatus); ok &&
				status.Status().Code == http.StatusGone {
				return ""
			}
			return version
		}
		if o, ok := e.Object.(*unstructured.Unstructured); ok {
			version = o.GetResourceVersion()
			f.apply(e.Type, o)
		}
	}
	return version
}

// apply applies a watch event to the copy.
func (f *follower) apply(kind watch.EventType, o metav1.Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch kind {
	case watch.Added, watch.Modified:
		f.values[o.GetName()] = valueOf(o)
	case watch.Deleted:
		delete(f.values, o.GetName())
	}
}

// difference describes an object whose copy does not match its model, or returns "".
func (f *follower) difference(models map[string]*model) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, m := range models {
		if f.values[name] != m.value {
			return fmt.Sprintf("%s: got %q, want %q", name, f.values[name], m.value)
		}
	}
	return ""
}
