package control_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/metrics/legacyregistry"

	"berth/control"
	"berth/control/controllers"
)

// TestGarbageCollectorSharesInformers: the garbage collector uses the informers of other components, and starts none
// with complete objects that nothing else uses. Each resource has one watch.
func TestGarbageCollectorSharesInformers(t *testing.T) {
	var with map[reflect.Type]bool
	runServer(t, []string{"*"}, func(ctx context.Context, s *control.Server) {
		if err := waitForCollection(ctx, s.Client); err != nil {
			t.Error(err)
			return
		}
		with = s.Informers.WaitForCacheSync(ctx.Done())
		watches, err := watchesByResource()
		if err != nil {
			t.Error(err)
		}
		for _, resource := range slices.Sorted(maps.Keys(watches)) {
			want := 1
			if resource == "secrets" {
				want = 2 // another one of bootstrap tokens only
			}
			if watches[resource] != want {
				t.Errorf("%s has %d watches, want %d", resource, watches[resource], want)
			}
		}
		if watches["jobs.batch"] == 0 || watches["podtemplates"] == 0 {
			t.Errorf("got watches %v, want some of jobs and podtemplates", watches)
		}
	})
	runServer(t, []string{"*", "-" + controllers.GarbageCollector}, func(ctx context.Context, s *control.Server) {
		started := func() bool { // the other controllers start one by one
			without := s.Informers.WaitForCacheSync(ctx.Done())
			maps.DeleteFunc(with, func(informer reflect.Type, _ bool) bool {
				_, used := without[informer]
				return used
			})
			return len(with) == 0
		}
		for !started() && ctx.Err() == nil {
			time.Sleep(50 * time.Millisecond)
		}
		for informer := range with {
			t.Errorf("only the garbage collector uses the informer of %v, and it needs only metadata", informer)
		}
	})
}

// waitForCollection waits until the garbage collector has deleted an object without an owner. It does so when its
// informers are synced.
func waitForCollection(ctx context.Context, client kubernetes.Interface) error {
	configs := client.CoreV1().ConfigMaps(metav1.NamespaceDefault)
	_, err := configs.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name:            "orphan",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "gone", UID: "x"}},
	}}, metav1.CreateOptions{})
	for err == nil {
		if _, err = configs.Get(ctx, "orphan", metav1.GetOptions{}); err == nil {
			time.Sleep(50 * time.Millisecond)
		}
	}
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("wait for garbage collection: %w", err)
	}
	return nil
}

// watchesByResource returns the number of watches in progress.
func watchesByResource() (map[string]int, error) {
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		return nil, fmt.Errorf("gather metrics: %w", err)
	}
	out := map[string]int{}
	for _, family := range families {
		if family.GetName() != "apiserver_longrunning_requests" {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, pair := range m.GetLabel() {
				labels[pair.GetName()] = pair.GetValue()
			}
			name := labels["resource"]
			if labels["group"] != "" {
				name += "." + labels["group"]
			}
			if n := int(m.GetGauge().GetValue()); labels["verb"] == "WATCH" && n > 0 {
				out[name] += n
			}
		}
	}
	return out, nil
}

// runServer runs a server with the given controllers while use runs.
func runServer(t *testing.T, enabled []string, use func(ctx context.Context, s *control.Server)) {
	t.Helper()
	c := control.Default()
	c.DataDir, c.Listen, c.UnsafeNoFsync, c.Controllers = t.TempDir(), "127.0.0.1:0", true, enabled
	c.Log = slog.New(slog.DiscardHandler)
	server, err := control.New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), testTimeout)
	defer stop()
	runCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	runErr := make(chan error, 1)
	go func() { runErr <- server.Run(runCtx) }() // ends below
	select {
	case <-server.Ready():
		use(ctx, server)
	case <-ctx.Done():
		t.Error("server not ready")
	}
	cancel()
	if err := <-runErr; err != nil {
		t.Errorf("server returned an error: %v", err)
	}
}
