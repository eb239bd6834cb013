package control

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	kills   = 50
	writers = 4
	// names per writer: few, so that objects are changed and deleted often.
	names = 8
)

// model is what one writer knows of one object that nobody else writes.
type model struct {
	value string // "" is: not there
	// maybe is a value whose write got no answer: it may have been stored or not.
	maybe   string
	inDoubt bool
}

// TestNoAcknowledgedWriteIsLost kills the server 50 times while objects are
// made, changed and deleted. After each start, whatever was acknowledged is
// there, and nothing that was never written. A client that watched all the time
// sees the same in the end.
func TestNoAcknowledgedWriteIsLost(t *testing.T) {
	t.Parallel()
	p := Launch(t)
	ctx := t.Context()
	client, err := p.WaitReady(ctx)
	if err != nil {
		t.Fatal(err)
	}
	watching := follow(t, client)
	all := make([]map[string]*model, writers)
	for w := range all {
		all[w] = map[string]*model{}
	}
	var acknowledged int
	for round := range kills {
		acknowledged += writeUntilKilled(t, p, client, all, round)
		p.Start(t)
		if client, err = p.WaitReady(ctx); err != nil {
			t.Fatalf("after kill %d: %v", round+1, err)
		}
		compare(t, client, all, round)
	}
	t.Logf("%d kills, %d acknowledged writes", kills, acknowledged)
	if acknowledged < kills*writers {
		t.Errorf("only %d writes were acknowledged in %d rounds: nothing is proven", acknowledged, kills)
	}
	agree(t, watching, all)
	t.Logf("the watching client listed %d times and watched %d times", watching.listed, watching.resumed)
}

// writeUntilKilled lets all writers write until the server is dead, and answers
// how many writes were acknowledged.
func writeUntilKilled(t *testing.T, p *Process, client kubernetes.Interface, all []map[string]*model, round int) int {
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
func write(ctx context.Context, client kubernetes.Interface, mine map[string]*model, writer int, random *rand.Rand) bool {
	name := fmt.Sprintf("w%d-%d", writer, random.IntN(names))
	m := mine[name]
	if m == nil {
		m = &model{}
		mine[name] = m
	}
	next := strconv.FormatUint(random.Uint64(), 36)
	maps := client.CoreV1().ConfigMaps("default")
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"value": next}}
	var err error
	switch {
	case m.value == "":
		_, err = maps.Create(ctx, object, metav1.CreateOptions{})
	case random.IntN(3) == 0:
		next = ""
		err = maps.Delete(ctx, name, metav1.DeleteOptions{})
	default:
		_, err = maps.Update(ctx, object, metav1.UpdateOptions{})
	}
	if err != nil {
		m.maybe, m.inDoubt = next, true
		return false
	}
	m.value = next
	return true
}

// compare reads everything and settles what was in doubt.
func compare(t *testing.T, client kubernetes.Interface, all []map[string]*model, round int) {
	t.Helper()
	for _, mine := range all {
		for name, m := range mine {
			got := ""
			object, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), name, metav1.GetOptions{})
			switch {
			case err == nil:
				got = object.Data["value"]
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

// agree waits until the watching client has caught up.
func agree(t *testing.T, f *follower, all []map[string]*model) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		problem := f.disagreement(all)
		if problem == "" {
			return
		}
		if pause(ctx) != nil {
			t.Fatalf("the client that watched all the time: %s", problem)
		}
	}
}
