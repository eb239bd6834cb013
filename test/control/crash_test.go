package control

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

const (
	writers = 4
	// names per writer: few, so that objects are changed and deleted often.
	names = 8
)

// writtenKinds are a cached and an uncached kind. The server caches ConfigMaps in memory, without the
// history from before its start: it rejects a watch from an older resource version, and the client
// lists again. The server does not cache LimitRanges.
var writtenKinds = [...]schema.GroupVersionKind{
	{Version: "v1", Kind: "ConfigMap"},
	{Version: "v1", Kind: "LimitRange"},
}

// dynamicClient returns the administrator's dynamic client. It also works after a restart of the server.
func dynamicClient(t *testing.T, p *Process) dynamic.Interface {
	t.Helper()
	config, err := p.Config(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// resourceClient returns the client for a kind in the default namespace.
func resourceClient(client dynamic.Interface, kind schema.GroupVersionKind) dynamic.ResourceInterface {
	resource := map[string]string{"ConfigMap": "configmaps", "LimitRange": "limitranges"}[kind.Kind]
	return client.Resource(kind.GroupVersion().WithResource(resource)).Namespace(metav1.NamespaceDefault)
}

// kindOfWriter returns the kind that a writer writes.
func kindOfWriter(writer int) schema.GroupVersionKind { return writtenKinds[writer%len(writtenKinds)] }

// valueOf returns the value in an object's annotation.
func valueOf(object metav1.Object) string { return object.GetAnnotations()["value"] }

// model is the expected state of an object. Only one writer writes the object.
type model struct {
	value string // "": the object does not exist
	// unacknowledged is the value of a write without a response, which may be stored. It is valid if
	// uncertain is set.
	unacknowledged string
	uncertain      bool
}

// killCount returns how often the server is killed: 20 times, and 100 times with BERTH_TORTURE.
func killCount() int {
	if os.Getenv("BERTH_TORTURE") != "" {
		return 100
	}
	return 20
}

// TestAcknowledgedWritesSurviveKills kills the server during writes, see killCount. After each restart, the
// store has all acknowledged writes, and no writes that no client sent. Clients resume their watches and
// observe the final state.
func TestAcknowledgedWritesSurviveKills(t *testing.T) {
	t.Parallel()
	kills := killCount()
	p := Launch(t)
	ctx := t.Context()
	if _, err := p.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	client := dynamicClient(t, p)
	followers := make([]*follower, len(writtenKinds))
	for i, kind := range writtenKinds {
		followers[i] = follow(t, resourceClient(client, kind))
	}
	all := make([]map[string]*model, writers)
	for w := range all {
		all[w] = map[string]*model{}
	}
	var acknowledged int
	for round := range kills {
		acknowledged += writeUntilKilled(t, p, client, all, round)
		p.Start(t)
		if _, err := p.WaitReady(ctx); err != nil {
			t.Fatalf("after kill %d: %v", round+1, err)
		}
		checkStoredObjects(t, client, all, round)
	}
	t.Logf("%d kills, %d acknowledged writes", kills, acknowledged)
	if acknowledged < kills*writers {
		t.Errorf("got %d acknowledged writes in %d rounds, want at least %d", acknowledged, kills, kills*writers)
	}
	for i, kind := range writtenKinds {
		f := followers[i]
		waitForFollower(t, f, all, kind)
		t.Logf("follower of %ss listed %d times and watched %d times", kind.Kind, f.listed, f.resumed)
		// The follower of a cached kind lists once per server start, and at most once more while the
		// server fills its cache.
		most := map[bool]int{true: 2 * (kills + 1), false: 1}[kind.Kind == "ConfigMap"]
		if f.listed > most || f.resumed < kills/2 { // a kill may precede the resumption
			t.Errorf("follower of %ss: got %d lists, want at most %d, with %d watches over %d kills",
				kind.Kind, f.listed, most, f.resumed, kills)
		}
	}
}

// writeUntilKilled runs all writers until the server is killed and returns the number of
// acknowledged writes.
func writeUntilKilled(t *testing.T, p *Process, client dynamic.Interface, all []map[string]*model, round int) int {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// The kill follows a random number of writes, not a time, so that writes are in progress on a slow machine too.
	killAfter := int64(writers + rand.IntN(4*writers))
	var acknowledged atomic.Int64
	enough := make(chan struct{})
	var group sync.WaitGroup
	for w := range writers {
		random := rand.New(rand.NewPCG(uint64(round), uint64(w)))
		group.Go(func() {
			for writeOnce(ctx, client, all[w], w, random) {
				if acknowledged.Add(1) == killAfter {
					close(enough)
				}
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		group.Wait()
	}()
	select {
	case <-enough:
	case <-ended: // the server failed: the checks of the caller show how
	}
	p.Kill(t)
	cancel()
	<-ended
	return int(acknowledged.Load())
}

// writeOnce performs one random operation and records the result. It returns false if the server did
// not acknowledge it.
func writeOnce(ctx context.Context, client dynamic.Interface, models map[string]*model, writer int,
	random *rand.Rand) bool {
	name := fmt.Sprintf("w%d-%d", writer, random.IntN(names))
	m := models[name]
	if m == nil {
		m = &model{}
		models[name] = m
	}
	next := strconv.FormatUint(random.Uint64(), 36)
	objects, object := resourceClient(client, kindOfWriter(writer)), &unstructured.Unstructured{}
	object.SetGroupVersionKind(kindOfWriter(writer))
	object.SetName(name)
	object.SetAnnotations(map[string]string{"value": next})
	var err error
	switch {
	case m.value == "":
		_, err = objects.Create(ctx, object, metav1.CreateOptions{})
	case random.IntN(3) == 0:
		next = ""
		err = objects.Delete(ctx, name, metav1.DeleteOptions{})
	default:
		_, err = objects.Update(ctx, object, metav1.UpdateOptions{})
	}
	if err != nil {
		m.unacknowledged, m.uncertain = next, true
		return false
	}
	m.value = next
	return true
}

// checkStoredObjects compares all objects with their models and resolves unacknowledged writes.
func checkStoredObjects(t *testing.T, client dynamic.Interface, all []map[string]*model, round int) {
	t.Helper()
	for w, models := range all {
		for name, m := range models {
			got := ""
			object, err := resourceClient(client, kindOfWriter(w)).Get(t.Context(), name, metav1.GetOptions{})
			switch {
			case err == nil:
				got = valueOf(object)
			case !apierrors.IsNotFound(err):
				t.Fatalf("after kill %d: get %s: %v", round+1, name, err)
			}
			if got != m.value && (!m.uncertain || got != m.unacknowledged) {
				t.Fatalf("after kill %d: %s: got %q, acknowledged %q (unacknowledged %v: %q)", round+1, name, got,
					m.value,
					m.uncertain, m.unacknowledged)
			}
			m.value, m.uncertain = got, false
		}
	}
}

// waitForFollower waits until the copy of the follower matches the models.
func waitForFollower(t *testing.T, f *follower, all []map[string]*model, kind schema.GroupVersionKind) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	for {
		problem := ""
		for w, models := range all {
			if kindOfWriter(w) == kind && problem == "" {
				problem = f.difference(models)
			}
		}
		if problem == "" {
			return
		}
		if pause(ctx) != nil {
			t.Fatalf("follower: %s", problem)
		}
	}
}
