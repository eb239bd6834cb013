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

// A server keeps all ConfigMaps in memory, and what was before its start is not
// among that: a watch that goes on from there is refused, and its client lists
// anew. LimitRanges it keeps in the store alone.
var written = [...]schema.GroupVersionKind{
	{Version: "v1", Kind: "ConfigMap"},
	{Version: "v1", Kind: "LimitRange"},
}

// anyKind is the administrator's client of objects of any kind, for all of the
// server's lives.
func anyKind(t *testing.T, p *Process) dynamic.Interface {
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

// of is the client of a kind.
func of(client dynamic.Interface, kind schema.GroupVersionKind) dynamic.ResourceInterface {
	resource := map[string]string{"ConfigMap": "configmaps", "LimitRange": "limitranges"}[kind.Kind]
	return client.Resource(kind.GroupVersion().WithResource(resource)).Namespace(metav1.NamespaceDefault)
}

// writes is the kind that a writer writes.
func writes(writer int) schema.GroupVersionKind { return written[writer%len(written)] }

// valueOf is what an object was written with.
func valueOf(object metav1.Object) string { return object.GetAnnotations()["value"] }

// model is what one writer knows of one object that nobody else writes.
type model struct {
	value string // "" is: not there
	// maybe is a value whose write got no answer: it may have been stored or not.
	maybe   string
	inDoubt bool
}

// TestNoAcknowledgedWriteIsLost kills the server 50 times while objects are
// made, changed and deleted. After each start, whatever was acknowledged is
// there, and nothing that was never written. Clients that watched all the time
// see the same in the end, and have taken up their watches where they ended.
func TestNoAcknowledgedWriteIsLost(t *testing.T) {
	t.Parallel()
	p := Launch(t)
	ctx := t.Context()
	if _, err := p.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	client := anyKind(t, p)
	watching := make([]*follower, len(written))
	for i, kind := range written {
		watching[i] = follow(t, of(client, kind))
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
		compare(t, client, all, round)
	}
	t.Logf("%d kills, %d acknowledged writes", kills, acknowledged)
	if acknowledged < kills*writers {
		t.Errorf("only %d writes were acknowledged in %d rounds: nothing is proven", acknowledged, kills)
	}
	for i, kind := range written {
		f := watching[i]
		agree(t, f, all, kind)
		t.Logf("the client that watched %ss listed %d times and watched %d times", kind.Kind, f.listed, f.resumed)
		// One that keeps a kind in memory begins anew with each of its lives, and at most
		// once more, while it reads what there is.
		most := map[bool]int{true: 2 * (kills + 1), false: 1}[kind.Kind == "ConfigMap"]
		if f.listed > most || f.resumed < kills/2 { // a kill may come before it has taken up the last
			t.Errorf("the client that watched %ss listed %d times, at most %d is right; it watched %d times over %d kills",
				kind.Kind, f.listed, most, f.resumed, kills)
		}
	}
}

// writeUntilKilled lets all writers write until the server is dead, and answers
// how many writes were acknowledged.
func writeUntilKilled(t *testing.T, p *Process, client dynamic.Interface, all []map[string]*model, round int) int {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	counts := make([]int, writers)
	var group sync.WaitGroup
	for w := range writers {
		random := rand.New(rand.NewPCG(uint64(round), uint64(w)))
		group.Go(func() {
			for {
				if !write(ctx, client, all[w], w, random) {
					return
				}
				counts[w]++
			}
		})
	}
	// Long enough for writes to be under way, different each time.
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

// write does one random thing and notes what is known after it; false is that
// the server did not answer.
func write(ctx context.Context, client dynamic.Interface, mine map[string]*model, writer int, random *rand.Rand) bool {
	name := fmt.Sprintf("w%d-%d", writer, random.IntN(names))
	m := mine[name]
	if m == nil {
		m = &model{}
		mine[name] = m
	}
	next := strconv.FormatUint(random.Uint64(), 36)
	objects, object := of(client, writes(writer)), &unstructured.Unstructured{}
	object.SetGroupVersionKind(writes(writer))
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
		m.maybe, m.inDoubt = next, true
		return false
	}
	m.value = next
	return true
}

// compare reads everything and settles what was in doubt.
func compare(t *testing.T, client dynamic.Interface, all []map[string]*model, round int) {
	t.Helper()
	for w, mine := range all {
		for name, m := range mine {
			got := ""
			object, err := of(client, writes(w)).Get(t.Context(), name, metav1.GetOptions{})
			switch {
			case err == nil:
				got = valueOf(object)
			case !apierrors.IsNotFound(err):
				t.Fatalf("after kill %d: get %s: %v", round+1, name, err)
			}
			if got != m.value && (!m.inDoubt || got != m.maybe) {
				t.Fatalf("after kill %d: %s is %q, acknowledged was %q (in doubt %v: %q)", round+1, name, got, m.value, m.inDoubt, m.maybe)
			}
			m.value, m.inDoubt = got, false
		}
	}
}

// agree waits until the client that watches a kind has caught up.
func agree(t *testing.T, f *follower, all []map[string]*model, kind schema.GroupVersionKind) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		problem := ""
		for w, mine := range all {
			if writes(w) == kind && problem == "" {
				problem = f.disagreement(mine)
			}
		}
		if problem == "" {
			return
		}
		if pause(ctx) != nil {
			t.Fatalf("the client that watched all the time: %s", problem)
		}
	}
}
