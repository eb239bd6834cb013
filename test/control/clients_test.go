package control

import (
	"context"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"berth/control/registry"
)

// TestInformersOfAllKinds starts client-go's shared informers for all supported kinds and observes
// a write with one of them.
func TestInformersOfAllKinds(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	factory := informers.NewSharedInformerFactory(s.Client, 0)
	for _, kind := range registry.All() {
		if _, err := factory.ForResource(kind.GroupVersion.WithResource(kind.Resource)); err != nil {
			t.Fatalf("informer of %s: %v", kind.Resource, err)
		}
	}
	observed := make(chan struct{})
	_, err := factory.Core().V1().ConfigMaps().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if o := obj.(metav1.Object); o.GetNamespace() == s.Namespace && o.GetName() == "new" {
				close(observed)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	defer cancel()
	for kind, ok := range factory.WaitForCacheSync(ctx.Done()) {
		if !ok {
			t.Errorf("informer of %s did not sync", kind)
		}
	}
	createConfigMap(t, s, s.Namespace, configMap("new"))
	select {
	case <-observed:
	case <-ctx.Done():
		t.Fatal("informer did not deliver an add event for the new object")
	}
}

// TestControllersReadUncompressed watches ConfigMaps with the clients of the controllers and of the administrator.
// The server compresses a streaming list, but not for its own controllers.
func TestControllersReadUncompressed(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	for client, config := range map[string]*restclient.Config{"controllers": s.Loopback, "administrator": s.Config} {
		c, err := restclient.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host+
			"/api/v1/configmaps?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&"+
			"allowWatchBookmarks=true", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		response, err := c.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if _, err := io.ReadFull(response.Body, make([]byte, 100)); err != nil || response.StatusCode != http.StatusOK {
			t.Errorf("watch of the %s: status %s, %v", client, response.Status, err)
		}
		if want := client == "administrator"; response.Uncompressed != want {
			t.Errorf("watch of the %s: got compressed %v, want %v", client, response.Uncompressed, want)
		}
	}
}

// TestAllKindsAreServed lists every resource found by discovery.
func TestAllKindsAreServed(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	_, lists, err := s.Client.Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	found := map[schema.GroupResource]metav1.APIResource{}
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			found[schema.GroupResource{Group: version.Group, Resource: r.Name}] = r
		}
	}
	for _, kind := range registry.All() {
		r, ok := found[kind.GroupResource()]
		if !ok {
			t.Errorf("%s is not served", kind.GroupResource())
			continue
		}
		for _, verb := range []string{"create", "delete", "deletecollection", "get", "list", "patch", "update",
			"watch"} {
			// As in Kubernetes, namespaces do not support deletecollection.
			want := kind.Resource != "namespaces" || verb != "deletecollection"
			if slices.Contains(r.Verbs, verb) != want {
				t.Errorf("%s: verb %s: served %v, want %v", kind.Resource, verb, !want, want)
			}
		}
		if r.Namespaced == kind.ClusterScoped || r.SingularName != kind.Singular || !slices.Equal(r.ShortNames,
			kind.ShortNames) {
			t.Errorf("%s: got %+v from discovery", kind.Resource, r)
		}
		for sub, want := range map[string]bool{"status": kind.Status, "scale": kind.Scale != nil} {
			if _, has := found[schema.GroupResource{Group: kind.GroupVersion.Group, Resource: kind.Resource + "/" +
				sub}]; has != want {
				t.Errorf("%s/%s: served %v, want %v", kind.Resource, sub, has, want)
			}
		}
	}
}

// TestLeaderElection stops the leader of two candidates. The other one becomes the leader.
func TestLeaderElection(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	leaders := make(chan string, 10)
	first, stopFirst := candidate(t, s.Client, "first", leaders)
	if got := <-leaders; got != "first" {
		t.Fatalf("got leader %s, want first", got)
	}
	second, stopSecond := candidate(t, s.Client, "second", leaders)
	stopFirst()
	<-first
	select {
	case got := <-leaders:
		if got != "second" {
			t.Errorf("got leader %s, want second", got)
		}
	case <-time.After(4 * time.Minute):
		t.Error("no new leader within four minutes")
	}
	stopSecond()
	<-second
}

// candidate takes part in a leader election until stop is called. done is closed after it has exited.
func candidate(t *testing.T, client kubernetes.Interface, name string,
	leaders chan<- string) (done chan struct{}, stop func()) {
	t.Helper()
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, "kube-system", "leader-election", client.CoreV1(),
		client.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: name})
	if err != nil {
		t.Fatal(err)
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: 20 * time.Second, RenewDeadline: 15 * time.Second,
		RetryPeriod:     200 * time.Millisecond,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) { leaders <- name },
			OnStoppedLeading: func() {}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done = make(chan struct{})
	go func() { defer close(done); elector.Run(ctx) }()
	return done, stop
}
