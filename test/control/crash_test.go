package control

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

const (
	kills   = 50
	writers = 4
	// names per writer: few, so that objects are changed and deleted often.
	names = 8
)

// The server caches ConfigMaps in memory, without the history from before its start: a watch from
// an older resource version is rejected, and the client lists again. LimitRanges are not cached.
var writtenKinds = [...]schema.GroupVersionKind{
	{Version: "v1", Kind: "ConfigMap"},
	{Version: "v1", Kind: "LimitRange"},
}

// anyKind is the administrator's dynamic client, which works across restarts of the server.
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

// of returns the client for a kind.
func resourceClient(client dynamic.Interface, kind schema.GroupVersionKind) dynamic.ResourceInterface {
	resource := map[string]string{"ConfigMap": "configmaps", "LimitRange": "limitranges"}[kind.Kind]
	return client.Resource(kind.GroupVersion().WithResource(resource)).Namespace(metav1.NamespaceDefault)
}

// writes returns the kind that a writer writes.
func kindOfWriter(writer int) schema.GroupVersionKind { return writtenKinds[writer%len(writtenKinds)] }

// valueOf returns the value an object was written with.
func valueOf(object metav1.Object) string { return object.GetAnnotations()["value"] }

// model is what a writer knows about an object that only it writes.
type model struct {
	value string // "": does not exist
	// maybe is the value of an unacknowledged write, which may have been stored.
	unacknowledged string
	uncertain      bool
}

// TestAcknowledgedWritesSurviveKills kills the server 50 times during writes. After each restart,
// all acknowledged writes are there and no others. Clients that were watching the whole time resume
// their watches and see the same state in the end.
func TestAcknowledgedWritesSurviveKills(t *testing.T) {
	t.Parallel()
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
		t.Errorf("only %d writes acknowledged in %d rounds: not enough for the test", acknowledged, kills)
	}
	for i, kind := range writtenKinds {
		f := followers[i]
		waitForFollower(t, f, all, kind)
		t.Logf("the watching client of %ss listed %d times and watched %d times", kind.Kind, f.listed, f.resumed)
		// A watch of a cached kind is restarted once per server start, and at most once more while
		// the cache is filled.
		most := map[bool]int{true: 2 * (kills + 1), false: 1}[kind.Kind == "ConfigMap"]
		if f.listed > most || f.resumed < kills/2 { // the kill may come before the last resume
			t.Errorf("the watching client of %ss listed %d times, want at most %d, with %d watches over %d kills",
				kind.Kind, f.listed, most, f.resumed, kills)
		}
	}
}

// writeUntilKilled runs all writers until the server is killed and returns the number of
// acknowledged writes.
func writeUntilKilled(t *testing.T, p *Process, client dynamic.Interface, all []map[string]*model, round int) int {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	counts := make([]int, writers)
	var group sync.WaitGroup
	for w := range writers {
		random := rand.New(rand.NewPCG(uint64(round), uint64(w)))
		group.Go(func() {
			for {
				if !writeOnce(ctx, client, all[w], w, random) {
					return
				}
				counts[w]++
			}
		})
	}
	// Long enough for writes to be in progress, and different each time.
	timer := time.NewTimer(time.Duration(50+rand.IntN(150)) * time.Millisecond)
	<-timer.C
	p.Kill(t)
	cancel()
	group.Wait()
	sum := 0
	for _, n := range counts {
		sum += n
	}
	return sum
}

// write performs one random operation and records the result. It returns false if the server did
// not respond.
func writeOnce(ctx context.Context, client dynamic.Interface, mine map[string]*model, writer int, random *rand.Rand) bool {
	name := fmt.Sprintf("w%d-%d", writer, random.IntN(names))
	m := mine[name]
	if m == nil {
		m = &model{}
		mine[name] = m
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

// compare reads all objects and resolves unacknowledged writes.
func checkStoredObjects(t *testing.T, client dynamic.Interface, all []map[string]*model, round int) {
	t.Helper()
	for w, mine := range all {
		for name, m := range mine {
			got := ""
			object, err := resourceClient(client, kindOfWriter(w)).Get(t.Context(), name, metav1.GetOptions{})
			switch {
			case err == nil:
				got = valueOf(object)
			case !apierrors.IsNotFound(err):
				t.Fatalf("after kill %d: get %s: %v", round+1, name, err)
			}
			if got != m.value && (!m.uncertain || got != m.unacknowledged) {
				t.Fatalf("after kill %d: %s: got %q, acknowledged %q (unacknowledged %v: %q)", round+1, name, got, m.value,
					m.uncertain, m.unacknowledged)
			}
			m.value, m.uncertain = got, false
		}
	}
}

// agree waits until the watching client has caught up.
func waitForFollower(t *testing.T, f *follower, all []map[string]*model, kind schema.GroupVersionKind) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		problem := ""
		for w, mine := range all {
			if kindOfWriter(w) == kind && problem == "" {
				problem = f.difference(mine)
			}
		}
		if problem == "" {
			return
		}
		if pause(ctx) != nil {
			t.Fatalf("the watching client: %s", problem)
		}
	}
}
