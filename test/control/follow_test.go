package control

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// follower keeps a copy of the ConfigMaps of namespace default by one watch,
// which it takes up where it ended, at once and as often as needed. It lists
// again only when the server says that the place is too far back.
type follower struct {
	client  kubernetes.Interface
	mu      sync.Mutex
	values  map[string]string
	resumed int // watches taken up without a list
	listed  int
}

// follow starts a follower, which the test's Cleanup ends.
func follow(t *testing.T, client kubernetes.Interface) *follower {
	f := &follower{client: client}
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
		_ = pause(ctx) // the loop's condition tells
	}
}

// list takes everything anew and answers from where to watch.
func (f *follower) list(ctx context.Context) string {
	list, err := f.client.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return ""
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listed++
	f.values = map[string]string{}
	for _, c := range list.Items {
		f.values[c.Name] = c.Data["value"]
	}
	return list.ResourceVersion
}

// watch follows until the watch ends and answers from where to go on.
func (f *follower) watch(ctx context.Context, version string) string {
	w, err := f.client.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true})
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
		switch o := e.Object.(type) {
		case *metav1.Status:
			if o.Code == http.StatusGone {
				return ""
			}
			return version
		case *corev1.ConfigMap:
			version = o.ResourceVersion
			f.take(e.Type, o)
		}
	}
	return version
}

func (f *follower) take(kind watch.EventType, c *corev1.ConfigMap) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch kind {
	case watch.Added, watch.Modified:
		f.values[c.Name] = c.Data["value"]
	case watch.Deleted:
		delete(f.values, c.Name)
	}
}

// disagreement names an object that the follower sees otherwise than it is.
func (f *follower) disagreement(all []map[string]*model) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, mine := range all {
		for name, m := range mine {
			if f.values[name] != m.value {
				return fmt.Sprintf("%s is %q, stored is %q", name, f.values[name], m.value)
			}
		}
	}
	return ""
}
